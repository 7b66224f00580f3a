"""The n-gram drafter, against a plain oracle and by what must hold of every proposal."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_oracles import Path, PlainNgram

from freedraft.drafters import CandidateTree, Drafter
from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.ngram import _draft_kernels as drafting
from freedraft.drafters.ngram import _ingest_kernels as ingester
from freedraft.drafters.ngram import _pool_kernels as pool
from freedraft.drafters.ngram import _tree_kernels as grower

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
MANY = settings(max_examples=1000 if COMPILED else 150, deadline=None)
SMALL = NgramConfig(capacity=256, page_size=8, max_requests=8)
EXACT = NgramConfig(
    levels=(8, 4, 2, 1),
    max_visits=(1000, 1000, 1000, 1000),
    max_skip_visits=1000,
    max_match=24,
    max_places=1024,
    capacity=4096,
    page_size=4,
    max_requests=8,
)
TOKENS = st.lists(st.integers(-1, 5), max_size=16)
IDS = st.integers(0, 2)
NAMESPACES = st.sampled_from(["x", "y"])


def paths_of(tree: CandidateTree) -> dict[Path, float]:
    """The tree's paths and their probabilities."""
    return {
        tuple(tree.token_ids[tree.path(node)].tolist()): float(tree.probs[node])
        for node in range(tree.num_nodes)
    }


def chain_of(drafter: NgramDrafter, request_id: object, max_nodes: int = 8) -> list[int]:
    """The best chain of one request's proposal, which must be a valid tree."""
    (tree,) = drafter.propose([request_id], max_nodes, max_nodes)
    tree.validate()
    return tree.best_chain().token_ids.tolist()


def test_is_a_drafter_whose_kernels_are_compiled_at_construction() -> None:
    drafter = NgramDrafter(SMALL)
    assert isinstance(drafter, Drafter)
    assert drafter.name == "ngram"
    if COMPILED:
        for kernel in (ingester.append_alone, ingester.append_all, drafting.draft, pool.truncate):
            assert len(kernel.signatures) == 1


def test_proposes_what_followed_the_tail() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 9, 1, 2])
    assert chain_of(drafter, "a", 3) == [3, 4, 5]


def test_goes_on_periodically_past_its_own_end() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [7, 1, 2, 1, 2])
    assert chain_of(drafter, "a", 6)[:4] == [1, 2, 1, 2]


def test_goes_on_behind_a_replaced_and_an_inserted_token() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 6, 1, 2, 3, 9])
    (tree,) = drafter.propose(["a"], 8, 2)
    assert {(4, 5), (5, 6)} <= paths_of(tree).keys()


@pytest.mark.parametrize(("match", "most"), [(5, 17), (6, 2), (23, 2), (30, 2)])
def test_beside_a_good_match_few_weak_places_count(match: int, most: int) -> None:
    drafter = NgramDrafter(NgramConfig(capacity=1 << 14))
    long = list(range(100, 130))
    weak = [token for i in range(16) for token in (129, 200 + i)]
    drafter.start("a", [*long, 300, *weak, -1, *long[30 - match :]])
    (tree,) = drafter.propose(["a"], 32, 1)
    assert tree.token_ids[0] == 300
    assert 1 < tree.num_nodes <= most


def test_learns_from_finished_requests_of_its_namespace_alone() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4], namespace="x")
    drafter.stop("a")
    drafter.start("a", [1, 2], namespace="x")
    drafter.start("b", [1, 2], namespace="y")
    assert chain_of(drafter, "a")[:2] == [3, 4]
    assert chain_of(drafter, "b") == []


def test_keeps_to_its_own_text_when_told_so() -> None:
    config = NgramConfig(capacity=256, page_size=8, search_earlier=False)
    drafter = NgramDrafter(config)
    drafter.start("a", [1, 2, 3])
    drafter.stop("a")
    drafter.start("a", [1, 2])
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [4, 1, 2])
    assert chain_of(drafter, "a")[:1] == [4]


