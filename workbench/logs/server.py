"""Request logs of servers: vLLM's and SGLang's lines of text, and SGLang's lines of JSON.

What must be switched on for whole texts: in vLLM ``--enable-log-requests --enable-log-outputs``
with ``VLLM_LOGGING_LEVEL=DEBUG`` and no ``--max-log-len``; in SGLang ``--log-requests
--log-requests-level 3``. Other lines of these logs are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from ...drafters.tree import IntArray
from .literals import CUT_SHORT, fields_until
from .logprobs import triple_rows
from .records import LogError, LogRequest, Record, kind, seconds_of, token_ids_of

MAX_WAITING = 100_000
_PROMPT = re.compile(r"(?:Received request (\S+)|Request (\S+) details): (?=prompt: )")
_OUTPUT = re.compile(r"Generated response (\S+?)(?: \(streaming complete\))?: (?=output: )")
_OUTPUT_IDS = re.compile(r"Generated response (\S+) details: (?=output_token_ids: )")
_FINISH = "Finish: obj="
_VLLM_TIME = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_SGLANG_TIME = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_LEAP_YEAR = 2000  # vLLM's lines have no year


@dataclass(slots=True)
class _Waiting:
    """A prompt whose response has not come yet."""

    place: str
    prompt: str | IntArray
    arrival: float | None


class ServerLog:
    """Reads the lines of one log; vLLM writes prompt and response on different ones.

    Attributes:
        waiting: prompts without a response so far, by request id.
        num_lost: prompts given up because too many were waiting.
    """

    def __init__(self) -> None:
        """Wait for nothing."""
        self.waiting: dict[str, _Waiting] = {}
        self.num_lost = 0
        self._ids: dict[str, IntArray] = {}
        self._last: tuple[str, _Waiting] | None = None

    def read(self, text: str, place: str) -> list[LogRequest]:
        """Return the request that a line completes, if it does.

        Raises:
            LogError: a line that should hold a request is cut or wrong.
        """
        if (at := text.find(_FINISH)) >= 0:
            return _sglang_text(text, at, place)
        if match := _PROMPT.search(text):
            self._await(match, text, place)
        elif match := _OUTPUT_IDS.search(text):
            ids = fields_until(text, match.end(), place)[0].get("output_token_ids")
            if isinstance(ids, list):
                self._ids[match[1]] = token_ids_of(ids, "output_token_ids", place)
        elif match := _OUTPUT.search(text):
            return self._complete(match, text, place)
        return []

    def _await(self, match: re.Match[str], text: str, place: str) -> None:
        fields = fields_until(text, match.end(), place)[0]
        ids = fields.get("prompt_token_ids")
        prompt = fields.get("prompt")
        if isinstance(ids, list) and ids:
            prompt = token_ids_of(ids, "prompt_token_ids", place)
        elif not isinstance(prompt, str):
            raise LogError(place, "wrong field", f"expected a prompt, got {kind(prompt)}")
        if len(self.waiting) >= MAX_WAITING:
            self.waiting.pop(next(iter(self.waiting)))
            self.num_lost += 1
        self.waiting[match[1] or match[2]] = _Waiting(place, prompt, _vllm_seconds(text))

    def _complete(self, match: re.Match[str], text: str, place: str) -> list[LogRequest]:
        request_id = match[1]
        waiting = self.waiting.pop(request_id, None)
        if waiting is None and self._last is not None and self._last[0] == request_id:
            waiting = self._last[1]  # one of several answers to the same prompt
        ids = self._ids.pop(request_id, None)
        fields = fields_until(text, match.end(), place)[0]
        if waiting is None:
            raise LogError(
                place,
                "wrong field",
                f"expected a line with the prompt of {request_id} before, got none "
                "(vLLM writes prompts at VLLM_LOGGING_LEVEL=DEBUG)",
            )
        self._last = request_id, waiting
        response: object = ids
        if response is None and isinstance(fields.get("output_token_ids"), list):
            response = token_ids_of(fields["output_token_ids"], "output_token_ids", place)
        if not isinstance(response, np.ndarray) or response.size == 0:
            response = fields.get("output")
            if not isinstance(response, str):
                raise LogError(place, "wrong field", f"expected an output, got {kind(response)}")
        return [
            LogRequest(
                place,
                waiting.prompt,
                response,
                arrival=waiting.arrival,
                finish=_vllm_seconds(text),
            )
        ]


def is_sglang_record(record: Record) -> bool:
    """Return whether a record is a line of SGLang's request log in JSON."""
    return str(record.get("event", "")).startswith("request.")


def sglang_requests(record: Record, place: str) -> list[LogRequest]:
    """Return the request of a ``request.finished`` record; others of that log give none.

    Raises:
        LogError: a field is missing, wrong or cut short.
    """
    if record["event"] != "request.finished":
        return []
    given, out = record.get("obj"), record.get("out")
    if not isinstance(given, dict) or not isinstance(out, dict):
        raise LogError(
            place,
            "wrong field",
            f'expected objects "obj" and "out", got {kind(given)}, {kind(out)}',
        )
    finish = seconds_of(record, ("timestamp", "time"), place)
    return [_sglang_request(given, out, finish, place)]


def _sglang_text(text: str, at: int, place: str) -> list[LogRequest]:
    opening = text.find("(", at)
    given, end = fields_until(text, opening + 1, place)
    found = text.find("out={", end)
    if opening < 0 or found < 0:
        raise LogError(place, "cut off", 'expected "obj=...(...), out={...}", got less')
    out, _ = fields_until(text, found + len("out={"), place)
    match = _SGLANG_TIME.match(text)
    finish = seconds_of({"time": match[1]}, ("time",), place) if match else None
    return [_sglang_request(given, out, finish, place)]


def _sglang_request(given: Record, out: Record, finish: float | None, place: str) -> LogRequest:
    meta = out.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    latency = seconds_of(meta, ("e2e_latency",), place)
    key = "output_token_logprobs"
    return LogRequest(
        place,
        _sglang_side(given, "input_ids", "text", place),
        _sglang_side(out, "output_ids", "text", place),
        session=None,
        arrival=None if finish is None or latency is None else finish - latency,
        finish=finish,
        logprobs=triple_rows(meta.get(key), meta.get("output_top_logprobs"), key, place),
    )


def _sglang_side(fields: Record, id_key: str, text_key: str, place: str) -> str | IntArray:
    ids, text = fields.get(id_key), fields.get(text_key)
    if isinstance(ids, list) and "..." not in ids:
        return token_ids_of(ids, id_key, place)
    if isinstance(text, str):
        return text
    if isinstance(ids, list):
        raise LogError(place, "truncated text", CUT_SHORT)
    raise LogError(
        place,
        "wrong field",
        f'expected "{id_key}" or "{text_key}", got the keys {sorted(fields)} '
        "(--log-requests-level 3 writes them)",
    )


def _vllm_seconds(text: str) -> float | None:
    match = _VLLM_TIME.search(text)
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.groups())
    try:
        return datetime(_LEAP_YEAR, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
