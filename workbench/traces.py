"""Traces: prompts with what a model really answered, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..drafters.base import as_token_ids
from ..drafters.tree import IntArray

Encode = Callable[[str], Sequence[int]]


class TraceError(ValueError):
    """A trace file that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded request.

    Attributes:
        trace_id: unique within its file by convention; not checked.
        workload: what kind of traffic it is, for example ``"edit"``.
        session: requests of the same session belong together; None where the file names none.
        prompt: what the model was given, as text.
        response: what it answered, as text.
    """

    trace_id: str
    workload: str
    session: str | None
    prompt: str
    response: str


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """A :class:`Trace` in the tokens of one tokenizer.

    Attributes:
        trace_id: as in the trace.
        workload: as in the trace.
        session: as in the trace.
        prompt_ids: ``(prompt_length,)`` int32.
        response_ids: ``(response_length,)`` int32.
    """

    trace_id: str
    workload: str
    session: str | None
    prompt_ids: IntArray
    response_ids: IntArray


def read_traces(path: Path) -> list[Trace]:
    """Read a JSONL file of traces; blank lines are skipped, unknown keys ignored.

    Args:
        path: a UTF-8 file whose lines are objects with the texts ``id``, ``workload``, ``prompt``
            and ``response``, and optionally ``session``.

    Raises:
        TraceError: the file cannot be opened or decoded, a line is not such an object, or the file
            holds no trace at all.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise TraceError(f"{path}:{line}: expected UTF-8 text, got {error.reason}") from error
    # split("\n") and not splitlines(): JSON texts may hold U+2028 and its like unescaped
    traces = [
        _parse_line(line, f"{path}:{number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not traces:
        raise TraceError(f"{path}: expected at least one trace, got an empty file")
    return traces


def tokenize_traces(traces: Iterable[Trace], encode: Encode) -> Iterator[TokenTrace]:
    """Yield the traces in tokens, one at a time.

    Args:
        traces: what :func:`read_traces` returned.
        encode: text to token ids, without special tokens.
    """
    for trace in traces:
        yield TokenTrace(
            trace.trace_id,
            trace.workload,
            trace.session,
            as_token_ids(encode(trace.prompt)),
            as_token_ids(encode(trace.response)),
        )


def _parse_line(line: str, place: str) -> Trace:
    try:
        record: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{place}: expected one JSON object, got text that is not JSON ({error.msg} at column "
            f"{error.colno})"
        ) from error
    if not isinstance(record, dict):
        raise TraceError(f"{place}: expected a JSON object, got {_kind(record)}")
    session = record.get("session")
    return Trace(
        _text(record, "id", place),
        _text(record, "workload", place),
        None if session is None else _text(record, "session", place),
        _text(record, "prompt", place),
        _text(record, "response", place),
    )


def _text(record: dict[str, object], key: str, place: str) -> str:
    if key not in record:
        raise TraceError(f'{place}: expected the key "{key}", got the keys {sorted(record)}')
    value = record[key]
    if not isinstance(value, str):
        raise TraceError(f'{place}: expected text for "{key}", got {_kind(value)}')
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")
