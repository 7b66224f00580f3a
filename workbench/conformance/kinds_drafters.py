"""Checks of the drafter contract itself, of every named drafter, without a model or an engine.

Drafters are imported where they are used: vLLM 0.32 does not start on a CPU in a process that has
loaded Numba before.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...drafters import CandidateTree, Drafter, ExtendsInBatches, create_drafter
from ...drafters.tree import accepted_path
from .contract import Fault, expect, expect_true

RETRIEVAL = ("ngram", "suffix", "edit", "blend")
IN_BATCHES = ("ngram", "blend")
"""These take the tokens of several requests in one call."""
LEARNING = ("phrase", "recycling", "lookahead", "stochastic_ngram")
"""These draft from what they were given or from what a target said, and not from the text alone."""
_LINE = [5, 6, 7, 8, 9, 10, 11, 12]
_FORGOTTEN = [40, 41, 42, 43]


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """One kind of fault of a drafter.

    Attributes:
        name: short, for tables and ``--only``.
        right: the right behaviour, in one sentence.
        check: takes a drafter's name; raises ``Fault``.
        drafters: the names of those that owe it.
    """

    name: str
    right: str
    check: Callable[[str], None]
    drafters: tuple[str, ...] = (*RETRIEVAL, *LEARNING)


def propose(drafter: Drafter, request: str, most: int = 16) -> CandidateTree:
    """Return a valid proposal for one request."""
    (tree,) = drafter.propose([request], most, most)
    tree.validate()
    return tree


def accepted_shares(drafter: Drafter, request: str, text: Sequence[int]) -> tuple[int, int]:
    """Let a request's text grow to ``text``; return how much was accepted in how many steps."""
    accepted = steps = place = 0
    target = np.asarray(text, np.int32)
    while place < target.size:
        run = accepted_path(propose(drafter, request), target[place:]).size
        stop = min(place + run + 1, target.size)
        drafter.extend(request, target[place:stop])
        accepted += min(run, stop - place)
        steps += 1
        place = stop
    return accepted, steps


def check_truncation(name: str) -> None:
    """After a truncation nothing of what was forgotten is proposed, and drafting goes on."""
    drafter = create_drafter(name)
    drafter.start("r", _LINE * 3)
    drafter.extend("r", [*_FORGOTTEN, 5, *_FORGOTTEN, 5])
    drafter.truncate("r", len(_LINE) * 3)
    drafter.extend("r", [5])
    expect("forgotten tokens", set(), {*propose(drafter, "r").token_ids.tolist()} & {*_FORGOTTEN})
    drafter.truncate("r", 0)
    drafter.extend("r", [5, 6])
    propose(drafter, "r")
    drafter.truncate("r", 10**6)
    accepted, _ = accepted_shares(drafter, "r", _LINE * 6)
    expect_true(f"expected accepted tokens behind truncations, got {accepted}", accepted > 16)


def check_placeholders(name: str) -> None:
    """Negative ids are never proposed and never matched, and text behind them is drafted."""
    drafter = create_drafter(name)
    image = [-1, -1, -200, -1]
    drafter.start("r", [*image, *_LINE, *image, *_LINE, -1])
    tree = propose(drafter, "r")
    expect_true(
        f"expected no negative ids, got {tree.token_ids}", bool((tree.token_ids >= 0).all())
    )
    drafter.extend("r", image)
    expect("nodes directly behind a placeholder", 0, propose(drafter, "r").num_nodes)
    accepted, _ = accepted_shares(drafter, "r", _LINE * 4)
    expect_true(
        f"expected accepted tokens behind placeholders, got {accepted}",
        accepted > 8 or name not in RETRIEVAL,
    )


def check_unknown_requests(name: str) -> None:
    """An unknown or stopped request has an empty tree, and calls about it do nothing."""
    drafter = create_drafter(name)
    drafter.extend("nobody", [1])
    drafter.truncate("nobody", 0)
    drafter.stop("nobody")
    expect("nodes for an unknown request", 0, propose(drafter, "nobody").num_nodes)
    drafter.start("r", _LINE * 3)
    drafter.stop("r")
    drafter.extend("r", [5])
    expect("nodes for a stopped request", 0, propose(drafter, "r").num_nodes)


