"""The edit drafter against its oracle in plain Python, and what it does with real edits."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence

import numpy as np
import pytest
from edit_oracles import EditOracle, Source
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from freedraft.drafters.base import Drafter
from freedraft.drafters.edit import EditConfig, EditDrafter
from freedraft.drafters.edit import _align_kernels as align
from freedraft.drafters.edit import _source_kernels as source_kernels
from freedraft.drafters.edit import _tree_kernels as tree_kernels
from freedraft.drafters.tree import CandidateTree, accepted_path

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
EXAMPLES = 60 if COMPILED else 6

# -- against the oracle


@st.composite
def edited_texts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw a prompt and an output that copies stretches of it and changes them."""
    size = draw(st.sampled_from([2, 4, 12, 60]))
    token = st.integers(-1 if draw(st.booleans()) else 0, size)
    # a block that comes again gives the same edit several places
    block = draw(st.lists(token, min_size=3, max_size=8))
    parts = draw(st.lists(st.lists(token, max_size=12), min_size=2, max_size=8))
    prompt = [token for part in parts for token in (*part, *block)]
    output: list[int] = []
    place = 0
    replacement = draw(st.lists(token, max_size=3))
    for length, skipped, new in draw(
        st.lists(
            st.tuples(
                st.integers(0, 45),
                st.integers(0, 4),
                st.one_of(st.just(replacement), st.lists(token, max_size=6)),
            ),
            max_size=8,
        )
    ):
        output += prompt[place : place + length] + new
        place = (place + length + skipped) % (len(prompt) + 1)
    return prompt, output[:160]


def check_tree(
    tree: CandidateTree, oracle: EditOracle, max_nodes: int, max_depth: int, min_prob: float
) -> None:
    """Check that a tree is the best-first tree of the oracle's probabilities."""
    tree.validate()
    depths = tree.depths()
    frontier: dict[tuple[int, int], tuple[float, list[Source]]] = {}

    def expand(node: int, prob: float, live: list[Source]) -> None:
        for token, (share, after) in oracle.children(live, node < 0).items():
            frontier[node, token] = (prob * share, after)

    expand(-1, 1.0, oracle.sources())
    for node in range(tree.num_nodes):
        edge = (int(tree.parents[node]), int(tree.token_ids[node]))
        assert edge in frontier
        best = max(prob for prob, _ in frontier.values())
        prob, live = frontier.pop(edge)
        assert prob == pytest.approx(best, rel=1e-9)
        assert float(tree.probs[node]) == pytest.approx(prob, rel=1e-5)
        if depths[node] < max_depth:
            expand(node, prob, live)
    assert tree.num_nodes <= max_nodes
    if tree.num_nodes < max_nodes:
        assert all(prob < min_prob * (1 + 1e-9) for prob, _ in frontier.values())


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    edited_texts(),
    st.integers(1, 24),
    st.integers(1, 24),
    st.floats(0.001, 0.2),
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
def test_trees_and_counts_are_those_of_the_oracle(
    texts: tuple[list[int], list[int]],
    max_nodes: int,
    max_depth: int,
    min_prob: float,
    jumps: list[int],
) -> None:
    prompt, output = texts
    drafter = EditDrafter(EditConfig(min_prob=min_prob))
    oracle = EditOracle(prompt, drafter._counts)
    drafter.start("r", prompt)
    position = 0
    asked: tuple[EditOracle, CandidateTree, int] | None = None
    step = 0
    while position < len(output):
        (tree,) = drafter.propose(["r"], max_nodes, max_depth)
        assume(drafter._slots[drafter._slot_of["r"], align.NUM_SOURCES] < align.MAX_SOURCES)
        if asked is not None:
            before, earlier, start = asked
            before.learn(earlier, max_nodes, max_depth, output[start:position])
        np.testing.assert_allclose(drafter._counts, oracle.counts, rtol=1e-9)
        check_tree(tree, oracle, max_nodes, max_depth, min_prob)
        before = copy.deepcopy(oracle)
        before.counts = oracle.counts
        asked = (before, tree, position)
        accepted = accepted_path(tree, np.array(output[position:], np.int32)).size
        # sometimes more is committed than was drafted: speculation was off for a while
        stop = position + accepted + 1 + max(0, jumps[step % len(jumps)] - 3)
        new = output[position:stop]
        drafter.extend("r", new)
        oracle.extend(new)
        position += len(new)
        step += 1


