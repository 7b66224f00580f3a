"""Requests in tokens on disk, so that logs larger than memory are tokenized once and read often.

A folder of plain arrays: all tokens (int32, a request's prompt and then its response), the match
length before each response token (uint8), the logged alternatives, and a table with one row a
request. Rows are only ever added; what a killed run left behind the last whole file is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .requests import Alternatives, TokenRequest

ROW = np.dtype(
    [
        ("tokens", "<i8"),  # where its tokens begin, in tokens
        ("matches", "<i8"),
        ("alternatives", "<i8"),  # where they begin, in bytes; -1 for none
        ("prompt", "<i4"),
        ("response", "<i4"),
        ("entries", "<i4"),  # alternatives
        ("file", "<i4"),
        ("line", "<i8"),
        ("workload", "<i4"),
        ("namespace", "<i4"),
        ("arrival", "<f8"),
        ("finish", "<f8"),
    ]
)
_PARTS = ("tokens", "matches", "alternatives", "rows")
Rows = npt.NDArray[np.void]
Sizes = dict[str, int]


def _path(folder: Path, part: str) -> Path:
    return folder / f"{part}.bin"


class StoreWriter:
    """Adds requests to a folder."""

    def __init__(self, folder: Path, sizes: Sizes | None = None) -> None:
        """Open the folder, cutting each part to what is known to be whole.

        Args:
            folder: exists.
            sizes: bytes of each part to keep, as :meth:`flush` returned; none when absent.

        Raises:
            OSError: a part cannot be written.
        """
        self._files: dict[str, BinaryIO] = {}
        for part in _PARTS:
            file = _path(folder, part).open("ab")
            file.truncate(0 if sizes is None else sizes[part])
            file.seek(0, os.SEEK_END)
            self._files[part] = file

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(
        self, request: TokenRequest, file: int, line: int, workload: int, namespace: int
    ) -> None:
        """Add one request.

        Args:
            request: what to add; its place and workload are kept as the numbers that follow.
            file: number of its log.
            line: in the log.
            workload: number of its workload.
            namespace: number of its namespace.
        """
        row = np.zeros((), ROW)
        row["tokens"] = self._files["tokens"].tell() // 4
        row["matches"] = self._files["matches"].tell()
        row["prompt"], row["response"] = request.prompt_ids.size, request.response_ids.size
        row["file"], row["line"] = file, line
        row["workload"], row["namespace"] = workload, namespace
        row["arrival"], row["finish"] = request.arrival, request.finish
        row["alternatives"] = -1
        if request.alternatives is not None:
            row["alternatives"] = self._files["alternatives"].tell()
            row["entries"] = request.alternatives.token_ids.size
            for part in (
                request.alternatives.offsets,
                request.alternatives.token_ids,
                request.alternatives.probs,
            ):
                self._files["alternatives"].write(part.tobytes())
        self._files["tokens"].write(request.prompt_ids.tobytes())
        self._files["tokens"].write(request.response_ids.tobytes())
        self._files["matches"].write(request.matches.tobytes())
        self._files["rows"].write(row.tobytes())

    def flush(self) -> Sizes:
        """Write out what is buffered; return the bytes of each part."""
        for file in self._files.values():
            file.flush()
        return {part: file.tell() for part, file in self._files.items()}


class TokenStore:
    """Reads the requests of a folder by number, from any process.

    Attributes:
        rows: ``(num_requests,)`` of :data:`ROW`.
    """

    def __init__(self, folder: Path, files: Sequence[str], workloads: Sequence[str]) -> None:
        """Open the folder.

        Args:
            folder: what :class:`StoreWriter` wrote.
            files: names of the logs by number.
            workloads: names of the workloads by number.
        """
        self._files, self._workloads = files, workloads
        size = _path(folder, "rows").stat().st_size
        self.rows: Rows = np.memmap(_path(folder, "rows"), ROW, "r") if size else np.zeros(0, ROW)
        self._handles = {
            part: os.open(_path(folder, part), os.O_RDONLY) for part in _PARTS if part != "rows"
        }

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def read(self, number: int) -> TokenRequest:
        """Return one request."""
        row = self.rows[number]
        prompt, response = int(row["prompt"]), int(row["response"])
        tokens = self._read("tokens", np.int32, 4 * int(row["tokens"]), prompt + response)
        return TokenRequest(
            f"{self._files[int(row['file'])]}:{row['line']}",
            self._workloads[int(row["workload"])],
            tokens[:prompt],
            tokens[prompt:],
            float(row["arrival"]),
            float(row["finish"]),
            self._alternatives(row, response),
            self._read("matches", np.uint8, int(row["matches"]), response),
        )

    def _alternatives(self, row: Any, response: int) -> Alternatives | None:
        at, entries = int(row["alternatives"]), int(row["entries"])
        if at < 0:
            return None
        offsets = self._read("alternatives", np.int64, at, response + 1)
        at += offsets.nbytes
        token_ids = self._read("alternatives", np.int32, at, entries)
        return Alternatives(
            offsets,
            token_ids,
            self._read("alternatives", np.float32, at + token_ids.nbytes, entries),
        )

    def _read(self, part: str, dtype: Any, start: int, count: int) -> npt.NDArray[Any]:
        # Writable, as the arrays are that drafters get elsewhere.
        array = np.empty(count, dtype)
        size = os.preadv(self._handles[part], [array.data], start) if count else 0
        if size != array.nbytes:
            raise OSError(f"expected {array.nbytes} bytes of {part} at {start}, got {size}")
        return array


def write_json(path: Path, content: object) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)