def test_a_request_started_again_forgets_what_it_was() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3], namespace="x")
    drafter.start("a", [1, 2], namespace="y")
    assert chain_of(drafter, "a") == []
    drafter.truncate("a", 1)
    drafter.extend("a", [5, 1])
    assert chain_of(drafter, "a")[:1] == [5]


def test_namespaces_without_text_are_forgotten() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("running", [1], namespace="kept")
    kept = drafter._spaces["kept"]
    for number in range(1500):
        drafter.start("a", [1, 2], namespace=str(number))
    assert len(drafter._spaces) <= 1024
    assert drafter._spaces["kept"] == kept


def test_namespaces_whose_chains_collide_stay_apart() -> None:
    config = NgramConfig(levels=(1,), max_visits=(4,), capacity=4096, page_size=1)
    drafter = NgramDrafter(config)
    for number in range(1500):  # the same token in nearly as many namespaces as there are buckets
        drafter.start("a", [1, 2], namespace=str(number))
    for number in range(500):
        drafter.start("b", [1], namespace=f"{number}?")
        assert chain_of(drafter, "b") == []


def test_unknown_request_is_ignored() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.extend("a", [1])
    drafter.truncate("a", 0)
    drafter.stop("a")
    assert drafter.propose(["a"], 4, 4)[0].num_nodes == 0


def test_placeholders_neither_match_nor_are_proposed() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", np.array([1, 2, -1, -1, 5, 1, 2]))
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [-1])
    assert chain_of(drafter, "a") == []


def test_trees_stay_as_they_were_after_the_next_proposal() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 1])
    (tree,) = drafter.propose(["a"], 4, 4)
    before = paths_of(tree)
    drafter.extend("a", [3, 4])
    drafter.propose(["a"], 4, 4)
    assert paths_of(tree) == before


def test_trees_stay_as_they_were_whatever_is_asked_for_later() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 6, 7, 8, 1])
    trees = []
    for number in range(300):  # more than the room that is made at once
        max_nodes = 1 + number % 7
        (tree,) = drafter.propose(["a"], max_nodes, 7)
        trees.append((tree, max_nodes))
    for tree, max_nodes in trees:
        assert tree.token_ids.tolist() == [2, 3, 4, 5, 6, 7, 8][:max_nodes]


def test_truncated_text_is_gone_and_what_stood_before_it_stays() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 9, 9, 9, 4])
    drafter.truncate("a", 3)
    drafter.extend("a", [7, 4])
    assert chain_of(drafter, "a") == []
    drafter.start("b", [1, 2, 3, 1, 2])
    drafter.truncate("b", 4)
    drafter.extend("b", [2])
    assert chain_of(drafter, "b")[:2] == [3, 1]


def test_a_draft_is_settled_by_the_tokens_that_follow_it() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 6, 7, 8, 1])
    counts = drafter._calibration.counts

    def outcomes_after(new: list[int]) -> float:
        before = counts[..., 0].sum()
        drafter.extend("a", new)
        return float(counts[..., 0].sum() - before)

    assert outcomes_after([2]) == 0  # nothing was drafted
    drafter.propose(["a"], 3, 3)
    assert outcomes_after([3]) == pytest.approx(1)  # what lies deeper is not known
    assert outcomes_after([4]) == 0
    drafter.propose(["a"], 3, 3)
    assert outcomes_after([5, 9]) == pytest.approx(3)
    drafter.extend("a", [-1, 1, 2])
    drafter.propose(["a"], 3, 3)
    drafter.truncate("a", 2)
    assert outcomes_after([9]) == 0