@settings(max_examples=EXAMPLES, deadline=None)
@given(edited_texts(), st.data())
def test_truncation_forgets_as_the_oracle_does(
    texts: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    prompt, output = texts
    drafter = EditDrafter()
    oracle = EditOracle(prompt, drafter._counts)
    drafter.start("r", prompt)
    for start in range(0, len(output), 20):
        drafter.extend("r", output[start : start + 20])
        oracle.extend(output[start : start + 20])
        length = len(oracle.tokens) - data.draw(st.integers(-2, 12))
        drafter.truncate("r", max(length, 0))
        oracle.truncate(max(length, 0))
        (tree,) = drafter.propose(["r"], 12, 12)
        assume(drafter._slots[drafter._slot_of["r"], align.NUM_SOURCES] < align.MAX_SOURCES)
        oracle.counts = drafter._counts
        check_tree(tree, oracle, 12, 12, drafter.config.min_prob)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(edited_texts(), min_size=2, max_size=4), st.data())
def test_interleaved_requests_do_not_touch_each_other(
    texts: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    together = EditDrafter()
    alone = [EditDrafter() for _ in texts]
    for index, (prompt, _) in enumerate(texts):
        together.start(index, prompt)
        alone[index].start(0, prompt)
    positions = [0] * len(texts)
    for index in data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=12)):
        new = texts[index][1][positions[index] : positions[index] + 9]
        positions[index] += len(new)
        together.extend(index, new)
        alone[index].extend(0, new)
        if data.draw(st.booleans()):
            together.stop(index)
            alone[index].stop(0)
            together.start(index, texts[index][0])
            alone[index].start(0, texts[index][0])
    # one proposal each: later ones would differ, since the counts are shared by all requests
    trees = together.propose(range(len(texts)), 12, 12)
    for index, tree in enumerate(trees):
        (expected,) = alone[index].propose([0], 12, 12)
        assert_same(tree, expected)


def assert_same(tree: CandidateTree, expected: CandidateTree) -> None:
    np.testing.assert_array_equal(tree.token_ids, expected.token_ids)
    np.testing.assert_array_equal(tree.parents, expected.parents)
    np.testing.assert_array_equal(tree.probs, expected.probs)


# -- what it is for: the tree holds the right continuation behind each kind of change

ORIGINAL = list(range(100, 160))


def tree_after(prompt: Sequence[int], output: Sequence[int]) -> CandidateTree:
    drafter = EditDrafter(EditConfig(min_prob=1e-6))
    drafter.start("r", prompt)
    drafter.extend("r", output)
    return drafter.propose(["r"], 32, 32)[0]


def drafted(tree: CandidateTree, continuation: Sequence[int]) -> int:
    return accepted_path(tree, np.array(continuation, np.int32)).size


def test_a_copy_is_drafted_as_one_chain() -> None:
    tree = tree_after(ORIGINAL, ORIGINAL[:40])
    assert tree.is_chain
    assert tree.token_ids.tolist()[:20] == ORIGINAL[40:]


@pytest.mark.parametrize(
    ("new", "place"),
    [
        ([7], 21),  # one token replaced
        ([7, 8, 9], 23),  # three replaced by three
        ([24 + 100], 25),  # four deleted, the fifth copied
    ],
)
def test_the_copy_resumes_behind_a_change(new: list[int], place: int) -> None:
    tree = tree_after(ORIGINAL, ORIGINAL[:20] + new)
    assert drafted(tree, ORIGINAL[place : place + 3]) == 3


def test_a_long_insertion_ends_where_it_began() -> None:
    line_break = 7
    original = [token for start in range(100, 200, 5) for token in (*range(start, start + 5), 7)]
    inserted = [300, 301, 302, 303, 304, 305, 306, line_break]
    tree = tree_after(original, original[:60] + inserted)
    assert drafted(tree, original[60:64]) == 4


def lines(number: int, name: list[int]) -> list[int]:
    """Return lines that use a name and differ otherwise."""
    return [t for line in range(number) for t in (100 + line, 1, 2, *name, 3, 4, 200 + line, 6)]


def test_an_edit_that_was_begun_again_is_finished() -> None:
    output = [*lines(5, [60, 51]), 105, 1, 2, 60]
    tree = tree_after(lines(8, [50]), output)
    assert drafted(tree, [51, 3, 4, 205, 6]) == 5


def test_a_rename_is_made_again_before_it_is_seen_again() -> None:
    prompt, output = lines(40, [50]), lines(40, [60, 51])
    drafter = EditDrafter()
    drafter.start("r", prompt)
    position = 0
    positions = [0]
    while position < len(output):
        (tree,) = drafter.propose(["r"], 32, 32)
        stop = position + drafted(tree, output[position:]) + 1
        drafter.extend("r", output[position:stop])
        position = stop
        positions.append(position)
    # without the memory of edits every line of 9 tokens ends a step at its name
    assert sum(position > 180 for position in positions) <= 180 / 20


def test_a_text_without_repetition_is_not_drafted() -> None:
    assert tree_after(range(50), range(50, 100)).num_nodes == 0


