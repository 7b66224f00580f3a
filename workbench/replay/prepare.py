"""Logs to a store of tokens: read, tokenized and counted once, before anything is replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ...drafters.base import as_token_ids
from ...drafters.tree import IntArray
from ..logs import LogError, LogReader, LogRequest
from ..logs.records import LogprobRow
from .encoder import Encoder
from .match_lengths import match_buckets
from .requests import Alternatives, TokenRequest
from .store import Sizes, StoreWriter, write_json

BY_NAMESPACE = ("log", "session", "workload", "none")
"""What may separate requests from each other's responses."""
_BATCH_REQUESTS = 256
_BATCH_CHARACTERS = 1 << 20
_PROGRESS_NAME = "prepared.json"
OnBytes = Callable[[int], None]
"""Told how many bytes of the logs have been read in all."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How logs are read.

    Attributes:
        log_format: see :data:`..logs.FORMATS`.
        skip_broken: pass over broken lines and count them.
        max_line_bytes: longer lines are broken.
        namespace_by: one of :data:`BY_NAMESPACE`; ``log``: what the log calls namespace.
    """

    log_format: str = "auto"
    skip_broken: bool = False
    max_line_bytes: int = 8 << 20
    namespace_by: str = "log"

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if self.namespace_by not in BY_NAMESPACE:
            raise ValueError(
                f"expected namespaces by {', '.join(BY_NAMESPACE)}, got {self.namespace_by!r}"
            )
        if self.max_line_bytes < 1:
            raise ValueError(f"expected max_line_bytes >= 1, got {self.max_line_bytes}")


@dataclass(slots=True)
class FileReport:
    """What was in one log.

    Attributes:
        file: its path as given.
        lines: read.
        requests: taken.
        other_lines: lines without a request.
        unanswered: prompts without a response.
        without_logprobs: requests whose log-probabilities did not fit their tokens.
        skipped: broken lines passed over, by problem.
        examples: the first messages of those.
    """

    file: str
    lines: int = 0
    requests: int = 0
    other_lines: int = 0
    unanswered: int = 0
    without_logprobs: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Prepared:
    """What the store holds.

    Attributes:
        files: one report a log.
        workloads: names by number.
        namespaces: names by number.
        sizes: bytes of the store's parts.
    """

    files: list[FileReport] = field(default_factory=list)
    workloads: list[str] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    sizes: Sizes | None = None

    @classmethod
    def load(cls, folder: Path) -> Prepared:
        """Return what a folder holds; nothing where no file has been finished."""
        path = folder / _PROGRESS_NAME
        if not path.exists():
            return cls()
        content = json.loads(path.read_text(encoding="utf-8"))
        content["files"] = [FileReport(**report) for report in content["files"]]
        return cls(**content)

    def save(self, folder: Path) -> None:
        """Write it down, whole or not at all."""
        write_json(folder / _PROGRESS_NAME, asdict(self))


def prepare(
    paths: Sequence[Path],
    folder: Path,
    encoder: Encoder,
    options: LogOptions,
    on_bytes: OnBytes | None = None,
) -> Prepared:
    """Tokenize logs into a store; files that an earlier run finished are not read again.

    Args:
        paths: the logs, in their order.
        folder: of the store.
        encoder: texts to tokens.
        options: how to read them.
        on_bytes: for a progress bar.

    Raises:
        LogError: a broken line that is not skipped, a file that cannot be read or has no request.
        OSError: the store cannot be written.
    """
    prepared = Prepared.load(folder)
    read = sum(path.stat().st_size for path in paths[: len(prepared.files)])
    with StoreWriter(folder, prepared.sizes) as writer:
        for number in range(len(prepared.files), len(paths)):
            job = _FileJob(paths[number], number, encoder, options, prepared, writer)
            for offset in job.run():
                if on_bytes is not None:
                    on_bytes(read + offset)
            read += paths[number].stat().st_size
            prepared.files.append(job.report)
            prepared.sizes = writer.flush()
            prepared.save(folder)
    return prepared


