"""Traces: prompts with what a model really answered, one JSON object a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..drafters.base import as_token_ids
from ..drafters.tree import IntArray
from .logs.lines import Line, read_lines
from .logs.records import LogError, optional_text, parse_object, text_of

Encode = Callable[[str], Sequence[int]]
TraceError = LogError
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
    traces = [_parse_line(line, f"{path}:{line.number}") for line in read_lines(path)]
    if not traces:
        raise TraceError(str(path), "unreadable", "expected at least one trace, got an empty file")
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


def _parse_line(line: Line, place: str) -> Trace:
    if line.error is not None:
        raise line.error
    record = parse_object(line.text, place, complete=line.complete)
    return Trace(
        text_of(record, "id", place),
        text_of(record, "workload", place),
        optional_text(record, ("session",), place),
        text_of(record, "prompt", place),
        text_of(record, "response", place),
    )
