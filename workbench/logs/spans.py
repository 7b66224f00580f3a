"""OpenTelemetry spans of language models, as far as they carry text.

Read are OTLP's JSON (what a collector's file exporter writes, one export a line) and single spans
whose attributes are a plain object. The text stands in one of these places, by the age of the
conventions: ``gen_ai.input.messages`` and ``gen_ai.output.messages``, as attributes or on an event;
the events ``gen_ai.*.message`` and ``gen_ai.choice``; ``gen_ai.prompt.0.content`` and its like.
Spans without text, and spans of other things, give no request: recording text is off by default.

Source: OpenTelemetry semantic conventions for generative AI, v1.36 and v1.37.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .chat import messages_of, text_of_message
from .records import LogError, LogRequest, Message, Record, kind, optional_text, seconds_of, wrong

INPUT = "gen_ai.input.messages"
OUTPUT = "gen_ai.output.messages"
_SYSTEM = "gen_ai.system_instructions"
_SESSION_KEYS = ("gen_ai.conversation.id", "session.id", "session_id")
_NAMESPACE_KEYS = ("namespace", "service.namespace")
_FLAT = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(role|content)")
_TURN_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_START_KEYS = ("startTimeUnixNano", "start_time_unix_nano", "start_time")
_END_KEYS = ("endTimeUnixNano", "end_time_unix_nano", "end_time")
_VALUE_KEYS = ("stringValue", "intValue", "boolValue", "doubleValue")


def is_span_record(record: Record) -> bool:
    """Return whether a record is of the forms that :func:`span_requests` reads."""
    return (
        "resourceSpans" in record
        or "resource_spans" in record
        or ("attributes" in record and any(key in record for key in ("name", "spanId", "context")))
    )


def span_requests(record: Record, place: str) -> list[LogRequest]:
    """Return the requests among a record's spans, one for each output message.

    Raises:
        LogError: a field that would hold text is wrong.
    """
    requests: list[LogRequest] = []
    for span in _spans(record, place):
        requests += _requests_of_span(span, place)
    return requests


def _spans(record: Record, place: str) -> Iterator[Record]:
    """Yield spans with their attributes as plain objects."""
    resources = record.get("resourceSpans", record.get("resource_spans"))
    if resources is None:
        yield record
        return
    for resource in _objects(resources, "resourceSpans", place):
        scopes = resource.get("scopeSpans", resource.get("scope_spans", []))
        for scope in _objects(scopes, "scopeSpans", place):
            yield from _objects(scope.get("spans", []), "spans", place)


def _objects(value: object, key: str, place: str) -> list[Record]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong(place, "an array of objects", key, value)
    return value


def _requests_of_span(span: Record, place: str) -> list[LogRequest]:
    attributes = _attributes(span.get("attributes", {}), place)
    events = _objects(span.get("events") or [], "events", place)
    turns, answers = _messages(attributes, place)
    for event in events:
        if answers:
            break
        turns, answers = _messages(_attributes(event.get("attributes", {}), place), place)
    if not answers:
        turns, answers = _event_messages(events, place)
    if not answers:
        turns, answers = _flat_messages(attributes, place)
    return [
        LogRequest(
            place,
            turns,
            answer,
            workload=optional_text(attributes, ("gen_ai.operation.name",), place) or "",
            session=optional_text(attributes, _SESSION_KEYS, place),
            namespace=optional_text(attributes, _NAMESPACE_KEYS, place),
            arrival=seconds_of(span, _START_KEYS, place),
            finish=seconds_of(span, _END_KEYS, place),
        )
        for answer in answers
    ]


def _attributes(value: object, place: str) -> Record:
    """Return attributes as a plain object; OTLP writes a list of keys and typed values."""
    if isinstance(value, dict):
        return value
    return {
        str(item.get("key")): _any_value(item.get("value"))
        for item in _objects(value, "attributes", place)
    }


def _any_value(value: object) -> Any:
    """Return the plain value of OTLP's typed one; None where it is no such value."""
    if not isinstance(value, dict):
        return value
    for key in _VALUE_KEYS:
        if key in value:
            return value[key]
    for key, entries in value.items():
        items = entries.get("values") if isinstance(entries, dict) else None
        if not isinstance(items, list):
            continue
        if key == "arrayValue":
            return [_any_value(item) for item in items]
        if key == "kvlistValue":
            pairs = [item for item in items if isinstance(item, dict)]
            return {str(pair.get("key")): _any_value(pair.get("value")) for pair in pairs}
    return None


