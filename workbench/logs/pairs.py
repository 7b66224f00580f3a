"""Prompts and responses, one JSON object a line: freedraft's own format."""

from __future__ import annotations

from ...drafters.tree import IntArray
from .logprobs import logprobs_of
from .records import (
    LogRequest,
    Record,
    optional_text,
    require,
    seconds_of,
    text_of,
    token_ids_of,
)

ARRIVAL_KEYS = ("arrival", "arrival_time", "start_time", "timestamp")
FINISH_KEYS = ("finish", "finish_time", "end_time")
SESSION_KEYS = ("session", "session_id", "conversation_id")
_PROMPT_KEYS = ("prompt_ids", "prompt_token_ids")
_RESPONSE_KEYS = ("response_ids", "response_token_ids")


def pair_requests(record: Record, place: str) -> list[LogRequest]:
    """Return the request of a record with a prompt and a response.

    Each is a text (``prompt``, ``response``) or a list of token ids (``prompt_ids`` or
    ``prompt_token_ids``, and so for the response). ``workload``, ``session``, ``namespace``,
    times and ``logprobs`` are optional.

    Raises:
        LogError: a field is missing or wrong.
    """
    logprobs = record.get("logprobs")
    return [
        LogRequest(
            place,
            _side(record, "prompt", _PROMPT_KEYS, place),
            _side(record, "response", _RESPONSE_KEYS, place),
            **common_fields(record, place),
            logprobs=None if logprobs is None else logprobs_of(logprobs, "logprobs", place),
        )
    ]


def common_fields(record: Record, place: str) -> Record:
    """Return what all JSON formats may say beside prompt and response, as :class:`LogRequest` does.

    Raises:
        LogError: a field is wrong.
    """
    workload = record.get("workload")
    return {
        "workload": "" if workload is None else text_of(record, "workload", place),
        "session": optional_text(record, SESSION_KEYS, place),
        "namespace": optional_text(record, ("namespace",), place),
        "arrival": seconds_of(record, ARRIVAL_KEYS, place),
        "finish": seconds_of(record, FINISH_KEYS, place),
    }


def _side(record: Record, key: str, id_keys: tuple[str, ...], place: str) -> str | IntArray:
    for id_key in id_keys:
        if record.get(id_key) is not None:
            return token_ids_of(record[id_key], id_key, place)
    value = require(record, key, place)
    return (
        token_ids_of(value, key, place) if isinstance(value, list) else text_of(record, key, place)
    )
