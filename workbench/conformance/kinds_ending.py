"""Checks of where a text ends: inside an accepted run, at a cap, at the context's end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .contract import Fault, Feature, Kind, Outcome, Path, Request, expect, expect_true, require
from .drafters import AnswerDrafter

LENGTH = 40
BEGINNINGS = ("the cat sat, the cat sat", "x = [1, 2, 3]", "ab ab ab ab ")


def reference(path: Path, request: Request) -> Outcome:
    """Return what plain decoding gives."""
    (outcome,) = path.run([request], None)
    return outcome


def with_answer(
    path: Path, request: Request, answer: Outcome, max_nodes: int = 8, *, tail: int = 24
) -> Outcome:
    """Return what comes when the drafter knows the answer, and goes on behind its end.

    Args:
        path: under test.
        request: what is asked.
        answer: a text that begins with the right answer.
        max_nodes: most drafted tokens a step.
        tail: tokens drafted behind the known text's end.
    """
    beyond = (answer.token_ids[-1:] or [1]) * tail
    text = [*request.prompt_ids, *answer.token_ids, *beyond]
    (outcome,) = path.run([request], AnswerDrafter([text]), max_nodes)
    return outcome


def agree(path: Path, what: str, got: Outcome, token_ids: list[int], reason: str) -> None:
    """Demand that ids, text, stream, counts and log-probabilities end at the same place."""
    expect(f"{what}: tokens", token_ids, got.token_ids)
    expect(f"{what}: finish reason", reason, got.finish_reason)
    if got.streamed is not None:
        expect(f"{what}: streamed tokens", token_ids, got.streamed)
    if got.counted is not None:
        expect(f"{what}: counted tokens", len(token_ids), got.counted)
    if got.logprobs is not None:
        expect(f"{what}: log-probabilities", len(token_ids), len(got.logprobs))


def _plain(path: Path) -> Iterator[tuple[Request, Outcome]]:
    """Yield requests with their plain answers."""
    for beginning in BEGINNINGS:
        request = Request(tuple(path.encode(beginning)), LENGTH, logprobs=True)
        yield request, reference(path, request)


def _ended_inside(what: str, outcomes: list[Outcome]) -> None:
    """Demand that accepted runs were cut, or the check would have shown nothing."""
    if all(outcome.steps for outcome in outcomes):
        longest = max((a for outcome in outcomes for _, a in outcome.steps), default=0)
        expect_true(f"{what}: expected accepted runs of several tokens, got {longest}", longest > 1)


def check_eos(path: Path) -> None:
    """An end token, or one of several, inside an accepted run ends all at the same place."""
    require(path, Feature.TEXT, Feature.EOS, Feature.OWN_DRAFTER)
    outcomes = []
    for request, plain in _plain(path):
        for place in range(1, LENGTH, 7):
            token = plain.token_ids[place]
            for ends in ((token,), (token, plain.token_ids[-1], 2)):
                stop = min(plain.token_ids.index(t) for t in ends if t in plain.token_ids) + 1
                got = with_answer(path, replace(request, eos_token_ids=ends), plain)
                agree(path, f"ends {ends}", got, plain.token_ids[:stop], "eos")
                outcomes.append(got)
    _ended_inside("end tokens", outcomes)


def check_stop_strings(path: Path) -> None:
    """A stop string inside an accepted run, or over two tokens or steps, ends the text."""
    require(path, Feature.TEXT, Feature.STOP_STRINGS, Feature.OWN_DRAFTER)
    outcomes = []
    for request, plain in _plain(path):
        for place in range(2, LENGTH - 3, 9):
            string = path.decode(plain.token_ids[place : place + 3])
            if len(string) < 2 or not string.isascii():
                continue
            stop = _first_end(path, plain.token_ids, (string,))
            for max_nodes in (1, 2, 3, 8):  # the string falls across steps at other places
                asked = replace(request, stop_strings=(string,))
                got = with_answer(path, asked, plain, max_nodes)
                _stopped(path, string, got, plain.token_ids[:stop])
                outcomes.append(got)
    _ended_inside("stop strings", outcomes)


def check_first_of_all(path: Path) -> None:
    """Of an end token, two stop strings and the cap, the earliest wins."""
    require(path, Feature.TEXT, Feature.STOP_STRINGS, Feature.EOS, Feature.OWN_DRAFTER)
    request, plain = next(_plain(path))
    early = path.decode(plain.token_ids[8:11])
    late = path.decode(plain.token_ids[20:23])
    token = plain.token_ids[30]
    asked = replace(request, stop_strings=(late, early), eos_token_ids=(token,))
    stop = _first_end(path, plain.token_ids, (late, early))
    eos = plain.token_ids.index(token) + 1
    got = with_answer(path, asked, plain)
    if eos < stop:
        agree(path, "end token first", got, plain.token_ids[:eos], "eos")
    else:
        _stopped(path, early, got, plain.token_ids[:stop])
    got = with_answer(path, replace(asked, max_new_tokens=min(stop, eos) - 1), plain)
    agree(path, "cap first", got, plain.token_ids[: min(stop, eos) - 1], "length")


def check_stop_in_prompt(path: Path) -> None:
    """A stop string that stands in the prompt alone does not end the text."""
    require(path, Feature.TEXT, Feature.STOP_STRINGS, Feature.OWN_DRAFTER)
    request, plain = next(_plain(path))
    prompt = path.decode(request.prompt_ids)
    string = prompt[:5]
    if string in path.decode(plain.token_ids):
        return
    got = with_answer(path, replace(request, stop_strings=(string,)), plain)
    agree(path, "stop string in the prompt", got, plain.token_ids, "length")


def check_caps(path: Path) -> None:
    """``max_new_tokens`` is exact, also inside an accepted run and at 1."""
    require(path, Feature.TEXT, Feature.OWN_DRAFTER)
    for request, plain in _plain(path):
        for cap in (1, 2, 3, 5, 13, 29):
            got = with_answer(path, replace(request, max_new_tokens=cap), plain)
            agree(path, f"cap {cap}", got, plain.token_ids[:cap], "length")
            for drafted, _ in got.steps:
                expect_true(
                    f"cap {cap}: expected at most {cap - 1} drafted tokens, got {drafted}",
                    drafted < cap,
                )


def check_no_tokens(path: Path) -> None:
    """A request for no tokens gets none."""
    require(path, Feature.TEXT, Feature.NO_TOKENS)
    request = Request(tuple(path.encode(BEGINNINGS[0])), 0)
    (got,) = path.run([request], "blend")
    agree(path, "cap 0", got, [], "length")


def check_context_end(path: Path) -> None:
    """At the context's end drafts shrink to the room left, and the text stops without a fault."""
    require(path, Feature.TEXT, Feature.OWN_DRAFTER)
    unit = path.encode("ab ab cd ")
    for room in (1, 2, 5, 11):
        prompt = (unit * (path.max_context // len(unit) + 1))[: path.max_context - room]
        request = Request(tuple(prompt), room + 30)
        plain = reference(path, request)
        got = with_answer(path, request, plain)
        expect(f"room for {room}: tokens", plain.token_ids, got.token_ids)
        expect(f"room for {room}: finish reason", plain.finish_reason, got.finish_reason)
        expect_true(
            f"room for {room}: expected 1 to {room + 1} tokens, got {len(got.token_ids)}",
            1 <= len(got.token_ids) <= room + 1,
        )
        left = room
        for drafted, accepted in got.steps:
            expect_true(
                f"expected at most {left} drafted tokens with room for {left}, got {drafted}",
                drafted <= left,
            )
            left -= accepted + 1


def check_eos_drafted(path: Path) -> None:
    """An end token that is the most likely one at a drafted position counts as it would undrafted.

    Before the least number of new tokens it is banned, also where a draft says otherwise.
    """
    require(path, Feature.TEXT, Feature.EOS, Feature.MIN_TOKENS, Feature.OWN_DRAFTER)
    for request, plain in _plain(path):
        for place in (3, 11, 19):
            ends = (plain.token_ids[place],)
            for least in (place + 1, place + 6, LENGTH - 4):
                asked = replace(request, eos_token_ids=ends, min_new_tokens=least)
                wanted = reference(path, asked)
                got = with_answer(path, asked, plain)
                agree(path, "banned end", got, wanted.token_ids, wanted.finish_reason)


def _first_end(path: Path, token_ids: list[int], strings: tuple[str, ...]) -> int:
    for stop in range(1, len(token_ids) + 1):
        text = path.decode(token_ids[:stop])
        if any(string in text for string in strings):
            return stop
    raise Fault(f"expected one of {strings} in the plain text, got none")


def _stopped(path: Path, string: str, got: Outcome, token_ids: list[int]) -> None:
    what = f"stop string {string!r}"
    expect(f"{what}: finish reason", "stop", got.finish_reason)
    expect(f"{what}: tokens", token_ids, got.token_ids)
    if got.streamed is not None:
        expect(f"{what}: streamed tokens", token_ids, got.streamed)
    behind = got.text.split(string, 1)[1] if string in got.text else ""
    last = path.decode(token_ids[-1:])
    expect_true(
        f"{what}: expected nothing behind it but the rest of its last token, got {behind!r}",
        len(behind) < max(len(last), 1),
    )


KINDS = (
    Kind(
        "end-in-run",
        "an end token inside an accepted run: ids, text, stream, counts and reason end there",
        (Feature.TEXT, Feature.EOS),
        check_eos,
    ),
    Kind(
        "stop-string",
        "a stop string inside a run, over two steps or two tokens: found, and nothing leaks",
        (Feature.TEXT, Feature.STOP_STRINGS),
        check_stop_strings,
    ),
    Kind(
        "earliest-end",
        "of end token, stop strings and cap the earliest wins",
        (Feature.TEXT, Feature.STOP_STRINGS),
        check_first_of_all,
    ),
    Kind(
        "stop-in-prompt",
        "a stop string in the prompt does not end the answer",
        (Feature.TEXT, Feature.STOP_STRINGS),
        check_stop_in_prompt,
    ),
    Kind("cap", "max_new_tokens is exact, also inside a run and at 1", (Feature.TEXT,), check_caps),
    Kind(
        "no-tokens",
        "a request for no tokens gets none",
        (Feature.TEXT, Feature.NO_TOKENS),
        check_no_tokens,
    ),
    Kind(
        "context-end",
        "drafts are clipped to the room left; the text ends as without drafts",
        (Feature.TEXT,),
        check_context_end,
    ),
    Kind(
        "end-drafted",
        "an end token at a drafted position counts as without drafts, banned or not",
        (Feature.TEXT, Feature.EOS),
        check_eos_drafted,
    ),
)
