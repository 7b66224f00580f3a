"""Log-probabilities as logs write them: OpenAI's two forms, plain numbers, SGLang's triples."""

from __future__ import annotations

import math

from .records import LogError, LogprobRow, as_float, kind, wrong

_ID_PREFIX = "token_id:"


def logprobs_of(value: object, key: str, place: str) -> tuple[LogprobRow, ...]:
    """Return one row a token.

    Args:
        value: chat completions' ``{"content": [...]}`` or its list; completions' ``{"tokens",
            "token_logprobs", "top_logprobs"}``; or a plain list of numbers, then with an empty
            text as each emitted token.
        key: its name, for messages.
        place: ``file:line``.

    Raises:
        LogError: it is something else.
    """
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        value = value["content"]
    if isinstance(value, dict):
        return _completion_rows(value, key, place)
    if not isinstance(value, list):
        raise wrong(place, "an array of log-probabilities", key, value)
    return tuple(_row(item, key, place) for item in value)


def triple_rows(
    emitted: object, top: object, key: str, place: str
) -> tuple[LogprobRow, ...] | None:
    """Return rows of SGLang's ``[log-probability, token id, text]`` triples.

    Args:
        emitted: one triple a position, or null.
        top: a list of triples a position, or null.
        key: the name of ``emitted``, for messages.
        place: ``file:line``.

    Raises:
        LogError: they are something else.
    """
    if emitted is None:
        return None
    if not isinstance(emitted, list):
        raise wrong(place, "an array of log-probabilities", key, emitted)
    others = top if isinstance(top, list) and len(top) == len(emitted) else [None] * len(emitted)
    rows: list[LogprobRow] = []
    for own, more in zip(emitted, others, strict=True):
        triples = [own, *(more if isinstance(more, list) else ())]
        pairs = [_triple(item, key, place) for item in triples]
        rows.append((pairs[0], *(pair for pair in pairs[1:] if pair[0] != pairs[0][0])))
    return tuple(rows)


def _triple(value: object, key: str, place: str) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) < 2 or type(value[1]) is not int:
        raise wrong(place, "[log-probability, token id, ...]", key, value)
    return value[1], _number(value[0], key, place)


def _row(value: object, key: str, place: str) -> LogprobRow:
    if not isinstance(value, dict):
        return (("", _number(value, key, place)),)
    own = (_token(value, key, place), _number(value.get("logprob"), key, place))
    top = value.get("top_logprobs") or []
    if not isinstance(top, list) or not all(isinstance(item, dict) for item in top):
        raise wrong(place, "an array of objects", "top_logprobs", top)
    others = ((_token(item, key, place), _number(item.get("logprob"), key, place)) for item in top)
    return (own, *(other for other in others if other[0] != own[0]))


def _completion_rows(value: dict[str, object], key: str, place: str) -> tuple[LogprobRow, ...]:
    tokens, numbers, tops = (
        value.get(name) for name in ("tokens", "token_logprobs", "top_logprobs")
    )
    if not isinstance(tokens, list) or not isinstance(numbers, list) or len(tokens) != len(numbers):
        raise LogError(
            place,
            "wrong field",
            f'expected "tokens" and "token_logprobs" of one length in "{key}", '
            f"got {kind(tokens)} and {kind(numbers)}",
        )
    others = tops if isinstance(tops, list) and len(tops) == len(tokens) else [None] * len(tokens)
    rows: list[LogprobRow] = []
    for token, number, more in zip(tokens, numbers, others, strict=True):
        own = _token({"token": token}, key, place)
        pairs: dict[str, object] = more if isinstance(more, dict) else {}
        named = ((_as_id(name), _number(value, key, place)) for name, value in pairs.items())
        rows.append(
            ((own, _number(number, key, place)), *(pair for pair in named if pair[0] != own))
        )
    return tuple(rows)


def _token(value: dict[str, object], key: str, place: str) -> str | int:
    token = value.get("token", value.get("id"))
    if type(token) is int:
        return token
    if not isinstance(token, str):
        raise wrong(place, "a token", key, token)
    return _as_id(token)


def _as_id(token: str) -> str | int:
    digits = token.removeprefix(_ID_PREFIX)
    return int(digits) if digits != token and digits.isdigit() else token


def _number(value: object, key: str, place: str) -> float:
    number = as_float(value)
    if number is None or math.isnan(number):
        raise wrong(place, "a log-probability", key, value)
    if number > 1e-3:  # rounding aside
        raise LogError(place, "wrong field", f'expected a number <= 0 in "{key}", got {number:g}')
    return min(number, 0.0)
