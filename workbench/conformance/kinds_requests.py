"""Checks of requests: ids, tenants, faults, many at once, budgets that change."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace

from ...drafters import create_drafter
from .contract import Feature, Kind, Outcome, Path, Request, expect, expect_true, require
from .drafters import AnswerDrafter, FaultyDrafter, SpyDrafter, faults
from .kinds_ending import BEGINNINGS, LENGTH, reference


def check_same_id(path: Path) -> None:
    """A request of an id that ran before is drafted nothing of the earlier one."""
    require(path, Feature.TEXT, Feature.REQUEST_IDS, Feature.NAMESPACES, Feature.OWN_DRAFTER)
    _, mine, others = _two_texts(path)
    spy = SpyDrafter(create_drafter("blend"))
    first = Request(mine, LENGTH, request_id="r", namespace="one", abort_after=9)
    second = Request(others, LENGTH, request_id="r", namespace="two")
    (old,) = path.run([first], spy)
    (new,) = path.run([second], spy)
    _nothing_of(spy, "two", {*mine, *old.token_ids} - {*others, *new.token_ids})
    expect("tokens", reference(path, second).token_ids, new.token_ids)


def check_tenants(path: Path) -> None:
    """No proposal carries a token of one namespace into another."""
    require(path, Feature.TEXT, Feature.NAMESPACES, Feature.OWN_DRAFTER)
    _, mine, others = _two_texts(path)
    for name in ("ngram", "suffix", "edit", "blend"):
        spy = SpyDrafter(create_drafter(name))
        told = path.run([Request(mine, LENGTH, namespace="one")], spy)[0].token_ids
        heard: list[int] = []
        for _ in range(2):
            heard = path.run([Request(others, LENGTH, namespace="two")], spy)[0].token_ids
        _nothing_of(spy, "two", {*mine, *told} - {*others, *heard})


def check_faulty_drafters(path: Path) -> None:
    """Whatever a drafter gives, the text is unchanged; it is switched off, and that is counted."""
    require(path, Feature.TEXT, Feature.OWN_DRAFTER)
    request = Request(tuple(path.encode(BEGINNINGS[0])), LENGTH)
    plain = reference(path, request)
    text = [*request.prompt_ids, *plain.token_ids]
    for name, fault in faults(path.vocab_size).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the switch-off's own
            (got,) = path.run([request], FaultyDrafter([text], fault), 4)
        expect(f"a drafter that is {name}: tokens", plain.token_ids, got.token_ids)
        if name != "slow and wrong":
            expect(f"a drafter that is {name}: switched off", True, got.switched_off)


def check_twice(path: Path) -> None:
    """The same prompt with a fresh drafter is drafted and accepted in the same way each time."""
    require(path, Feature.TEXT, Feature.STEPS)
    for beginning in BEGINNINGS:
        request = Request(tuple(path.encode(beginning)), LENGTH)
        runs = [path.run([request], create_drafter("blend"))[0] for _ in range(2)]
        expect("drafted and accepted", runs[0].steps, runs[1].steps)
        expect("tokens", runs[0].token_ids, runs[1].token_ids)


def check_crowd(path: Path) -> None:
    """Each of 64 requests, some of which leave early, gets what it gets alone."""
    require(path, Feature.TEXT, Feature.BATCH, Feature.EXACT)
    rng = random.Random(5)
    alone: list[Outcome] = []
    crowd: list[Request] = []
    letters = [path.encode(character)[0] for character in "abcdefgh, "]
    for number in range(64):
        prompt = tuple(rng.choice(letters[: rng.randint(2, len(letters))]) for _ in range(12))
        leaves = rng.randint(1, 20) if rng.random() < 0.4 else None
        arrives = 0 if Feature.ARRIVALS in path.missing else rng.randint(0, 12)
        name = None if Feature.REQUEST_IDS in path.missing else f"crowd-{number}"
        # Distinct prompts: a path may tell requests apart by them.
        prompt = (letters[number % 8], letters[number // 8], *prompt)
        crowd.append(Request(prompt, 24, request_id=name, abort_after=leaves, arrives_at=arrives))
        alone.append(reference(path, replace(crowd[-1], arrives_at=0)))
    for request, wanted, got in zip(crowd, alone, path.run(crowd, "blend"), strict=True):
        if request.abort_after is None:
            expect(f"tokens after {request.prompt_ids}", wanted.token_ids, got.token_ids)
        else:  # how much comes after the caller has left is the path's own matter
            least = request.abort_after
            expect("tokens before leaving", wanted.token_ids[:least], got.token_ids[:least])


def check_preemption(path: Path) -> None:
    """A request that is put aside for want of memory, and resumed, goes on as if alone."""
    require(path, Feature.TEXT, Feature.PREEMPTION, Feature.EXACT)
    unit = path.encode("ab, cd; ef: ")
    crowd = []
    for number in range(12):
        prompt = (*path.encode("abcdefghijkl"[number]), *(unit * 12)[: 60 + 3 * number])
        crowd.append(Request(prompt, 2 * LENGTH, arrives_at=number))
    alone = [reference(path, replace(request, arrives_at=0)) for request in crowd]
    outcomes = path.run(crowd, "blend")
    expect_true(
        "expected requests that are put aside, got none",
        any(outcome.preemptions for outcome in outcomes),
    )
    for number, (wanted, got) in enumerate(zip(alone, outcomes, strict=True)):
        expect(f"tokens of request {number}", wanted.token_ids, got.token_ids)
        expect(f"request {number} switched off", False, got.switched_off)


def check_prompts(path: Path) -> None:
    """An empty prompt is refused or served; prompts of one and of equal tokens are served right."""
    require(path, Feature.TEXT, Feature.EXACT)
    (token,) = path.encode("a")
    for prompt in ((token,), (token,) * 100, (token, token)):
        request = Request(prompt, LENGTH)
        plain = reference(path, request)
        (got,) = path.run([request], "blend")
        expect(f"{len(prompt)} equal tokens", plain.token_ids, got.token_ids)
    outcomes: list[list[int] | str] = []
    for drafter in (None, "blend"):
        try:
            outcomes.append(path.run([Request((), 5)], drafter)[0].token_ids)
        except ValueError as refusal:
            outcomes.append(str(refusal))
    expect("the empty prompt", outcomes[0], outcomes[1])
    expect_true("expected a message about the empty prompt", bool(outcomes[0]))


def check_budget_changes(path: Path) -> None:
    """With a node budget of 0 nothing is drafted; back at more, drafting goes on as before."""
    require(path, Feature.TEXT, Feature.STEPS, Feature.OWN_DRAFTER)
    request = Request(tuple(path.encode(BEGINNINGS[2])), LENGTH)
    plain = reference(path, request)
    drafter = AnswerDrafter([[*request.prompt_ids, *plain.token_ids]])
    counts = []
    for max_nodes in (8, 0, 1, 8):
        (got,) = path.run([request], drafter, max_nodes)
        expect(f"budget {max_nodes}: tokens", plain.token_ids, got.token_ids)
        most = max((drafted for drafted, _ in got.steps), default=0)
        expect_true(f"expected at most {max_nodes} drafted tokens, got {most}", most <= max_nodes)
        counts.append(got.accepted)
    expect("accepted tokens without a budget", 0, counts[1])
    expect("accepted tokens before and after", counts[0], counts[3])
    expect_true("expected accepted tokens with a budget, got none", counts[0] > 0)


def _two_texts(path: Path) -> tuple[Request, tuple[int, ...], tuple[int, ...]]:
    """Return a request and two prompts without a common token."""
    mine = tuple(path.encode("abcabc abcabc abcabc"))
    others = tuple(path.encode("xyz:xyz:xyz:xyz:xyz"))
    shared = {*mine} & {*others}
    expect("tokens that both prompts have", set(), shared)
    return Request(mine, LENGTH), mine, others


def _nothing_of(spy: SpyDrafter, namespace: str, foreign: set[int]) -> None:
    leaked = spy.tokens(namespace) & foreign
    expect(f"foreign tokens proposed in namespace {namespace!r} by {spy.name}", set(), leaked)
    expect_true("expected proposals to look at, got none", bool(spy.proposals))


KINDS = (
    Kind(
        "same-id",
        "a request whose id ran before is drafted nothing of the old one",
        (Feature.TEXT, Feature.REQUEST_IDS, Feature.NAMESPACES),
        check_same_id,
    ),
    Kind(
        "tenants",
        "no proposal carries one namespace's tokens into another",
        (Feature.TEXT, Feature.NAMESPACES),
        check_tenants,
    ),
    Kind(
        "faulty-drafter",
        "too long, outside the vocabulary, wrong type, exception, slow: text unchanged, counted",
        (Feature.TEXT, Feature.OWN_DRAFTER),
        check_faulty_drafters,
    ),
    Kind(
        "twice",
        "the same prompt twice is drafted and accepted alike",
        (Feature.TEXT, Feature.STEPS),
        check_twice,
    ),
    Kind(
        "crowd",
        "64 requests that come and leave get what each gets alone",
        (Feature.TEXT, Feature.BATCH, Feature.EXACT),
        check_crowd,
    ),
    Kind(
        "preemption",
        "a request that is put aside and resumed goes on as if alone",
        (Feature.TEXT, Feature.BATCH, Feature.PREEMPTION),
        check_preemption,
    ),
    Kind(
        "prompts",
        "empty, one token, one token repeated: right, or refused alike with and without drafts",
        (Feature.TEXT,),
        check_prompts,
    ),
    Kind(
        "budget",
        "a node budget of 0 is obeyed, and drafting comes back",
        (Feature.TEXT, Feature.STEPS),
        check_budget_changes,
    ),
)