def check_same_id(name: str) -> None:
    """A request started again under its id has none of its earlier past, in its own namespace."""
    drafter = create_drafter(name)
    drafter.start("r", [*_FORGOTTEN, 5, 6] * 3, "one")
    for namespace, stop_first in (("two", False), ("three", True)):
        if stop_first:
            drafter.stop("r")
        drafter.start("r", [*_LINE, *_LINE, 5], namespace)
        foreign = {*propose(drafter, "r").token_ids.tolist()} & {*_FORGOTTEN}
        expect("tokens of the earlier request", set(), foreign)


def check_tenants(name: str) -> None:
    """Two namespaces that interleave see nothing of each other, running or stopped."""
    drafter = create_drafter(name)
    drafter.start("a", _FORGOTTEN * 4, "one")
    drafter.start("b", [*_LINE, *_FORGOTTEN[:2]], "two")
    foreign = {*_FORGOTTEN[2:]}
    for _ in range(2):
        proposed = {*propose(drafter, "b").token_ids.tolist()}
        expect("tokens of another namespace", set(), proposed & foreign)
        drafter.extend("a", _FORGOTTEN * 4)
        drafter.stop("a")  # a finished request's text stays searchable, in its namespace only


def check_silence(name: str) -> None:
    """After a time without proposals acceptance is what it would have been."""
    rng = np.random.default_rng(3)
    block = rng.integers(5, 60, 40).tolist()
    before = [token for _ in range(6) for token in (*block, int(rng.integers(60, 90)))]
    after = [token for _ in range(6) for token in (*block, int(rng.integers(60, 90)))]
    always, silent = create_drafter(name), create_drafter(name)
    for drafter in (always, silent):
        drafter.start("r", block)
    accepted_shares(always, "r", before)
    silent.extend("r", before)
    wanted, got = (accepted_shares(drafter, "r", after)[0] for drafter in (always, silent))
    expect_true(f"expected about {wanted} accepted tokens, got {got}", got >= 0.95 * wanted > 100)


def check_batches(name: str) -> None:
    """What several requests have emitted leaves in one call what it leaves request by request."""
    together, in_turn = create_drafter(name), create_drafter(name)
    if not isinstance(together, ExtendsInBatches):
        raise Fault(f"expected {name} to have extend_batch, got none")
    rng = np.random.default_rng(5)
    requests = ["a", "b", "c", "d", "e"]
    for drafter in (together, in_turn):
        for request in requests:
            drafter.start(request, _LINE * 3)
    for _ in range(40):
        texts = [rng.integers(-1, 6, rng.integers(0, 7)) for _ in requests]
        together.extend_batch(requests, texts)
        for request, text in zip(requests, texts, strict=True):
            in_turn.extend(request, text)
        wanted, got = (d.propose(requests, 8, 8) for d in (in_turn, together))
        expect(
            "token ids after one call",
            [tree.token_ids.tolist() for tree in wanted],
            [tree.token_ids.tolist() for tree in got],
        )


def check_budgets(name: str) -> None:
    """Every limit of nodes and depth is obeyed, 0 and 1 too; a negative one is refused."""
    drafter = create_drafter(name)
    drafter.start("r", _LINE * 4)
    for most_nodes in (0, 1, 2, 7, 64, 300):
        for most_depth in (0, 1, 2, 64):
            (tree,) = drafter.propose(["r"], most_nodes, most_depth)
            tree.validate()
            depth = int(tree.depths().max()) if tree.num_nodes else 0
            expect_true(
                f"expected at most {most_nodes} nodes and depth {most_depth}, got "
                f"{tree.num_nodes} and {depth}",
                tree.num_nodes <= most_nodes and depth <= most_depth,
            )
    try:
        drafter.propose(["r"], -1, 4)
    except ValueError:
        return
    raise Fault("expected a ValueError for -1 nodes, got none")


def check_repeatable(name: str) -> None:
    """The same calls give the same trees: no clock, no random number, no address decides."""
    trees: list[list[list[int]]] = []
    text = [int(token) for token in np.random.default_rng(9).integers(0, 5, 400)]
    for _ in range(2):
        drafter = create_drafter(name)
        drafter.start("r", text[:100])
        seen = []
        for token in text[100:]:
            tree = propose(drafter, "r")
            seen.append([tree.token_ids.tolist(), tree.parents.tolist(), tree.probs.tolist()])
            drafter.extend("r", [token])
        trees.append(seen)
    expect("trees of the second run", trees[0], trees[1])


