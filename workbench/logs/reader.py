"""Any log, line by line: what each line holds, what is broken, where to go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from .chat import chat_requests, is_chat_record
from .lines import MAX_LINE_BYTES, Line, read_lines
from .pairs import pair_requests
from .records import LogError, LogRequest, parse_object
from .server import ServerLog, is_sglang_record, sglang_requests
from .spans import is_span_record, span_requests

FORMATS = ("auto", "pairs", "chat", "server", "spans")
_HEAD_LINES = 64


@dataclass(slots=True)
class LogPosition:
    """How far a log has been read; from here reading goes on.

    Attributes:
        offset: bytes read.
        number: lines read.
        requests: requests found.
        other_lines: lines without a request: other messages, spans without text, failed calls.
        skipped: broken lines that were passed over, by problem.
        examples: the first messages of those.
        server: prompts of a server's log that wait for their response.
    """

    offset: int = 0
    number: int = 0
    requests: int = 0
    other_lines: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    server: ServerLog = field(default_factory=ServerLog)


class LogReader:
    """Reads the requests of one file."""

    MAX_EXAMPLES = 5

    def __init__(
        self,
        path: Path,
        log_format: str = "auto",
        *,
        skip_broken: bool = False,
        max_line_bytes: int = MAX_LINE_BYTES,
        position: LogPosition | None = None,
    ) -> None:
        """Look at the first lines.

        Args:
            path: the file.
            log_format: one of :data:`FORMATS`; ``auto`` tells by each line's keys.
            skip_broken: pass over broken lines and count them.
            max_line_bytes: longer lines are broken.
            position: where to go on.

        Raises:
            LogError: the file cannot be read.
            ValueError: no such format.
        """
        if log_format not in FORMATS:
            raise ValueError(f"expected a format among {', '.join(FORMATS)}, got {log_format!r}")
        self.path = path
        self.position = LogPosition() if position is None else position
        self._format = log_format
        self._skip_broken = skip_broken
        self._max_line_bytes = max_line_bytes
        self._is_text = log_format in ("auto", "server") and self._looks_like_text()

    def __iter__(self) -> Iterator[LogRequest]:
        """Yield the requests in the order of their lines.

        Raises:
            LogError: a broken line, unless those are skipped; or the file cannot be read.
        """
        at = self.position
        for line in read_lines(self.path, self._max_line_bytes, at.offset, at.number):
            try:
                found = self._requests(line)
            except LogError as error:
                if not self._skip_broken:
                    raise
                self._count(error)
                found = None
            at.offset, at.number = line.end, line.number
            if found is not None:
                at.requests += len(found)
                at.other_lines += not found
                yield from found

    def _requests(self, line: Line) -> list[LogRequest]:
        if line.error is not None:
            raise line.error
        place = f"{self.path}:{line.number}"
        text = line.text
        if self._is_text and not text.lstrip().startswith('{"'):
            return self.position.server.read(text, place)
        record = parse_object(text, place, complete=line.complete)
        if self._format == "chat" or (self._format == "auto" and is_chat_record(record)):
            return chat_requests(record, place)
        if self._format == "spans" or (self._format == "auto" and is_span_record(record)):
            return span_requests(record, place)
        if self._format in ("server", "auto") and is_sglang_record(record):
            return sglang_requests(record, place)
        if self._format == "server":
            return []
        return pair_requests(record, place)

    def _looks_like_text(self) -> bool:
        """Return whether most of the first lines are no JSON objects."""
        head = [
            line.text.lstrip().startswith("{")
            for line in islice(read_lines(self.path, self._max_line_bytes), _HEAD_LINES)
            if line.error is None
        ]
        return 2 * sum(head) < len(head) and self._has_marks()

    def _has_marks(self) -> bool:
        """Return whether the log is told to be a server's, or one of the first lines looks so."""
        if self._format == "server":
            return True
        marks = ("Received request ", " details: prompt", "Finish: obj=", "Receive: obj=", "INFO")
        lines = islice(read_lines(self.path, self._max_line_bytes), _HEAD_LINES)
        return any(mark in line.text for line in lines for mark in marks)

    def _count(self, error: LogError) -> None:
        self.position.skipped[error.problem] += 1
        if len(self.position.examples) < self.MAX_EXAMPLES:
            self.position.examples.append(str(error))