@given(probs=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7, 0.9]), min_size=1, max_size=20))
def test_the_order_begins_with_the_most_probable_group_and_the_older_of_equals(
    probs: list[float],
) -> None:
    first = 3  # where the groups begin, in the arena and among the floats
    arena = np.zeros(first + len(probs) * grower.GROUP_FIELDS, np.int32)
    floats = np.zeros(first + len(probs) * grower.SCORE_FIELDS)
    for group, prob in enumerate(probs):
        place = grower._enter(arena, first, floats, first, 0, group, group, prob)
        assert arena[first + grower.GROUP_FIELDS * place + grower.ORDER] == group
    order = arena[first + grower.ORDER :: grower.GROUP_FIELDS].tolist()
    assert order == sorted(range(len(probs)), key=lambda group: (-probs[group], group))
    keys = floats[first + grower.KEY :: grower.SCORE_FIELDS].tolist()
    assert keys == sorted(probs, reverse=True)


def test_limits_are_kept_and_none_is_a_plain_step() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 1])
    assert drafter.propose(["a"], 0, 4)[0].num_nodes == 0
    assert drafter.propose(["a"], 4, 0)[0].num_nodes == 0
    assert drafter.propose([], 4, 4) == []
    (tree,) = drafter.propose(["a"], 16, 2)
    assert tree.depths().max() == 2


def test_one_request_more_than_may_run_goes_without_drafts() -> None:
    drafter = NgramDrafter(NgramConfig(capacity=64, page_size=8, max_requests=2))
    for request_id in range(3):
        drafter.start(request_id, [1, 2, 1])
    assert [t.num_nodes > 0 for t in drafter.propose([0, 1, 2], 4, 4)] == [True, True, False]
    drafter.stop(0)
    drafter.start(2, [1, 2, 1])
    assert drafter.propose([2], 4, 4)[0].num_nodes > 0


def test_the_oldest_finished_text_makes_room_and_the_own_stays() -> None:
    drafter = NgramDrafter(NgramConfig(capacity=128, page_size=8))
    drafter.start("own", [500, 501, 502, 503])
    for first in range(10, 170, 10):  # a page each; the last one takes the first one's
        drafter.start("other", [first, first + 1, first + 2])
        drafter.stop("other")

    def known(token: int) -> bool:
        drafter.extend("own", [-1, token])
        return chain_of(drafter, "own")[:1] == [token + 1]

    assert [known(first) for first in (10, 20)] == [False, True]
    assert [known(first) for first in (150, 160)] == [True, True]
    assert known(500)


def test_a_request_that_fills_the_pool_keeps_its_latest_text() -> None:
    drafter = NgramDrafter(NgramConfig(capacity=32, page_size=8))
    drafter.start("a", np.arange(100))
    drafter.extend("a", [-1, 90])
    assert chain_of(drafter, "a", 3) == [91, 92, 93]
    drafter.extend("a", [-1, 60])
    assert chain_of(drafter, "a") == []


def test_confidence_follows_what_the_target_accepts() -> None:
    drafter = NgramDrafter(NgramConfig(capacity=1 << 16))
    drafter.start("a", [])

    def probability_after(rounds: int, first: int, right: bool) -> float:
        for token in range(first, first + 5 * rounds, 5):
            drafter.extend("a", [token, token + 1, token + 2, token + 3, -1, token, token + 1])
            (tree,) = drafter.propose(["a"], 1, 1)
            assert tree.token_ids.tolist() == [token + 2]
            drafter.extend("a", [token + 2 if right else 9_999_999])
        return float(tree.probs[0])

    low = probability_after(rounds=300, first=0, right=False)
    high = probability_after(rounds=900, first=10_000, right=True)
    assert low < 0.4
    assert high > 0.7


