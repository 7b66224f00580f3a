"""Checks of which token is chosen: processors, log-probabilities, grammars, rounding."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from ...drafters import Drafter
from .contract import (
    Fault,
    Feature,
    Kind,
    MeetsRecurrent,
    Outcome,
    Path,
    Request,
    Rounds,
    Skipped,
    expect,
    expect_true,
    require,
)
from .drafters import AnswerDrafter
from .kinds_ending import BEGINNINGS, LENGTH, reference, with_answer
from .pattern import LIST

_TOLERANCE = 1e-4  # float32 rounding of a log-probability over other batch shapes
_MOST_TIED_GAP = 4.0  # spacings of bfloat16: sums over other shapes differ by a few
_SETTINGS: tuple[tuple[Feature, dict[str, object]], ...] = (
    (Feature.TEXT, {}),
    (Feature.TEXT, {"temperature": 0.7, "top_k": 8}),
    (Feature.TEXT, {"temperature": 1.3, "top_p": 0.8}),
    (Feature.MIN_P, {"min_p": 0.05}),
    (Feature.REPETITION_PENALTY, {"repetition_penalty": 1.4}),
    (Feature.FREQUENCY_PENALTY, {"frequency_penalty": 0.6, "presence_penalty": 0.4}),
    (Feature.LOGIT_BIAS, {"sequence_bias": {(5,): 2.0, (9,): -3.0}}),
    (Feature.BAD_WORDS, {"bad_words_ids": [[3], [4, 7], [8, 8]]}),
)


def check_same_tokens(path: Path) -> None:
    """Greedy text with drafts is that without, for each drafter and prompt."""
    require(path, Feature.TEXT, Feature.EXACT)
    for beginning in (*BEGINNINGS, "a", "a" * 60):
        request = Request(tuple(path.encode(beginning)), LENGTH)
        plain = reference(path, request)
        for drafter in ("ngram", "suffix", "edit", "blend"):
            (got,) = path.run([request], drafter)
            expect(f"{drafter} after {beginning[:20]!r}", plain.token_ids, got.token_ids)


def check_processors(path: Path) -> None:
    """Penalties, min-p, bias and bad words see each token of the history once."""
    require(path, Feature.TEXT, Feature.EXACT)
    seeds = (None,) if Feature.SEED in path.missing else (None, 3, 4)
    if seeds == (None,) and all(f in path.missing for f, _ in _SETTINGS if f != Feature.TEXT):
        require(path, *(feature for feature, _ in _SETTINGS))
    for feature, options in _SETTINGS:
        if feature in path.missing:
            continue
        for seed in seeds:
            request = Request(
                tuple(path.encode(BEGINNINGS[0])),
                LENGTH,
                seed=seed,
                options=tuple(_fitting(options, seed)),
            )
            plain = reference(path, request)
            drafters: list[Drafter | str] = ["blend"]
            if Feature.OWN_DRAFTER not in path.missing:
                drafters.append(AnswerDrafter([[*request.prompt_ids, *plain.token_ids]]))
            for drafter in drafters:
                (got,) = path.run([request], drafter)
                expect(f"{options} with seed {seed}", plain.token_ids, got.token_ids)


def check_logprobs(path: Path) -> None:
    """Log-probabilities are those of plain decoding, and none is missing or zero."""
    require(path, Feature.TEXT, Feature.LOGPROBS)
    for beginning in BEGINNINGS:
        request = Request(tuple(path.encode(beginning)), LENGTH, logprobs=True)
        plain = reference(path, request)
        got = (
            with_answer(path, request, plain)
            if Feature.OWN_DRAFTER not in path.missing
            else path.run([request], "blend")[0]
        )
        expect("tokens", plain.token_ids, got.token_ids)
        if plain.logprobs is None or got.logprobs is None:
            raise Fault("expected log-probabilities, got none")
        expect("their number", len(plain.token_ids), len(got.logprobs))
        for place, (wanted, value) in enumerate(zip(plain.logprobs, got.logprobs, strict=True)):
            expect_true(
                f"log-probability {place}: expected {wanted:.6f}, got {value:.6f}",
                math.isclose(wanted, value, abs_tol=_TOLERANCE),
            )


def check_grammar(path: Path) -> None:
    """A text held to a pattern follows it, with drafts that break it as without."""
    require(path, Feature.TEXT, Feature.GRAMMAR)
    for beginning in BEGINNINGS:
        request = Request(tuple(path.encode(beginning)), LENGTH, pattern=LIST)
        plain = reference(path, request)
        got = path.run([request], "blend")[0]
        expect("tokens under a grammar", plain.token_ids, got.token_ids)
        expect_true(
            f"expected a text of the pattern {LIST.regex()!r}, got {got.text!r}",
            re.fullmatch(LIST.regex(), got.text) is not None,
        )
        if Feature.OWN_DRAFTER in path.missing:
            continue
        # The drafter says what the model would say without the grammar: it must be pruned.
        free = reference(path, replace(request, pattern=None))
        got = with_answer(path, request, free)
        expect("tokens with drafts that break the grammar", plain.token_ids, got.token_ids)
        got = with_answer(path, request, plain)
        expect("tokens with drafts that keep the grammar", plain.token_ids, got.token_ids)


def check_reasoning(path: Path) -> None:
    """A grammar that begins behind a token binds from there on, also inside an accepted run."""
    require(path, Feature.TEXT, Feature.REASONING, Feature.OWN_DRAFTER)
    longest = -1
    for beginning in BEGINNINGS:
        request = Request(tuple(path.encode(beginning)), LENGTH)
        free = reference(path, request)
        switch = _first_new_token(path, request, free)
        if switch is None:
            continue
        longest = max(longest, _switched_on(path, request, free, switch))
    if longest < 0:
        raise Skipped("the model's texts hold no token that could end a reasoning")
    expect_true(f"expected accepted runs of several tokens, got {longest}", longest > 1)


def _switched_on(path: Path, request: Request, free: Outcome, switch: int) -> int:
    """Hold a text to a pattern behind its token ``switch``; return the longest accepted run."""
    num_free = switch + 1
    asked = replace(
        request,
        max_new_tokens=num_free + LENGTH,
        pattern=LIST,
        pattern_after=free.token_ids[switch],
    )
    plain = reference(path, asked)
    expect("tokens up to the switch", free.token_ids[:num_free], plain.token_ids[:num_free])
    bound = path.decode(plain.token_ids[num_free:])
    expect_true(
        f"expected {LIST.regex()!r} behind the switch, got {bound!r}",
        re.fullmatch(LIST.regex(), bound) is not None,
    )
    longest = 0
    for max_nodes in (1, 2, 3, 8):  # the switch falls on other places of a run
        for what, answer in (("keep", plain), ("break", free)):
            got = with_answer(path, asked, answer, max_nodes)
            expect(f"tokens with drafts that {what} the grammar", plain.token_ids, got.token_ids)
            longest = max([longest, *(accepted for _, accepted in got.steps)])
    return longest


def _first_new_token(path: Path, request: Request, answer: Outcome) -> int | None:
    """Return a place in the answer whose token has not come before and is not a special one."""
    seen = set(request.prompt_ids)
    for place, token in enumerate(answer.token_ids):
        if not path.decode([token]):
            return None  # an end token: with a grammar it ends the text
        if place >= 4 and token not in seen:
            return place
        seen.add(token)
    return None


def check_recurrent(path: Path) -> None:
    """A model whose state cannot be cut back is served right, or refused by name."""
    require(path, Feature.RECURRENT)
    if not isinstance(path, MeetsRecurrent):
        raise Skipped("no recurrent model can be run here")
    request = Request(tuple(path.encode(BEGINNINGS[0])), LENGTH)
    plain = path.run_recurrent(request, None)
    drafted = path.run_recurrent(request, "blend")
    for name, wanted in plain.items():
        got = drafted[name]
        if isinstance(got, str):
            expect_true(f"expected a refusal that names {name}, got {got!r}", name in got)
        elif isinstance(wanted, Outcome):
            expect(f"{name}: tokens", wanted.token_ids, got.token_ids)


def check_rounding(path: Path) -> None:
    """In half precision a text may differ at a tie of the logits, and nowhere else."""
    require(path, Feature.TEXT, Feature.ROUNDED)
    if not isinstance(path, Rounds):
        raise Skipped("this path has no half precision here")
    half = path.in_half_precision()
    for beginning in BEGINNINGS:
        request = Request(tuple(path.encode(beginning)), LENGTH)
        (plain,), (got,) = half.run([request], None), half.run([request], "blend")
        place = first_difference(plain.token_ids, got.token_ids)
        if place is None:
            continue
        first, second = plain.token_ids[place], got.token_ids[place]
        history = [*request.prompt_ids, *plain.token_ids[:place]]
        assert isinstance(half, Rounds)
        gap = half.gap(history, first, second)
        expect_true(
            f"token {place}: expected a tie within {_MOST_TIED_GAP} spacings, got a gap of {gap:g}",
            gap <= _MOST_TIED_GAP,
        )


def first_difference(first: list[int], second: list[int]) -> int | None:
    """Return the first place where two texts differ, or ``None``."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return None if len(first) == len(second) else min(len(first), len(second))