def test_a_repetition_is_continued_beyond_the_end_of_the_text() -> None:
    tree = tree_after([1, 2, 3], [4, 5, 6] * 3)
    assert drafted(tree, [4, 5, 6] * 4) >= 9


# -- the contract


def test_it_is_a_drafter_with_compiled_kernels() -> None:
    drafter = EditDrafter()
    assert isinstance(drafter, Drafter)
    assert drafter.name == "edit"
    if COMPILED:
        for kernel in (
            align.append,
            align.truncate,
            source_kernels.find_sources,
            tree_kernels.grow_trees,
        ):
            assert len(getattr(kernel, "signatures")) == 1  # noqa: B009


def test_unknown_requests_and_empty_budgets_draft_nothing() -> None:
    drafter = EditDrafter()
    drafter.extend("unknown", [1])
    drafter.truncate("unknown", 0)
    drafter.stop("unknown")
    drafter.start("r", [1, 2, 1, 2, 1, 2])
    trees = drafter.propose(["unknown", "r"], 4, 4)
    assert [tree.num_nodes > 0 for tree in trees] == [False, True]
    for max_nodes, max_depth in ((0, 4), (4, 0)):
        assert drafter.propose(["r"], max_nodes, max_depth)[0].num_nodes == 0
    assert drafter.propose([], 4, 4) == []


@pytest.mark.parametrize("prompt", [[], [3], [-1, -1, -1]])
def test_short_and_negative_prompts(prompt: list[int]) -> None:
    drafter = EditDrafter()
    drafter.start("r", prompt)
    assert drafter.propose(["r"], 4, 4)[0].num_nodes == 0
    drafter.extend("r", [])
    drafter.extend("r", [-1, -1, -1, 5])
    assert drafter.propose(["r"], 4, 4)[0].num_nodes == 0


def test_negative_ids_end_what_is_drafted() -> None:
    tree = tree_after([1, 2, 3, 4, -1, 5, 6], [1, 2, 3])
    assert tree.token_ids.tolist()[:1] == [4]
    assert drafted(tree, [4, 5]) == 1


def test_depth_and_number_of_nodes_are_limits() -> None:
    drafter = EditDrafter()
    drafter.start("r", ORIGINAL)
    drafter.extend("r", ORIGINAL[:30])
    (tree,) = drafter.propose(["r"], 5, 3)
    assert tree.num_nodes == 3
    assert tree.depths().max() == 3


def test_a_request_id_is_used_again_without_its_past() -> None:
    drafter = EditDrafter()
    drafter.start("r", ORIGINAL)
    drafter.extend("r", ORIGINAL[:30])
    drafter.stop("r")
    drafter.start("r", [1, 2, 3])
    drafter.extend("r", ORIGINAL[:10])
    assert drafter.propose(["r"], 8, 8)[0].num_nodes == 0
    drafter.start("r", ORIGINAL)  # still running: stopped first
    drafter.extend("r", ORIGINAL[:10])
    assert drafter.propose(["r"], 8, 8)[0].token_ids.tolist() == ORIGINAL[10:18]


def test_room_grows_with_the_text_and_is_used_again() -> None:
    drafter = EditDrafter(EditConfig(capacity=256))
    texts = {index: [1000 * index + token for token in range(300)] for index in range(12)}
    for index, text in texts.items():
        drafter.start(index, text)
    for _ in range(3):
        for index, text in texts.items():
            drafter.extend(index, text)
    for index, text in texts.items():
        drafter.extend(index, text[:100])
    for index, tree in enumerate(drafter.propose(list(texts), 4, 4)):
        assert tree.token_ids.tolist() == texts[index][100:104]
    size = drafter._store.size
    for index in texts:
        drafter.stop(index)
    for index, text in texts.items():
        drafter.start(index, text * 3)
    assert drafter._store.size == size


def test_trees_stay_as_they_are_when_the_next_are_proposed() -> None:
    drafter = EditDrafter()
    drafter.start("r", ORIGINAL)
    drafter.extend("r", ORIGINAL[:10])
    (tree,) = drafter.propose(["r"], 4, 4)
    drafter.extend("r", ORIGINAL[10:15])
    drafter.propose(["r"], 4, 4)
    assert tree.token_ids.tolist() == ORIGINAL[10:14]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"min_prob in \(0, 1\], got 0"):
        EditConfig(min_prob=0)
    with pytest.raises(ValueError, match="capacity in 256"):
        EditConfig(capacity=1)
    drafter = EditDrafter()
    with pytest.raises(ValueError, match="one dimension"):
        drafter.start("r", [[1, 2]])
    drafter.start("r", [1])
    with pytest.raises(ValueError, match="length >= 0, got -1"):
        drafter.truncate("r", -1)
    with pytest.raises(ValueError, match="max_nodes >= 0"):
        drafter.propose(["r"], -1, 4)