@pytest.mark.parametrize(
    "bad",
    [
        {"levels": (1, 2), "max_visits": (1, 1)},
        {"levels": (), "max_visits": ()},
        {"max_match": 8},
        {"max_visits": (1,)},
        {"max_skip_visits": -1},
        {"max_places": 0},
        {"max_requests": 0},
        {"page_size": 3},
        {"capacity": 64},
        {"capacity": 1 << 28},
    ],
)
def test_refuses_settings(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected .* got"):
        NgramConfig(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("visits", "seen"), [(2, {10, 11}), (3, {10, 11, 20, 21})])
def test_where_longer_matches_are_enough_as_many_short_ones_are_looked_at(
    visits: int, seen: set[int]
) -> None:
    config = NgramConfig(levels=(3, 2), max_visits=(visits, 8), max_skip_visits=0, capacity=256)
    drafter = NgramDrafter(config)
    # Two places of the last three tokens, and before them two more of the last two.
    drafter.start("a", [4, 1, 2, 20, 6, 1, 2, 21, 5, 1, 2, 10, 5, 1, 2, 11, 5, 1, 2])
    (tree,) = drafter.propose(["a"], 8, 1)
    assert set(tree.token_ids.tolist()) == seen
    if visits == 2:
        drafter.extend("a", [30, 5, 1])
        (tree,) = drafter.propose_after("a", [2], 8, 1)
        assert set(tree.token_ids.tolist()) == {11, 30}


def test_where_all_that_is_compared_agrees_three_places_are_enough() -> None:
    config = NgramConfig(levels=(3, 1), max_visits=(9, 9), max_match=4, capacity=256)
    drafter = NgramDrafter(config)
    repeated = [token for follower in (20, 21, 22, 23, 24) for token in (1, 2, 3, 4, follower)]
    drafter.start("a", [*repeated, 1, 2, 3, 4])
    (tree,) = drafter.propose(["a"], 8, 1)
    assert set(tree.token_ids.tolist()) == {22, 23, 24}
    drafter.extend("a", [9, 2, 3, 4])  # one token less agrees
    (tree,) = drafter.propose(["a"], 8, 1)
    assert set(tree.token_ids.tolist()) == {9, 20, 21, 22, 23, 24}


def test_tokens_are_those_that_were_committed_whatever_becomes_of_the_callers_array() -> None:
    drafter = NgramDrafter(SMALL)
    for request_id in "ab":
        drafter.start(request_id, [1, 2, 3, 4], namespace=request_id)
    drafter.propose(["a", "b"], 4, 4)
    committed = np.array([9, 1, 2], np.int32)
    drafter.extend("a", committed)
    committed[:] = [7, 3, 4]  # the caller uses its array again
    drafter.extend("b", committed)
    drafter.extend("b", [7, 3])
    assert chain_of(drafter, "a")[:3] == [3, 4, 9]
    assert chain_of(drafter, "b")[:3] == [4, 7, 3]


def test_extends_any_number_of_requests_in_one_call() -> None:
    drafter = NgramDrafter(NgramConfig(capacity=1 << 16, page_size=8))
    ids = list(range(300))
    for request_id in ids:
        drafter.start(request_id, [])
    texts = [np.arange(1000 * i, 1000 * i + 2 + i % 50, dtype=np.int32) for i in ids]
    drafter.extend_batch(ids, texts)
    drafter.extend_batch(ids, [[1000 * i] for i in ids])
    for request_id, tree in zip(ids, drafter.propose(ids, 1, 1), strict=True):
        assert tree.token_ids.tolist() == [1000 * request_id + 1]


ROUNDS = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 6),
            st.lists(st.integers(-1, 3), max_size=9).map(lambda tokens: tokens * 5)
            | st.lists(st.integers(-1, 3), max_size=4),
        ),
        max_size=7,
        unique_by=lambda item: item[0],
    ),
    max_size=8,
)


