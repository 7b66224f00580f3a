from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import best_subset, tree_paths

from freedraft import CandidateTree

# 1 ─ 2 ─ 3
# │   └ 4
# 5 ─ 2
TOKENS = [1, 2, 3, 4, 5, 2]
PARENTS = [-1, 0, 1, 1, -1, 4]
PROBS = [0.6, 0.5, 0.2, 0.25, 0.4, 0.1]


def example() -> CandidateTree:
    return CandidateTree.from_arrays(TOKENS, PARENTS, PROBS)


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 8) -> CandidateTree:
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(-1, len(tokens) - 1))
        token = draw(st.integers(0, 3))
        if (parent, token) not in zip(parents, tokens, strict=True):
            share = draw(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
            tokens.append(token)
            parents.append(parent)
            probs.append((probs[parent] if parent >= 0 else 1.0) * share)
    return CandidateTree.from_arrays(tokens, parents, probs)


def test_from_chains_makes_equal_paths_one_node() -> None:
    tree = CandidateTree.from_chains([[1, 2, 3], [1, 2, 4], [5, 2]])
    assert tree_paths(tree.token_ids.tolist(), tree.parents.tolist()) == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4),
        (5,),
        (5, 2),
    ]
    tree.validate()


def test_merged_node_keeps_the_larger_probability() -> None:
    tree = CandidateTree.from_chains([[1, 2], [1, 3]], [[0.5, 0.5], [0.75, 0.25]])
    assert tree.probs.tolist() == [0.75, 0.5, 0.25]


@given(st.lists(trees(), max_size=4))
def test_merge_holds_exactly_the_paths_of_all(parts: list[CandidateTree]) -> None:
    merged = CandidateTree.merge(parts)
    merged.validate()
    wanted: dict[tuple[int, ...], float] = {}
    for part in parts:
        paths = tree_paths(part.token_ids.tolist(), part.parents.tolist())
        for path, prob in zip(paths, part.probs.tolist(), strict=True):
            wanted[path] = max(prob, wanted.get(path, 0.0))
    got = tree_paths(merged.token_ids.tolist(), merged.parents.tolist())
    assert dict(zip(got, merged.probs.tolist(), strict=True)) == wanted
    assert len(got) == len(wanted)


@given(trees(), st.integers(0, 9))
def test_cut_keeps_the_best_connected_part(tree: CandidateTree, size: int) -> None:
    cut = tree.cut(size)
    cut.validate()
    assert cut.num_nodes == min(size, tree.num_nodes)
    best = best_subset(tree.probs.tolist(), tree.parents.tolist(), size)
    assert float(cut.probs.sum()) == pytest.approx(best)


@given(trees(), st.integers(0, 5))
def test_cut_by_depth(tree: CandidateTree, depth: int) -> None:
    cut = tree.cut(100, depth)
    assert cut.num_nodes == int((tree.depths() <= depth).sum())
    assert (cut.depths() <= depth).all()


@given(trees())
def test_mask_depths_and_paths_agree(tree: CandidateTree) -> None:
    mask = tree.ancestor_mask()
    for node in range(tree.num_nodes):
        assert np.flatnonzero(mask[node]).tolist() == sorted(tree.path(node))
        assert tree.depths()[node] == len(tree.path(node))
    assert (mask.sum(axis=1) == tree.depths()).all()


@given(trees())
def test_best_chain_has_the_largest_sum(tree: CandidateTree) -> None:
    chain = tree.best_chain()
    chain.validate()
    assert chain.is_chain
    sums = [sum(tree.probs[tree.path(node)].tolist()) for node in range(tree.num_nodes)]
    assert float(chain.probs.sum()) == pytest.approx(max(sums, default=0.0))


@given(trees())
def test_filter_drops_whole_branches(tree: CandidateTree) -> None:
    kept = tree.filter(lambda token: token != 2)
    kept.validate()
    paths = tree_paths(tree.token_ids.tolist(), tree.parents.tolist())
    wanted = [path for path in paths if 2 not in path]
    assert tree_paths(kept.token_ids.tolist(), kept.parents.tolist()) == wanted


def test_children_find_the_node_of_a_token() -> None:
    children = example().children()
    assert children[-1] == {1: 0, 5: 4}
    assert children[1] == {3: 2, 4: 3}


def test_drawing() -> None:
    assert example().draw() == "\n".join(
        [
            "├─ 1 0.60",
            "│  └─ 2 0.50",
            "│     ├─ 3 0.20",
            "│     └─ 4 0.25",
            "└─ 5 0.40",
            "   └─ 2 0.10",
        ]
    )


def test_empty_tree() -> None:
    tree = CandidateTree.empty()
    tree.validate(10)
    assert tree.num_nodes == 0
    assert tree.is_chain
    assert tree.draw() == ""
    assert tree.best_chain() is tree
    assert tree.cut(4) is tree
    assert CandidateTree.merge([tree, tree]).num_nodes == 0


@pytest.mark.parametrize(
    ("tokens", "parents", "probs", "message"),
    [
        ([1, 2], [-1], None, r"parents of shape \(2,\), got \(1,\)"),
        ([1, -2], [-1, 0], None, "token ids >= 0, got -2"),
        ([1, 2], [-1, 1], None, r"node 1's parent in -1..0 .* got 1"),
        ([1, 2], [-2, 0], None, "node 0's parent in -1..-1 .* got -2"),
        ([1, 1], [-1, -1], None, "distinct siblings, got token 1 twice"),
        ([1, 2], [-1, 0], [0.5, 0.75], "never grow going down, got 0.75 at node 1 below 0.5"),
        ([1], [-1], [1.5], r"probs in \[0, 1\], got \[1.5\]"),
        ([1], [-1], [float("nan")], r"probs in \[0, 1\], got \[nan\]"),
        ([1.5], [-1], None, "token_ids of an integer dtype, got float64"),
        ([2**40], [-1], None, "token_ids within int32"),
    ],
)
def test_malformed_trees_are_named(
    tokens: list[int], parents: list[int], probs: list[float] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CandidateTree.from_arrays(tokens, parents, probs)


def test_ids_outside_the_vocabulary_are_named() -> None:
    with pytest.raises(ValueError, match="below the vocabulary size 5, got 5"):
        example().validate(5)
    example().validate(6)


def test_chains_and_probs_must_fit() -> None:
    with pytest.raises(ValueError, match=r"lengths \[2, 1\], got lengths \[2, 2\]"):
        CandidateTree.from_chains([[1, 2], [3]], [[0.5, 0.5], [0.5, 0.5]])


def test_stochastic_trees_keep_their_rows_and_refuse_to_merge() -> None:
    q = np.full((3, 4), 0.25, np.float32)
    tree = CandidateTree.from_arrays([1, 1, 2], [-1, -1, 0], [0.5, 0.5, 0.25], q)
    assert tree.cut(2).draft_probs is not None
    assert tree.cut(2).draft_probs.shape == (2, 4)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="without draft_probs"):
        CandidateTree.merge([tree])
    with pytest.raises(ValueError, match="draft_probs with 3 rows"):
        CandidateTree.from_arrays([1, 1, 2], [-1, -1, 0], None, q[:2])


def test_every_chain_of_a_full_tree_is_found() -> None:
    chains = [list(chain) for chain in itertools.product(range(2), repeat=3)]
    tree = CandidateTree.from_chains(chains)
    assert tree.num_nodes == 2 + 4 + 8
    assert not tree.is_chain
    assert CandidateTree.from_chain([3, 1, 2]).is_chain
