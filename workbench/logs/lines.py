"""Lines of files that may be larger than memory, and lines that may be larger than sense."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .records import LogError

MAX_LINE_BYTES = 8 << 20
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank.

    Attributes:
        number: counted from 1.
        end: offset in bytes behind the line.
        text: without the line break; ``""`` where there is an error.
        complete: whether a line break ended it.
        error: why it has no text.
    """

    number: int
    end: int
    text: str
    complete: bool
    error: LogError | None = None


def read_lines(
    path: Path, max_line_bytes: int = MAX_LINE_BYTES, offset: int = 0, number: int = 0
) -> Iterator[Line]:
    """Yield the lines of a UTF-8 file, one in memory at a time; blank ones are left out.

    Lines end at line feeds only: JSON texts may hold U+2028 and its like unescaped.

    Args:
        path: the file.
        max_line_bytes: longer lines are passed over and come with an error.
        offset: where to begin, at a line's start.
        number: lines before that offset.

    Raises:
        LogError: the file cannot be opened or read.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while data := file.readline(max_line_bytes + 1):
                number += 1
                size = len(data)
                is_long = size > max_line_bytes and not data.endswith(b"\n")
                if is_long:
                    size += _pass_over(file, max_line_bytes)
                offset += size
                place = f"{path}:{number}"
                if is_long:
                    message = f"expected a line of at most {max_line_bytes} bytes, got {size}"
                    error = LogError(place, "long line", message)
                    yield Line(number, offset, "", True, error)
                elif data.strip():
                    yield _decode(data, place, number, offset)
    except OSError as error:
        raise LogError(
            str(path), "unreadable", f"cannot be read: {error.strerror or error}"
        ) from error


def _pass_over(file: BinaryIO, chunk: int) -> int:
    """Read to the end of the line without keeping it; return the bytes read."""
    size = 0
    while data := file.readline(chunk):
        size += len(data)
        if data.endswith(b"\n"):
            break
    return size


def _decode(data: bytes, place: str, number: int, end: int) -> Line:
    complete = data.endswith(b"\n")
    if number == 1:
        if data[:2] in _BOMS:
            error = LogError(place, "encoding", f"expected UTF-8 text, got {_BOMS[data[:2]]}")
            return Line(number, end, "", complete, error)
        data = data.removeprefix(_UTF8_BOM)
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as reason:
        error = LogError(
            place,
            "encoding",
            f"expected UTF-8 text, got {reason.reason} at byte {reason.start + 1} of the line",
        )
        return Line(number, end, "", complete, error)
    return Line(number, end, text, complete)
