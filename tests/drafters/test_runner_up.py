"""The runner-up drafter, and the pools that it reads, against plain oracles."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_up_oracles import NaiveMixerAfter, PlainNgramAfter

from freedraft.drafters import CandidateTree, Drafter, Feedback, WantsTopIds
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.ngram import _after_kernels as after
from freedraft.drafters.runner_up import RunnerUpConfig, RunnerUpDrafter
from freedraft.drafters.runner_up.drafter import join
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter
from freedraft.drafters.suffix.trust import trust_table

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
EXACT_NGRAM = NgramConfig(
    levels=(8, 4, 2, 1),
    max_visits=(1000, 1000, 1000, 1000),
    max_match=24,
    max_places=1024,
    capacity=4096,
    page_size=4,
    max_requests=8,
)
EXACT_SUFFIX = SuffixConfig(
    max_context=5,
    min_prob=0.01,
    learning_rate=0.0,
    max_bytes=1 << 24,
    max_namespace_bytes=1 << 20,
    slice_tokens=1 << 20,
    shared_slice_tokens=1 << 20,
)
TEXTS = st.lists(st.integers(-1, 3), max_size=40)
Path = tuple[int, ...]


def paths_of(tree: CandidateTree) -> dict[Path, float]:
    """The tree's paths and their probabilities."""
    tree.validate()
    return {
        tuple(tree.token_ids[tree.path(node)].tolist()): float(tree.probs[node])
        for node in range(tree.num_nodes)
    }


def assert_best(found: dict[Path, float], expected: dict[Path, float], max_nodes: int) -> None:
    """``found`` must hold the most probable of the expected paths, with their probabilities."""
    assert len(found) == min(max_nodes, len(expected))
    for path, prob in found.items():
        assert prob == pytest.approx(expected[path], rel=1e-5, abs=1e-7)
    left = [prob for path, prob in expected.items() if path not in found]
    assert not left or max(left) <= min(found.values()) * (1 + 1e-5)


@given(TEXTS, TEXTS, TEXTS, st.integers(0, 4), st.integers(1, 10), st.integers(1, 4))
@settings(max_examples=400 if COMPILED else 60, deadline=None)
def test_ngram_pool_answers_for_one_more_token(
    earlier: list[int], prompt: list[int], answer: list[int], token: int, max_nodes: int, depth: int
) -> None:
    drafter, oracle = NgramDrafter(EXACT_NGRAM), PlainNgramAfter(EXACT_NGRAM)
    for texts in (drafter, oracle):
        texts.start("earlier", earlier, "x")  # type: ignore[attr-defined]
        texts.stop("earlier")  # type: ignore[attr-defined]
        texts.start("foreign", earlier, "y")  # type: ignore[attr-defined]
        texts.start("own", prompt, "x")  # type: ignore[attr-defined]
        texts.extend("own", answer)  # type: ignore[attr-defined]
    oracle.next_id = token
    text = oracle.running["own"]
    expected, longest = oracle.paths(text, depth)
    knots = drafter._calibration.knots[sum(longest > bound for bound in (1, 3, 7, 15))]
    points = np.linspace(0, 1, knots.size)
    expected = {path: float(np.interp(prob, points, knots)) for path, prob in expected.items()}
    unseen, tree = drafter.propose_after("own", [9, token], max_nodes, depth)
    assert unseen.num_nodes == 0
    assert_best(paths_of(tree), expected, max_nodes)


