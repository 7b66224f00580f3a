"""OpenAI-style logs: request and response bodies, or conversations."""

from __future__ import annotations

import json

from ...drafters.tree import IntArray
from .logprobs import logprobs_of
from .pairs import FINISH_KEYS, common_fields
from .records import (
    LogError,
    LogRequest,
    Message,
    Record,
    kind,
    seconds_of,
    token_ids_of,
    wrong,
)

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def is_chat_record(record: Record) -> bool:
    """Return whether a record is one of the forms that :func:`chat_requests` reads."""
    return (
        "messages" in record
        or "choices" in record
        or (
            isinstance(record.get("response", ""), dict | None)
            and any(isinstance(record.get(key), dict) for key in ("request", "body"))
        )
    )


def chat_requests(record: Record, place: str) -> list[LogRequest]:
    """Return the requests of one record.

    - ``{"request": {...}, "response": {...}}`` with the bodies of an API call: one a choice. Also
      with ``body`` in the place of ``request``, and ``{"response": {"body": {...}}}``, as batches
      write them.
    - ``{"messages": [...], "choices": [...]}``: the same in one object.
    - ``{"messages": [...]}``: a conversation; one for each turn of the assistant, which had all
      turns before it as its prompt. They are one session.

    A call that failed has no response and gives no request.

    Raises:
        LogError: a field is missing or wrong.
    """
    request = record.get("request", record.get("body", record))
    response = record.get("response", record)
    if not isinstance(request, dict):
        raise wrong(place, "an object", "request", request)
    if isinstance(response, dict) and isinstance(response.get("body"), dict):
        response = response["body"]
    if "response" in record and _has_failed(record, response):
        return []
    if not isinstance(response, dict):
        raise wrong(place, "an object", "response", response)
    if "choices" not in response and response is record:
        return _conversation(record, place)
    choices = response.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise wrong(place, "an array of objects", "choices", choices)
    prompt = _prompt(request, response, place)
    fields = _fields(record, request, response, place)
    return [LogRequest(place, prompt, **_answer(choice, place), **fields) for choice in choices]


def _has_failed(record: Record, response: object) -> bool:
    return (
        response is None
        or bool(record.get("error"))
        or (isinstance(response, dict) and bool(response.get("error")))
    )


def _fields(record: Record, request: Record, response: Record, place: str) -> Record:
    fields = common_fields(record, place)
    metadata = request.get("metadata")
    if fields["session"] is None and isinstance(metadata, dict):
        fields["session"] = common_fields(metadata, place)["session"]
    if fields["arrival"] is None:
        fields["arrival"] = seconds_of(response, ("created",), place)
    if fields["finish"] is None:
        fields["finish"] = seconds_of(response, FINISH_KEYS, place)
    return fields


def _prompt(request: Record, response: Record, place: str) -> str | IntArray | tuple[Message, ...]:
    ids = response.get("prompt_token_ids")
    if ids is not None:
        return token_ids_of(ids, "prompt_token_ids", place)
    if "messages" in request:
        return messages_of(request["messages"], "messages", place)
    prompt = request.get("prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0]
    if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
        return token_ids_of(prompt, "prompt", place)
    raise wrong(place, '"messages", or text or token ids', "prompt", prompt)


def _answer(choice: Record, place: str) -> Record:
    """Return ``response`` and ``logprobs`` of one choice, as :class:`LogRequest` names them."""
    logprobs = choice.get("logprobs")
    rows = None if logprobs is None else logprobs_of(logprobs, "logprobs", place)
    ids = choice.get("token_ids")
    if ids is not None:
        return {"response": token_ids_of(ids, "token_ids", place), "logprobs": rows}
    if "message" not in choice:
        text = choice.get("text")
        if not isinstance(text, str):
            raise wrong(place, '"message" or text', "text", text)
        return {"response": text, "logprobs": rows}
    message = choice["message"]
    if not isinstance(message, dict):
        raise wrong(place, "an object", "message", message)
    return {"response": text_of_message(message, place), "logprobs": rows}


def _conversation(record: Record, place: str) -> list[LogRequest]:
    turns = messages_of(record.get("messages"), "messages", place)
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        raise LogError(
            place, "empty response", "expected a turn of the assistant, got a conversation without"
        )
    fields = common_fields(record, place)
    if fields["session"] is None:
        fields["session"] = place
    # Only the last answer came when the log says.
    earlier: Record = fields | {"finish": None}
    return [
        LogRequest(
            place,
            turns[:number],
            turns[number].content,
            **(fields if number == answers[-1] else earlier),
        )
        for number in answers
    ]


def messages_of(value: object, key: str, place: str) -> tuple[Message, ...]:
    """Return the turns of a conversation.

    Raises:
        LogError: it is no list of messages with a role and a content.
    """
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong(place, "an array of messages", key, value)
    turns: list[Message] = []
    for item in value:
        role = item.get("role")
        if not isinstance(role, str):
            raise wrong(place, "text", "role", role)
        turns.append(Message(role, text_of_message(item, place)))
    return tuple(turns)


def text_of_message(message: Record, place: str) -> str:
    """Return what a message says: reasoning, content, then calls of tools as JSON.

    Parts that are no text (images, audio) are left out.

    Raises:
        LogError: the content is neither text nor a list of parts.
    """
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    texts = [reasoning if isinstance(reasoning, str) else ""]
    content = message.get("content")
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        texts += [_part(part, place) for part in content]
    elif content is not None:
        raise wrong(place, "text or an array of parts", "content", content)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise wrong(place, "an array", "tool_calls", calls)
    texts += [_call(call, place) for call in calls]
    return "".join(texts)


def _part(part: object, place: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise LogError(place, "wrong field", f"expected a part of a message, got {kind(part)}")
    if part.get("type") in _TEXT_PARTS:
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise wrong(place, "text", "text", text)
        return text
    return ""


def _call(call: object, place: str) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise wrong(place, 'objects with a "function"', "tool_calls", call)
    return json.dumps(
        {"name": function.get("name"), "arguments": function.get("arguments")}, ensure_ascii=False
    )