@MANY
@given(rounds=ROUNDS, num_pages=st.integers(1, 24), slices=st.sampled_from([None, 8]))
def test_a_call_for_several_requests_leaves_what_calls_in_turn_leave(
    rounds: list[list[tuple[int, list[int]]]], num_pages: int, slices: int | None
) -> None:
    config = NgramConfig(capacity=8 * num_pages, page_size=8, max_requests=6, slice_tokens=slices)
    together, in_turn = NgramDrafter(config), NgramDrafter(config)
    for drafter in (together, in_turn):
        for request_id in range(6):
            drafter.start(request_id, [0, 1, 2, 0, 1] * request_id, "xy"[request_id % 2])
    for texts in rounds:
        ids = [request_id for request_id, _ in texts]
        together.extend_batch(ids, [np.array(tokens, np.int32) for _, tokens in texts])
        for request_id, tokens in texts:
            in_turn.extend(request_id, tokens)
        for drafter in (together, in_turn):
            drafter.propose(ids, 6, 4)
        kept = int(together._arena[pool.ROOM_AT]) << pool.LINE_BITS
        assert np.array_equal(together._arena[:kept], in_turn._arena[:kept])


def test_a_call_for_several_requests_appends_all_or_nothing() -> None:
    drafter = NgramDrafter(SMALL)
    for request_id in ("a", "b"):
        drafter.start(request_id, [1, 2, 3])
    before = drafter._arena.copy()
    for wrong in ([[1]], [[1], [1.5]], [[1], [[1]]], [[1], [1 << 40]]):
        with pytest.raises(ValueError, match="expected"):
            drafter.extend_batch(["a", "b"], wrong)
        assert np.array_equal(drafter._arena, before)


@MANY
@given(
    texts=st.lists(st.lists(st.integers(-1, 3), max_size=24), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 4), min_size=2, max_size=2),
)
def test_a_batch_has_the_trees_that_its_requests_have_alone(
    texts: list[list[int]], cuts: list[int]
) -> None:
    together, apart = (NgramDrafter(NgramConfig(capacity=1 << 11, page_size=8)) for _ in range(2))
    ids = list(range(len(texts)))
    for drafter in (together, apart):
        for request_id, text in zip(ids, texts, strict=True):
            drafter.start(request_id, text[:8], "xy"[request_id % 2])
    at = 8
    for cut in cuts:
        alone = [apart.propose([request_id], 6, 4)[0] for request_id in ids]
        for tree, other in zip(together.propose(ids, 6, 4), alone, strict=True):
            assert tree.token_ids.tolist() == other.token_ids.tolist()
            assert tree.parents.tolist() == other.parents.tolist()
            assert tree.probs.tolist() == other.probs.tolist()
        for drafter in (together, apart):
            for request_id, text in zip(ids, texts, strict=True):
                drafter.extend(request_id, text[at : at + cut])
        at += cut


def test_refuses_bad_calls() -> None:
    drafter = NgramDrafter(SMALL)
    with pytest.raises(ValueError, match="expected token ids of an integer"):
        drafter.start("a", [1.5])
    drafter.start("a", [1])
    with pytest.raises(ValueError, match="expected length >= 0, got -1"):
        drafter.truncate("a", -1)
    with pytest.raises(ValueError, match="expected max_nodes >= 0"):
        drafter.propose(["a"], -1, 1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), IDS, TOKENS, NAMESPACES),
        st.tuples(st.just("extend"), IDS, TOKENS),
        st.tuples(st.just("copy"), IDS, st.integers(0, 30), st.integers(1, 24)),
        st.tuples(st.just("copy"), IDS, st.integers(0, 30), st.integers(1, 24)),
        st.tuples(st.just("accept"), IDS, st.integers(0, 5), st.integers(-1, 5)),
        st.tuples(st.just("accept"), IDS, st.integers(0, 5), st.integers(-1, 5)),
        st.tuples(st.just("propose"), st.lists(IDS, min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("stop"), IDS),
    ),
    max_size=25,
)


@MANY
@given(
    steps=STEPS,
    max_nodes=st.integers(1, 12),
    max_depth=st.integers(1, 5),
    config=st.sampled_from([EXACT, replace(EXACT, max_match=8)]),
)
def test_proposes_the_oracles_best_paths(
    steps: list[tuple[object, ...]], max_nodes: int, max_depth: int, config: NgramConfig
) -> None:
    check_against_oracle(steps, max_nodes, max_depth, config)