@given(TEXTS, TEXTS, TEXTS, st.integers(0, 4), st.integers(1, 10), st.integers(1, 4))
@settings(max_examples=300 if COMPILED else 25, deadline=None)
def test_suffix_pool_answers_for_one_more_token(
    earlier: list[int], prompt: list[int], answer: list[int], token: int, max_nodes: int, depth: int
) -> None:
    drafter = SuffixDrafter(EXACT_SUFFIX)
    drafter.start("earlier", [])
    drafter.extend("earlier", earlier)
    drafter.stop("earlier")
    drafter.start("own", prompt)
    drafter.extend("own", answer)
    text = prompt + answer
    mixer = NaiveMixerAfter([text, [*earlier, -1]], *trust_table(EXACT_SUFFIX.max_context))
    expected = mixer.tree([*text, token], max_nodes, depth, EXACT_SUFFIX.min_prob)
    unseen, tree = drafter.propose_after("own", [9, token], max_nodes, depth)
    assert unseen.num_nodes == 0
    found = paths_of(tree)
    np.testing.assert_allclose(
        sorted(found.values()), sorted(expected.values()), rtol=1e-5, atol=1e-7
    )
    for path in found.keys() & expected.keys():
        assert found[path] == pytest.approx(expected[path], rel=1e-5)


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=3))
@settings(max_examples=25 if COMPILED else 5, deadline=None)
def test_asking_a_pool_changes_nothing_in_it(
    make: type, text: list[int], next_ids: list[int]
) -> None:
    asked, left_alone = make(), make()
    for drafter in (asked, left_alone):
        drafter.start("a", [0, 1, 2, 3, *text])
    for token in [1, 2, 3, *text]:
        trees = []
        for drafter in (asked, left_alone):
            (tree,) = drafter.propose(["a"], 8, 4)
            trees.append(paths_of(tree))
            if drafter is asked:
                drafter.propose_after("a", next_ids, 8, 4)
            drafter.extend("a", [token])
        assert trees[0] == trees[1]
    if make is NgramDrafter:
        np.testing.assert_array_equal(asked._calibration.counts, left_alone._calibration.counts)
        np.testing.assert_array_equal(asked._rows, left_alone._rows)


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_a_pool_has_nothing_for_a_stranger_a_placeholder_or_no_room(make: type) -> None:
    drafter = make()
    drafter.start("a", [5, 6, -1, 7, 5])
    assert [t.num_nodes for t in drafter.propose_after("b", [5, 6], 4, 4)] == [0, 0]
    assert [t.num_nodes for t in drafter.propose_after("a", [-1, 6], 4, 4)] == [0, 0]
    assert drafter.propose_after("a", [5], 0, 4)[0].num_nodes == 0
    assert drafter.propose_after("a", [5], 4, 0)[0].num_nodes == 0
    assert drafter.propose_after("a", [], 4, 4) == []
    with pytest.raises(ValueError, match="expected max_nodes >= 0"):
        drafter.propose_after("a", [5], -1, 4)


def test_kernels_are_compiled_at_construction() -> None:
    NgramDrafter()
    if COMPILED:
        assert len(after.search_after.signatures) == 1


def hear(drafter: Drafter, token: int, top: dict[int, float]) -> None:
    """One step without a draft: the model emitted a token and held others likely too."""
    emitted = np.array([token], np.int32)
    top_ids = np.array([list(top)], np.int32)
    logprobs = np.log(np.array([list(top.values())], np.float32))
    nothing = CandidateTree.empty()
    drafter.observe("a", nothing, Feedback(emitted, emitted[:0], emitted, top_ids, logprobs))
    drafter.extend("a", emitted)


def test_proposes_runners_up_and_what_the_pool_knows_behind_them() -> None:
    #   root -> 4 -> 5 -> 6   (4 was the runner-up in place of 9, and 5, 6 followed it before)
    #        -> 8             (the other one, never seen)
    pool = NgramDrafter()
    runner_up = RunnerUpDrafter([pool], RunnerUpConfig(num_runners=2))
    blend = BlendDrafter([pool, runner_up])
    assert isinstance(runner_up, Drafter)
    assert isinstance(runner_up, WantsTopIds)
    assert blend.num_top_ids == 3
    blend.start("a", [4, 5, 6, 7])
    hear(blend, 9, {9: 0.5, 4: 0.3, 8: 0.15, 3: 0.04})
    found = paths_of(runner_up.propose(["a"], 8, 3)[0])
    assert {(4,), (4, 5), (4, 5, 6), (8,)} <= found.keys()
    assert (3,) not in found
    assert found[(4,)] == pytest.approx(0.1 * 0.3)
    assert (4, 5, 6) in paths_of(blend.propose(["a"], 8, 3)[0])
    assert runner_up.propose(["a", "b"], 1, 3)[0].token_ids.tolist() == [4]
    assert runner_up.propose(["b"], 4, 3)[0].num_nodes == 0


