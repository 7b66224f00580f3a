"""Pools in files: written whole or not at all, checked before use, mapped instead of read.

A snapshot is a fixed head, a description in JSON, and the arrays, each at a multiple of 64 bytes:

====== ===== ================================================================
offset bytes what
====== ===== ================================================================
0      8     ``b"freedrft"``
8      4     version of the format, little-endian unsigned
12     4     length of the description in bytes
16     8     length of the file in bytes
24     8     zero
32     32    SHA-256 of the whole file with zeros in this place
64           the description: kind, metadata, name, type, shape and offset of each array
====== ===== ================================================================

Nothing in it is executed or unpickled. Writing goes to a temporary file in the same folder, which
is flushed to the disk and then renamed over the old one, so that a crash at any moment leaves the
old snapshot or the new one.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import math
import os
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

MAGIC = b"freedrft"
VERSION = 1
HEAD = struct.Struct("<8sIIQ8x32s")
ALIGNMENT = 64
LEFTOVER_SECONDS = 3600
DTYPES = ("int32", "int64", "float32", "float64", "uint8")

Array = npt.NDArray[Any]
Metadata = Mapping[str, str | int | float | bool]


class SnapshotError(ValueError):
    """A file is not a snapshot of the expected kind, or not a whole one; it names the file."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a file holds.

    Attributes:
        arrays: the arrays by name, mapped from the file, read-only.
        metadata: plain values that describe them.
    """

    arrays: dict[str, Array]
    metadata: dict[str, str | int | float | bool]


def write_snapshot(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Array], metadata: Metadata
) -> None:
    """Write a snapshot in place of ``path``, at once or not at all.

    Args:
        path: the file; its folder must exist.
        kind: what the arrays are, for example ``"suffix"``.
        arrays: C-contiguous arrays of the types in ``DTYPES``, in little-endian order.
        metadata: plain values.

    Raises:
        ValueError: an array of another type.
        OSError: the folder is missing or not writable, or the disk is full.
    """
    target = Path(path)
    description, offsets, size = _describe(kind, arrays, metadata)
    _remove_leftovers(target)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            head = HEAD.pack(MAGIC, VERSION, len(description), size, bytes(32))
            file.write(head)
            digest = hashlib.sha256(head)
            position = HEAD.size
            parts = [(HEAD.size, np.frombuffer(description, np.uint8))]
            parts += zip(offsets, arrays.values(), strict=True)
            for offset, part in parts:
                for piece in (bytes(offset - position), part.reshape(-1).view(np.uint8).data):
                    file.write(piece)
                    digest.update(piece)
                    position += len(piece)
            file.seek(0)
            file.write(HEAD.pack(MAGIC, VERSION, len(description), size, digest.digest()))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def read_snapshot(path: str | os.PathLike[str], kind: str) -> Snapshot:
    """Check a snapshot and map its arrays.

    Raises:
        SnapshotError: the file is foreign, of another version or kind, truncated or corrupt.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        description = _check(file, path)
        data: npt.NDArray[np.uint8] = np.memmap(file, np.uint8, mode="r")
    try:
        content = json.loads(description)
        found, metadata = content["kind"], dict(content["metadata"])
        arrays = {}
        for name, dtype, shape, offset in content["arrays"]:
            if dtype not in DTYPES:
                raise ValueError(dtype)
            size = np.dtype(dtype).itemsize * math.prod(shape)
            arrays[name] = data[offset : offset + size].view(dtype).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(f"expected a description of arrays, got {error!r}: {path}") from error
    if found != kind:
        raise SnapshotError(f"expected a snapshot of kind {kind!r}, got {found!r}: {path}")
    return Snapshot(arrays, metadata)


def _check(file: BinaryIO, path: str | os.PathLike[str]) -> bytes:
    """Check the head and the checksum; return the description."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise SnapshotError(f"expected a freedraft snapshot, got another kind of file: {path}")
    _, version, length, size, digest = HEAD.unpack(head)
    if version != VERSION:
        raise SnapshotError(f"expected snapshot version {VERSION}, got {version}: {path}")
    found = os.fstat(file.fileno()).st_size
    if found != size:
        raise SnapshotError(f"expected a snapshot of {size} bytes, got {found}: {path}")
    hasher = hashlib.sha256(head[: -len(digest)] + bytes(len(digest)))
    while piece := file.read(1 << 20):
        hasher.update(piece)
    if hasher.digest() != digest:
        raise SnapshotError(f"expected checksum {digest.hex()}, got {hasher.hexdigest()}: {path}")
    file.seek(HEAD.size)
    return file.read(length)


def _remove_leftovers(target: Path) -> None:
    """Delete what killed writers of ``target`` left behind; living ones are not that old."""
    oldest = time.time() - LEFTOVER_SECONDS
    for entry in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if entry.stat().st_mtime < oldest:
                entry.unlink()


def _describe(
    kind: str, arrays: Mapping[str, Array], metadata: Metadata
) -> tuple[bytes, list[int], int]:
    """Return the description, the arrays' offsets and the file's length, all in bytes."""
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES or not array.flags.c_contiguous:
            raise ValueError(
                f"expected {name} C-contiguous of a type among {', '.join(DTYPES)}, "
                f"got {array.dtype} (contiguous: {array.flags.c_contiguous})"
            )
    # The description holds the offsets and they lie behind it: leave room for their digits.
    entries: list[list[object]] = [
        [name, array.dtype.name, list(array.shape), 0] for name, array in arrays.items()
    ]
    content = {"kind": kind, "metadata": dict(metadata), "arrays": entries}
    room = len(json.dumps(content).encode()) + 20 * len(entries)
    offsets: list[int] = []
    stop = HEAD.size + room
    for entry, array in zip(entries, arrays.values(), strict=True):
        offset = -(-stop // ALIGNMENT) * ALIGNMENT
        entry[3] = offset
        offsets.append(offset)
        stop = offset + array.nbytes
    return json.dumps(content).encode().ljust(room), offsets, stop


def _sync_folder(folder: Path) -> None:
    """Make a rename last; where folders cannot be opened (Windows), the system does so itself."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