@pytest.mark.parametrize("match", [3, 4, 15, 16, 17])
def test_agrees_with_the_oracle_where_the_expected_place_moves(match: int) -> None:
    everything = ("propose", [0])
    detour = ("extend", 0, [60, 35, 36, 37, 38, 39])
    back = ("extend", 0, [61, 10 + match, 62, 10 + match])
    steps = [("start", 0, list(range(10, 45)), "x"), ("copy", 0, 0, match)]
    check_against_oracle([*steps, everything, detour, everything, back], 12, 4)


@pytest.mark.parametrize("near", [0, 1, 2, 3, 6, 7, 8])
@pytest.mark.parametrize("change", [([50], [60]), ([50], []), ([], [60])])
def test_agrees_with_the_oracle_on_matches_that_go_on_behind_a_change(
    near: int, change: tuple[list[int], list[int]]
) -> None:
    before, after = list(range(10, 20)), [30, 31]
    steps: list[tuple[object, ...]] = [
        ("start", 0, [*before, *change[0], *after, 40, 41, -1], "x"),
        ("extend", 0, [*before[10 - near :], *change[1], *after]),
    ]
    check_against_oracle(steps, 12, 4)


@pytest.mark.parametrize("accepted", [(0, 3), (3, 0), (1, 2), (2, 5), (5, 1)])
def test_agrees_with_the_oracle_after_drafts_that_went_well_or_badly(
    accepted: tuple[int, int],
) -> None:
    steps: list[tuple[object, ...]] = [("start", 0, [*range(10, 40), 10], "x")]
    for size in accepted:
        steps += [("propose", [0]), ("accept", 0, size, 10)]
    check_against_oracle(steps, 12, 5)


def check_against_oracle(
    steps: list[tuple[object, ...]], max_nodes: int, max_depth: int, config: NgramConfig = EXACT
) -> None:
    """Give the same calls to the drafter and to the oracle, and compare every proposal."""
    drafter, oracle = NgramDrafter(config), PlainNgram(config)

    def extend(request_id: int, tokens: list[int]) -> None:
        drafter.extend(request_id, np.array(tokens, np.int32))
        if request_id in oracle.running:
            oracle.extend(request_id, tokens)

    for step in [*steps, ("propose", [0, 1, 2])]:
        match step:
            case "start", int(i), list(tokens), str(namespace):
                if i in oracle.running:
                    oracle.stop(i)
                drafter.start(i, np.array(tokens, np.int64), namespace)
                oracle.start(i, tokens, namespace)
            case "extend", int(i), list(tokens):
                extend(i, tokens)
            case "copy", int(i), int(start), int(size) if i in oracle.running:
                extend(i, oracle.running[i].tokens[start : start + size])
            case "accept", int(i), int(size), int(token) if i in oracle.running:
                draft = oracle.running[i].draft
                extend(i, [*max(draft, key=len, default=())[:size], token])
            case "stop", int(i):
                drafter.stop(i)
                if i in oracle.running:
                    oracle.stop(i)
            case "propose", list(ids):
                trees = drafter.propose(ids, max_nodes, max_depth)
                for i, tree in zip(ids, trees, strict=True):
                    tree.validate()
                    if i in oracle.running:
                        compare(drafter, oracle, i, tree, max_nodes, max_depth)
                    else:
                        assert tree.num_nodes == 0


def compare(
    drafter: NgramDrafter,
    oracle: PlainNgram,
    request_id: int,
    tree: CandidateTree,
    max_nodes: int,
    max_depth: int,
) -> None:
    """The tree must hold the oracle's most probable paths, with its calibrated probabilities."""
    text = oracle.running[request_id]
    expected, longest = oracle.paths(text, max_depth)
    drafted = paths_of(tree)
    knots = drafter._calibration.knots[sum(longest > bound for bound in (1, 3, 7, 15))]
    points = np.linspace(0, 1, knots.size)
    assert len(drafted) == min(max_nodes, len(expected))
    for path, prob in drafted.items():
        assert prob == pytest.approx(np.interp(expected[path], points, knots), rel=1e-5, abs=1e-7)
    chosen = [expected[path] for path in drafted]
    left = [prob for path, prob in expected.items() if path not in drafted]
    assert not left or max(left) <= min(chosen) * (1 + 1e-9)
    if drafted:
        text.draft = list(drafted)