def test_reads_the_row_that_gave_the_last_token() -> None:
    runner_up = RunnerUpDrafter([NgramDrafter()])
    runner_up.start("a", [1])
    tree = CandidateTree.from_chains([[2, 3], [5]])
    top_ids = np.array([[2, 10], [3, 11], [7, 12], [6, 13]], np.int32)
    logprobs = np.log(np.full((4, 2), 0.4, np.float32))
    emitted, accepted = np.array([2, 3, 7], np.int32), np.array([0, 1], np.int32)
    runner_up.observe("a", tree, Feedback(emitted, accepted, top_ids[:, 0], top_ids, logprobs))
    runner_up.extend("a", emitted)
    assert paths_of(runner_up.propose(["a"], 4, 4)[0]).keys() == {(12,)}
    runner_up.extend("a", [1])  # a step of which nothing was heard
    assert runner_up.propose(["a"], 4, 4)[0].num_nodes == 0


def test_learns_how_often_a_runner_up_comes_next() -> None:
    often, never = (RunnerUpDrafter([NgramDrafter()]) for _ in range(2))
    for drafter, followers in ((often, (1, 2)), (never, (3, 3))):
        drafter.start("a", [0])
        for step in range(40):
            token = followers[step % 2]
            hear(drafter, token, {token: 0.6, 3 - token if token < 3 else 1: 0.3})
    assert often.share > 0.9
    assert never.share < 0.05


def test_a_cut_forgets_the_runners_up() -> None:
    runner_up = RunnerUpDrafter([NgramDrafter()])
    runner_up.start("a", [1])
    hear(runner_up, 2, {2: 0.6, 3: 0.4})
    assert runner_up.propose(["a"], 4, 4)[0].num_nodes == 1
    runner_up.truncate("a", 2)  # nothing is cut
    assert runner_up.propose(["a"], 4, 4)[0].num_nodes == 1
    runner_up.truncate("a", 1)
    assert runner_up.propose(["a"], 4, 4)[0].num_nodes == 0
    runner_up.stop("a")
    assert runner_up.propose(["a"], 4, 4)[0].num_nodes == 0


def test_the_first_pool_that_knows_answers() -> None:
    first, second = NgramDrafter(), SuffixDrafter()
    runner_up = RunnerUpDrafter([first, second])
    for drafter, text in ((first, [4, 5, 1]), (second, [4, 6, 8, 6, 1]), (runner_up, [1])):
        drafter.start("a", text)  # type: ignore[attr-defined]
    hear(runner_up, 2, {2: 0.2, 4: 0.5, 8: 0.3})
    found = paths_of(runner_up.propose(["a"], 16, 2)[0])
    assert (4, 5) in found
    assert (4, 6) not in found
    assert (8, 6) in found


def test_joins_trees_below_their_tokens() -> None:
    below = [CandidateTree.from_chain([7, 8], [0.5, 0.25]), CandidateTree.empty()]
    tree = join([3, 4], np.array([0.5, 0.25]), below)
    assert paths_of(tree) == {(3,): 0.5, (3, 7): 0.25, (3, 7, 8): 0.125, (4,): 0.25}


@pytest.mark.parametrize("bad", [{"num_runners": 0}, {"max_nodes": 0}, {"min_prob": 0.0}])
def test_refuses_settings(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RunnerUpConfig(**bad)  # type: ignore[arg-type]


def test_refuses_to_be_without_pools() -> None:
    with pytest.raises(ValueError, match="at least one pool"):
        RunnerUpDrafter([])