def _messages(attributes: Record, place: str) -> tuple[tuple[Message, ...], list[str]]:
    """Return the turns and the answers of the conventions since v1.37; nothing where absent."""
    if OUTPUT not in attributes:
        return (), []
    turns: list[Message] = []
    if _SYSTEM in attributes:
        parts = _structured(attributes[_SYSTEM], _SYSTEM, place)
        turns.append(Message("system", _parts_text(parts, _SYSTEM, place)))
    for item in _structured(attributes.get(INPUT, []), INPUT, place):
        turns.append(Message(str(item.get("role", "user")), _message_text(item, INPUT, place)))
    answers = [
        _message_text(item, OUTPUT, place)
        for item in _structured(attributes[OUTPUT], OUTPUT, place)
    ]
    return tuple(turns), answers


def _structured(value: object, key: str, place: str) -> list[Record]:
    """Return a list of objects that may be written as JSON in a text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise LogError(
                place, "truncated text", f'expected JSON in "{key}", got {error.msg}'
            ) from error
    return _objects(value, key, place)


def _message_text(message: Record, key: str, place: str) -> str:
    if "parts" not in message:
        return text_of_message(message, place)
    return _parts_text(_objects(message["parts"], key, place), key, place)


def _parts_text(parts: list[Record], key: str, place: str) -> str:
    """Return the text of parts, calls of tools as JSON; other parts are left out."""
    texts: list[str] = []
    for part in parts:
        what = part.get("type", "text")
        if what in ("text", "reasoning"):
            content = part.get("content", part.get("text"))
            if not isinstance(content, str):
                raise wrong(place, "text as the content of parts", key, content)
            texts.append(content)
        elif what == "tool_call":
            call = {"name": part.get("name"), "arguments": part.get("arguments")}
            texts.append(json.dumps(call, ensure_ascii=False))
        elif what == "tool_call_response":
            answer = part.get("response", part.get("result"))
            texts.append(answer if isinstance(answer, str) else json.dumps(answer))
    return "".join(texts)


def _event_messages(events: list[Record], place: str) -> tuple[tuple[Message, ...], list[str]]:
    """Return the turns and answers of the conventions up to v1.36, an event a message."""
    turns: list[Message] = []
    answers: list[str] = []
    for event in events:
        name = str(event.get("name", ""))
        body = _attributes(event.get("attributes", {}), place)
        if match := _TURN_EVENT.fullmatch(name):
            turns.append(Message(match[1], text_of_message(body, place)))
        elif name == "gen_ai.choice":
            message = body.get("message", body)
            if isinstance(message, str):
                (message,) = _structured(f"[{message}]", "message", place)
            if not isinstance(message, dict):
                raise LogError(
                    place, "wrong field", f"expected a message in a choice, got {kind(message)}"
                )
            answers.append(text_of_message(message, place))
    return tuple(turns), [answer for answer in answers if answer]


def _flat_messages(attributes: Record, place: str) -> tuple[tuple[Message, ...], list[str]]:
    """Return turns and answers that are spread over numbered attributes."""
    found: dict[str, dict[int, Record]] = {"prompt": {}, "completion": {}}
    for key, value in attributes.items():
        if match := _FLAT.fullmatch(key):
            found[match[1]].setdefault(int(match[2]), {})[match[3]] = value
    turns = [{"role": "user", **turn} for _, turn in sorted(found["prompt"].items())]
    answers = [text_of_message(turn, place) for _, turn in sorted(found["completion"].items())]
    return messages_of(turns, "gen_ai.prompt", place), [answer for answer in answers if answer]
