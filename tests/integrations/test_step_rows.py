"""The kernels over a step's trees against what each tree says of itself."""

from __future__ import annotations

import os
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.drafters import CandidateTree
from freedraft.drafters.tree_batch import TreeBatch
from freedraft.integrations import _row_kernels as kernels
from freedraft.integrations.step_rows import are_valid, best_chains, compile_kernels, rows_of

EXAMPLES = settings(
    max_examples=300 if os.environ.get("NUMBA_DISABLE_JIT", "0") == "0" else 60, deadline=None
)
VOCAB_SIZE = 5
ROOM = 6
Node = tuple[int, int, float]  # token, how far back the parent stands, share of its probability


def setup_module() -> None:
    compile_kernels()


def batch_of(rows: list[list[Node]]) -> TreeBatch:
    """Return the trees in a batch; parents may be off by one, shares above 1."""
    batch = TreeBatch.with_room(len(rows), ROOM)
    batch.nodes[:] = 77  # what is undefined must not be looked at
    batch.probs[:] = 77
    for row, nodes in enumerate(rows):
        batch.nodes[row, 0] = len(nodes)
        for node, (token, back, share) in enumerate(nodes):
            parent = max(node - back, -1)
            above = batch.probs[row, parent] if 0 <= parent < node else np.float32(1)
            batch.nodes[row, 1 + node] = token
            batch.nodes[row, 1 + ROOM + node] = parent
            batch.probs[row, node] = np.float32(share) * above
    return batch


def nodes(least_token: int, least_back: int, most_share: float) -> st.SearchStrategy[list[Node]]:
    node = st.tuples(
        st.integers(least_token, VOCAB_SIZE - 1 - least_token),
        st.integers(least_back, ROOM),
        st.one_of(st.floats(0, most_share, width=16), st.sampled_from([0.0, 1.0])),
    )
    return st.lists(node, max_size=ROOM)


def is_valid(tree: CandidateTree, max_nodes: int, max_depth: int) -> bool:
    try:
        tree.validate(VOCAB_SIZE)
    except ValueError:
        return False
    return tree.num_nodes <= max_nodes and max(tree.depths().tolist(), default=0) <= max_depth


@EXAMPLES
@given(
    st.lists(st.one_of(nodes(0, 1, 1.0), nodes(-1, 0, 1.5)), min_size=1, max_size=4),
    st.integers(0, ROOM),
    st.integers(0, ROOM),
)
def test_valid_is_what_each_tree_says_of_itself(
    rows: list[list[Node]], max_nodes: int, max_depth: int
) -> None:
    trees = [CandidateTree.empty(), *batch_of(rows).trees()]
    expected = all(is_valid(tree, max_nodes, max_depth) for tree in trees)
    assert are_valid(trees, VOCAB_SIZE, max_nodes, max_depth) == expected


@EXAMPLES
@given(st.lists(nodes(0, 1, 1.0), min_size=1, max_size=4), st.randoms())
def test_chains_are_those_of_each_tree(rows: list[list[Node]], random: Random) -> None:
    trees = [CandidateTree.empty(), *batch_of(rows).trees()]
    random.shuffle(trees)
    for chain, tree in zip(best_chains(trees), trees, strict=True):
        expected = tree.best_chain()
        assert chain.token_ids.tolist() == expected.token_ids.tolist()
        assert chain.parents.tolist() == expected.parents.tolist()
        np.testing.assert_array_equal(chain.probs, expected.probs)


def test_probabilities_that_are_no_numbers_are_not_valid() -> None:
    batch = batch_of([[(1, 1, 0.5), (2, 1, 0.5)]])
    assert are_valid(batch.trees(), VOCAB_SIZE, ROOM, ROOM)
    batch.probs[0, 1] = np.nan
    assert not are_valid(batch.trees(), VOCAB_SIZE, ROOM, ROOM)


def test_nothing_is_said_of_sizes_beyond_the_room_and_of_large_trees() -> None:
    batch = TreeBatch.with_room(1, 2 * kernels.MOST_COMPARED)
    for size in (-1, kernels.MOST_COMPARED, kernels.MOST_COMPARED + 1):
        batch.nodes[0, 0] = size
        batch.nodes[0, 1 : 1 + batch.probs.size] = np.arange(batch.probs.size)
        batch.nodes[0, 1 + batch.probs.size :] = np.arange(batch.probs.size) - 1
        batch.probs[:] = 1
        valid = are_valid(batch.trees(), 1 << 20, 1 << 20, 1 << 20)
        assert valid == (size == kernels.MOST_COMPARED)


def test_trees_of_other_origin_are_looked_at_one_by_one() -> None:
    one, other = batch_of([[(1, 1, 0.5)]]), batch_of([[(2, 1, 0.5), (3, 2, 0.75)]])
    chain = CandidateTree.from_chain([4])
    assert rows_of([CandidateTree.empty()]) is None
    assert rows_of([one.trees()[0], other.trees()[0]]) is None
    assert rows_of([one.trees()[0], chain]) is None
    found = rows_of([CandidateTree.empty(), one.trees()[0]])
    assert found is not None and found[0] is one and found[1].tolist() == [-1, 0]
    assert not are_valid([chain], VOCAB_SIZE, ROOM, ROOM)
    chains = best_chains([chain, other.trees()[0]])
    assert [tree.token_ids.tolist() for tree in chains] == [[4], [3]]