def _fitting(options: dict[str, object], seed: int | None) -> list[tuple[str, object]]:
    """Return the options that greedy decoding takes too, where it is greedy."""
    samplers = ("temperature", "top_k", "top_p", "min_p")
    return [(k, v) for k, v in options.items() if seed is not None or k not in samplers]


KINDS = (
    Kind("same-text", "greedy text is that of plain decoding", (Feature.TEXT,), check_same_tokens),
    Kind(
        "processors",
        "penalties, min-p, bias, bad words: the same tokens, each of the history counted once",
        (Feature.TEXT,),
        check_processors,
    ),
    Kind(
        "logprobs",
        "log-probabilities are those of plain decoding",
        (Feature.TEXT, Feature.LOGPROBS),
        check_logprobs,
    ),
    Kind(
        "grammar",
        "drafts are pruned, state is rolled back, the text follows the grammar",
        (Feature.TEXT, Feature.GRAMMAR),
        check_grammar,
    ),
    Kind(
        "reasoning",
        "the end of the reasoning inside a run switches the grammar on token by token",
        (Feature.TEXT, Feature.REASONING),
        check_reasoning,
    ),
    Kind(
        "recurrent",
        "recurrent and hybrid models: right, or refused by name",
        (Feature.RECURRENT,),
        check_recurrent,
    ),
    Kind(
        "rounding",
        "in half precision texts part at ties of the logits only",
        (Feature.TEXT, Feature.ROUNDED),
        check_rounding,
    ),
)
