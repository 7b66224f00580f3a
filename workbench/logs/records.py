"""What a log says about one request, the error that names a broken place, and checks of fields."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from ...drafters.base import as_token_ids
from ...drafters.tree import IntArray

Record = dict[str, Any]
LogprobRow = tuple[tuple[str | int, float], ...]
"""Log-probabilities at one position: the emitted token first, then alternatives; each a token id or
a token's text with its natural logarithm."""

Problem = Literal[
    "unreadable",
    "not JSON",
    "cut off",
    "wrong field",
    "encoding",
    "empty response",
    "long line",
    "truncated text",
]
"""Why a place of a log cannot be used."""


class LogError(ValueError):
    """A log that cannot be read; the message names the file and, where there is one, the line.

    Attributes:
        problem: in two words, for counting.
    """

    def __init__(self, place: str, problem: Problem, message: str) -> None:
        """Name what was expected and what came.

        Args:
            place: ``file`` or ``file:line``.
            problem: in two words.
            message: expected and got.
        """
        super().__init__(f"{place}: {message}")
        self.problem: Problem = problem


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: who speaks.
        content: its text.
    """

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class LogRequest:
    """One answered request.

    Attributes:
        place: ``file:line`` where it stands.
        prompt: text, ``(length,)`` int32 token ids, or the turns of a conversation.
        response: text or ``(length,)`` int32 token ids, not empty.
        workload: what kind of traffic it is; ``""`` where the log does not say.
        session: requests of the same session belong together; None where the log names none.
        namespace: requests learn from those of the same namespace only; None where it names none.
        arrival: seconds at which it came, on the log's own clock; None where unknown.
        finish: seconds at which its last token came; None where unknown.
        logprobs: one row a response token; None where the log has none.
    """

    place: str
    prompt: str | IntArray | tuple[Message, ...]
    response: str | IntArray
    workload: str = ""
    session: str | None = None
    namespace: str | None = None
    arrival: float | None = None
    finish: float | None = None
    logprobs: tuple[LogprobRow, ...] | None = None

    def __post_init__(self) -> None:
        """Check the response and that texts can be encoded.

        Raises:
            LogError: the response is empty, or a text has half a surrogate pair.
        """
        if len(self.response) == 0:
            raise LogError(self.place, "empty response", "expected a response, got an empty one")
        turns = self.prompt if isinstance(self.prompt, tuple) else ()
        for text in (self.prompt, self.response, *(turn.content for turn in turns)):
            if isinstance(text, str) and not _is_encodable(text):
                raise LogError(
                    self.place, "encoding", "expected Unicode text, got half a surrogate pair"
                )


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def kind(value: object) -> str:
    """Return what a JSON value is, for messages."""
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def parse_object(text: str, place: str, *, complete: bool = True) -> Record:
    """Read one JSON object.

    Args:
        text: of one line.
        place: ``file:line``.
        complete: whether the line ended with a line break.

    Raises:
        LogError: the text is not JSON, or no object.
    """
    try:
        record: object = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        what = str(getattr(error, "msg", error)).removesuffix(" at")
        at = getattr(error, "colno", 1)
        cut = not complete or at >= len(text.rstrip()) or what.startswith("Unterminated string")
        raise LogError(
            place,
            "cut off" if cut else "not JSON",
            "expected one JSON object, got text that is not JSON "
            f"({what} at column {at}{'; the line seems cut off' if cut else ''})",
        ) from error
    if not isinstance(record, dict):
        raise LogError(place, "wrong field", f"expected a JSON object, got {kind(record)}")
    return record


def wrong(place: str, expected: str, key: str, value: object) -> LogError:
    """Return the error for a field of the wrong kind."""
    return LogError(place, "wrong field", f'expected {expected} for "{key}", got {kind(value)}')


def require(record: Record, key: str, place: str) -> Any:
    """Return a field's value.

    Raises:
        LogError: the record has no such key.
    """
    if key not in record:
        raise LogError(
            place, "wrong field", f'expected the key "{key}", got the keys {sorted(record)}'
        )
    return record[key]


def text_of(record: Record, key: str, place: str) -> str:
    """Return a text that must be there.

    Raises:
        LogError: it is missing or something else.
    """
    value = require(record, key, place)
    if not isinstance(value, str):
        raise wrong(place, "text", key, value)
    return value


def optional_text(record: Record, keys: tuple[str, ...], place: str) -> str | None:
    """Return the first of the fields that is there and not null; numbers become their text.

    Raises:
        LogError: it is neither text nor a number.
    """
    for key in keys:
        value = record.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise wrong(place, "text", key, value)
        return str(value)
    return None


def token_ids_of(value: object, key: str, place: str) -> IntArray:
    """Return a list of token ids as ``(length,)`` int32.

    Raises:
        LogError: it is no list of integers that int32 holds.
    """
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise wrong(place, "an array of token ids", key, value)
    try:
        return as_token_ids(value)
    except (ValueError, OverflowError) as error:
        raise LogError(place, "wrong field", f'"{key}": {error}') from error


def seconds_of(record: Record, keys: tuple[str, ...], place: str) -> float | None:
    """Return the first of the times that is there, in seconds.

    Numbers count from 1970 in seconds, milliseconds, microseconds or nanoseconds, told apart by
    their size; texts are numbers or ISO 8601, UTC where they name no zone.

    Raises:
        LogError: a field is no time.
    """
    for key in keys:
        value = record.get(key)
        if value is None:
            continue
        seconds = _seconds_of_text(value) if isinstance(value, str) else as_float(value)
        if seconds is None or not math.isfinite(seconds):
            raise wrong(place, "a time", key, value)
        for limit, scale in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
            if seconds >= limit:
                return seconds / scale
        return seconds
    return None


def as_float(value: object) -> float | None:
    """Return a JSON number as float; None for other values and beyond its range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _seconds_of_text(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