class _FileJob:
    """Tokenizes one log."""

    def __init__(
        self,
        path: Path,
        number: int,
        encoder: Encoder,
        options: LogOptions,
        prepared: Prepared,
        writer: StoreWriter,
    ) -> None:
        self._path, self._number = path, number
        self._encoder, self._writer = encoder, writer
        self._namespace_by = options.namespace_by
        self._workloads = {name: i for i, name in enumerate(prepared.workloads)}
        self._namespaces = {name: i for i, name in enumerate(prepared.namespaces)}
        self._prepared = prepared
        self._reader = LogReader(
            path,
            options.log_format,
            skip_broken=options.skip_broken,
            max_line_bytes=options.max_line_bytes,
        )
        self.report = FileReport(str(path))

    def run(self) -> Iterator[int]:
        """Add the requests to the store; yield the bytes read so far."""
        batch: list[LogRequest] = []
        characters = 0
        for request in self._reader:
            batch.append(request)
            characters += len(request.response) + _size(request)
            if len(batch) >= _BATCH_REQUESTS or characters >= _BATCH_CHARACTERS:
                self._add(batch)
                batch, characters = [], 0
                yield self._reader.position.offset
        self._add(batch)
        at, report = self._reader.position, self.report
        report.lines, report.requests, report.other_lines = at.number, at.requests, at.other_lines
        report.unanswered = len(at.server.waiting) + at.server.num_lost
        report.skipped, report.examples = dict(at.skipped), at.examples
        if at.requests == 0:
            raise LogError(
                str(self._path),
                "unreadable",
                f"expected at least one request, got none in {at.number} lines "
                f"({sum(at.skipped.values())} broken, {at.other_lines} without a request)",
            )

    def _add(self, batch: list[LogRequest]) -> None:
        texts: list[str] = []
        for request in batch:
            texts += _texts(request, self._encoder)
        try:
            ids = iter(self._encoder.encode(texts))
        except ValueError as error:
            raise LogError(batch[0].place, "wrong field", str(error)) from error
        for request in batch:
            prompt = _ids(request.prompt, ids)
            response = _ids(request.response, ids)
            self._store(request, prompt, response)

    def _store(self, request: LogRequest, prompt: IntArray, response: IntArray) -> None:
        response, alternatives = self._logged(request, response)
        nan = float("nan")
        self._writer.add(
            TokenRequest(
                request.place,
                request.workload,
                prompt,
                response,
                nan if request.arrival is None else request.arrival,
                nan if request.finish is None else request.finish,
                alternatives,
                match_buckets(prompt, response),
            ),
            self._number,
            int(request.place.rpartition(":")[2]),
            _number_of(self._workloads, self._prepared.workloads, request.workload),
            _number_of(self._namespaces, self._prepared.namespaces, self._namespace(request)),
        )

    def _namespace(self, request: LogRequest) -> str:
        if self._namespace_by == "log":
            return request.namespace or ""
        if self._namespace_by == "session":
            return request.session or request.place
        return request.workload if self._namespace_by == "workload" else ""

    def _logged(
        self, request: LogRequest, response: IntArray
    ) -> tuple[IntArray, Alternatives | None]:
        """Return the response and its alternatives; the logged tokens are the response's, if known.

        A text may be cut into tokens in several ways: what the target emitted is in the log.
        """
        if request.logprobs is None:
            return response, None
        rows = [self._known(row) for row in request.logprobs]
        emitted = as_token_ids([row[0][0] if row else -1 for row in rows])
        if isinstance(request.response, np.ndarray):
            unnamed = all(row and row[0][0] == -1 for row in rows)
            if unnamed and emitted.size == response.size:
                rows = [
                    [(token, row[0][1])] for token, row in zip(response.tolist(), rows, strict=True)
                ]
                return response, Alternatives.from_rows(rows)
            if not np.array_equal(emitted, response):
                self.report.without_logprobs += 1
                return response, None
        elif emitted.size == 0 or emitted.min() < 0:
            self.report.without_logprobs += 1
            return response, None
        return emitted, Alternatives.from_rows(rows)

    def _known(self, row: LogprobRow) -> list[tuple[int, float]]:
        """Return a row in token ids: the emitted token (-1 if unknown), then known others."""
        pairs: list[tuple[int, float]] = []
        for rank, (token, logprob) in enumerate(row):
            number = token if isinstance(token, int) else self._encoder.token_id(token)
            if number is not None or rank == 0:
                pairs.append((-1 if number is None else number, logprob))
        return pairs


def _number_of(numbers: dict[str, int], names: list[str], name: str) -> int:
    if name not in numbers:
        numbers[name] = len(names)
        names.append(name)
    return numbers[name]


def _texts(request: LogRequest, encoder: Encoder) -> Iterator[str]:
    """Yield what of a request must be tokenized, the prompt first."""
    if isinstance(request.prompt, tuple):
        try:
            yield encoder.render(request.prompt)
        except ValueError as error:
            raise LogError(request.place, "wrong field", str(error)) from error
    elif isinstance(request.prompt, str):
        yield request.prompt
    if isinstance(request.response, str):
        yield request.response


def _ids(value: object, encoded: Iterator[list[int]]) -> IntArray:
    return as_token_ids(value if isinstance(value, np.ndarray) else next(encoded))


def _size(request: LogRequest) -> int:
    if isinstance(request.prompt, tuple):
        return sum(len(turn.content) for turn in request.prompt)
    return len(request.prompt)