CHURN = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 4), TOKENS, NAMESPACES),
        st.tuples(st.just("extend"), st.integers(0, 4), TOKENS),
        st.tuples(st.just("extend"), st.integers(0, 4), TOKENS),
        st.tuples(st.just("truncate"), st.integers(0, 4), st.integers(0, 20)),
        st.tuples(st.just("stop"), st.integers(0, 4)),
        st.tuples(
            st.just("propose"),
        ),
    ),
    max_size=60,
)


@MANY
@given(steps=CHURN, num_pages=st.integers(1, 12))
def test_any_order_of_calls_in_a_full_pool(steps: list[tuple[object, ...]], num_pages: int) -> None:
    drafter = NgramDrafter(NgramConfig(capacity=4 * num_pages, page_size=4, max_requests=4))
    running: dict[int, tuple[str, list[int]]] = {}
    finished: list[tuple[str, list[int]]] = []
    for step in [*steps, ("propose",)]:
        match step:
            case "start", int(i), list(tokens), str(namespace):
                if i in running:
                    finished.append(running.pop(i))
                drafter.start(i, np.array(tokens, np.int32), namespace)
                if len(running) < min(4, num_pages):
                    running[i] = (namespace, list(tokens))
            case "extend", int(i), list(tokens):
                drafter.extend(i, np.array(tokens, np.int32))
                if i in running:
                    running[i][1].extend(tokens)
            case "truncate", int(i), int(length):
                drafter.truncate(i, length)
                if i in running:
                    del running[i][1][length:]
            case "stop", int(i):
                drafter.stop(i)
                if i in running:
                    finished.append(running.pop(i))
            case ("propose",):
                for i, tree in enumerate(drafter.propose(list(range(5)), 8, 6)):
                    tree.validate()
                    assert i in running or tree.num_nodes == 0
                    for path in paths_of(tree):
                        assert is_earned(path, running[i], [*running.values(), *finished])
        check_pages(drafter)


def is_earned(path: Path, own: tuple[str, list[int]], texts: list[tuple[str, list[int]]]) -> bool:
    """Whether the path stands in a text of the namespace, or repeats the end of the own one."""
    for text in texts:
        if text[0] == own[0]:
            tokens = text[1]
            for start in range(1, len(tokens)):
                ahead = tokens[start:]
                if text is own:
                    ahead = ahead * (1 + len(path) // len(ahead))
                if tuple(ahead[: len(path)]) == path:
                    return True
    return False


def check_pages(drafter: NgramDrafter) -> None:
    """Every used page belongs to one running request or waits in the queue, once."""
    header, pages = drafter._arena, drafter._pages
    num_pages = int(header[pool.NUM_PAGES])
    seen: list[int] = []

    def follow(page: int, field: Callable[[int], int]) -> None:
        while page != pool.NONE:
            seen.append(page)
            assert len(seen) <= num_pages
            page = field(page)

    for row in drafter._row_of.values():
        first = int(drafter._rows[row, pool.FIRST_PAGE])
        follow(first, lambda page: int(pages[page, pool.NEXT]))
        assert first == pool.NONE or pages[first, pool.PREVIOUS] == pool.NONE
        if first != pool.NONE:
            assert seen[-1] == drafter._rows[row, pool.LAST_PAGE]
    follow(
        int(header[pool.QUEUE_HEAD]),
        lambda page: int(
            pages[page, pool.NEXT]
            if pages[page, pool.NEXT] != pool.NONE
            else pages[page, pool.QUEUE_NEXT]
        ),
    )
    assert sorted(seen) == list(range(int(header[pool.FRESH_PAGE])))