def check_long_prompts(name: str) -> None:
    """A prompt of 100,000 tokens is drafted from, and a proposal costs about what it costs else."""
    rng = np.random.default_rng(1)
    medians = []
    for length in (1_000, 100_000):
        text = rng.integers(0, 5_000, length)
        drafter = create_drafter(name)
        drafter.start("r", text)
        for _ in range(200):  # what is indexed in slices catches up
            propose(drafter, "r")
        times = []
        middle = length // 2
        drafter.extend("r", text[middle : middle + 8])  # here the text begins to repeat itself
        for place in range(middle + 8, middle + 208):
            drafter.extend("r", text[place : place + 1])
            begin = time.perf_counter()
            first = propose(drafter, "r").token_ids[:1].tolist()
            times.append(time.perf_counter() - begin)
            expect(f"first token behind {length}", [int(text[place + 1])], first)
        medians.append(statistics.median(times))
    expect_true(
        f"expected about equal times at 1,000 and at 100,000 tokens, got a factor of "
        f"{medians[1] / medians[0]:.1f}",
        medians[1] < 8 * medians[0],
    )


def check_bounded(name: str) -> None:
    """Many requests one after the other take no more memory than the pool may have."""
    drafter = _small(name)
    rng = np.random.default_rng(2)
    tracemalloc.start()
    try:
        sizes = []
        for round_ in range(3):
            for number in range(150):
                request = f"{round_}-{number}"
                drafter.start(request, rng.integers(0, 500, 300), namespace=f"n{number % 7}")
                drafter.propose([request], 8, 8)
                drafter.extend(request, rng.integers(0, 500, 100))
                drafter.stop(request)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    growth = sizes[2] - sizes[1]
    expect_true(f"expected no growth after the pool was full, got {growth} bytes", growth < 1 << 16)


def check_refused_settings(name: str) -> None:
    """Settings that cannot work are refused when they are made, never later."""
    from ...drafters.edit import EditConfig
    from ...drafters.ngram import NgramConfig
    from ...drafters.suffix import SuffixConfig

    wrong: dict[str, list[Callable[[], object]]] = {
        "ngram": [
            lambda: NgramConfig(capacity=0),
            lambda: NgramConfig(max_places=0),
            lambda: NgramConfig(page_size=3),
        ],
        "suffix": [lambda: SuffixConfig(max_bytes=0), lambda: SuffixConfig(max_context=0)],
        "edit": [lambda: EditConfig(capacity=0), lambda: EditConfig(min_prob=0)],
    }
    for make in wrong.get(name, []):
        try:
            make()
        except ValueError:
            continue
        raise Fault(f"expected a ValueError for a setting of {name}, got none")


def _small(name: str) -> Drafter:
    """Return a drafter whose pool is full soon."""
    from ...drafters.blend import BlendDrafter
    from ...drafters.edit import EditDrafter
    from ...drafters.ngram import NgramConfig, NgramDrafter
    from ...drafters.suffix import SuffixConfig, SuffixDrafter

    made: dict[str, Callable[[], Drafter]] = {
        "ngram": lambda: NgramDrafter(NgramConfig(capacity=1 << 13)),
        "suffix": lambda: SuffixDrafter(
            SuffixConfig(max_bytes=1 << 20, max_namespace_bytes=1 << 20)
        ),
        "edit": EditDrafter,
    }
    if name == "blend":
        return BlendDrafter([make() for make in made.values()])
    return made[name]() if name in made else create_drafter(name)


KINDS = (
    DrafterKind("truncation", "the pool follows a truncation", check_truncation, RETRIEVAL),
    DrafterKind("placeholders", "negative ids: never matched or proposed", check_placeholders),
    DrafterKind("unknown-request", "an unknown request has an empty tree", check_unknown_requests),
    DrafterKind("same-id", "an id started again has no past", check_same_id),
    DrafterKind("tenants", "namespaces see nothing of each other", check_tenants),
    DrafterKind(
        "silence",
        "acceptance after a time off is what it would have been",
        check_silence,
        RETRIEVAL,
    ),
    DrafterKind(
        "batches", "one call for several requests is as calls in turn", check_batches, IN_BATCHES
    ),
    DrafterKind("budgets", "every limit is obeyed, 0 and 1 too", check_budgets),
    DrafterKind("repeatable", "the same calls give the same trees", check_repeatable),
    DrafterKind(
        "long-prompt", "100,000 tokens: right, and about as fast", check_long_prompts, RETRIEVAL
    ),
    DrafterKind("bounded", "memory stays within its bound", check_bounded),
    DrafterKind("settings", "impossible settings are refused at the start", check_refused_settings),
)
