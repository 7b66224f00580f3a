"""Candidates that an engine hands over."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft import CandidateTree, Drafter
from freedraft.drafters.external import ExternalDrafter, tree_from_heads

TREE = CandidateTree.from_chain([7, 8, 9], [0.9, 0.5, 0.4])


def tokens_of(drafter: ExternalDrafter, nodes: int = 8, depth: int = 8) -> list[int]:
    (tree,) = drafter.propose(["a"], nodes, depth)
    return tree.token_ids.tolist()


def test_an_offer_is_proposed_for_its_length_only() -> None:
    drafter = ExternalDrafter("eagle")
    assert isinstance(drafter, Drafter) and drafter.name == "eagle"
    drafter.start("a", [1, 2])
    assert tokens_of(drafter) == []
    drafter.offer("a", 2, TREE)
    assert tokens_of(drafter) == [7, 8, 9]
    assert tokens_of(drafter, 2) == [7, 8] and tokens_of(drafter, 8, 1) == [7]
    drafter.extend("a", [7])
    assert tokens_of(drafter) == []
    drafter.offer("a", 5, TREE)  # ahead of the step's tokens
    assert tokens_of(drafter) == []
    drafter.extend("a", [8, 3])
    assert tokens_of(drafter) == [7, 8, 9]
    drafter.truncate("a", 9)
    assert tokens_of(drafter) == [7, 8, 9]
    drafter.truncate("a", 4)
    drafter.extend("a", [6])  # as long as before, another text
    assert tokens_of(drafter) == []


def test_foreign_and_ended_requests() -> None:
    drafter = ExternalDrafter()
    drafter.offer("a", 3, TREE)
    drafter.extend("a", [1])
    drafter.truncate("a", 0)
    assert tokens_of(drafter) == []
    drafter.start("a", [1, 2, 3])
    drafter.offer("a", 3, TREE)
    drafter.stop("a")
    assert tokens_of(drafter) == []
    drafter.start("a", [1, 2, 3])
    assert tokens_of(drafter) == []
    with pytest.raises(ValueError, match="length >= 0, got -1"):
        drafter.offer("a", -1, TREE)
    with pytest.raises(ValueError, match="token ids >= 0"):
        drafter.offer("a", 3, CandidateTree(np.int32([-5]), np.int32([-1]), np.float32([1])))


def test_a_drawn_tree_that_is_too_large_loses_its_q() -> None:
    rows = np.full((3, 4), 0.25, np.float32)
    drawn = CandidateTree.from_arrays([1, 1, 2], [-1, -1, 1], [0.5, 0.5, 0.2], rows)
    drafter = ExternalDrafter()
    drafter.start("a", [1])
    drafter.offer("a", 1, drawn)
    (whole,) = drafter.propose(["a"], 3, 3)
    assert whole is drawn
    (cut,) = drafter.propose(["a"], 2, 3)
    assert cut.draft_probs is None and cut.token_ids.tolist() == [1, 2]
    cut.validate()


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=3),
    st.integers(0, 20),
)
def test_heads_give_the_most_probable_paths(levels: list[list[int]], max_nodes: int) -> None:
    probs = np.sort(np.array(levels) / 6, axis=1)[:, ::-1]
    ids = np.arange(probs.size).reshape(probs.shape)
    tree = tree_from_heads(ids, probs, max_nodes)
    tree.validate()
    every = [
        math.prod(probs[depth, rank] for depth, rank in enumerate(path))
        for length in range(1, len(levels) + 1)
        for path in itertools.product(range(3), repeat=length)
    ]
    best = sorted((prob for prob in every if prob > 0), reverse=True)[:max_nodes]
    assert sorted(tree.probs.tolist(), reverse=True) == pytest.approx(best, rel=1e-5)
    for node in range(tree.num_nodes):
        path = tree.token_ids[tree.path(node)]
        assert [token // 3 for token in path] == list(range(len(path)))


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \(1, 2\) and \(1, 3\)"):
        tree_from_heads([[1, 2]], [[0.5, 0.2, 0.1]], 4)
    with pytest.raises(ValueError, match="fall along each row"):
        tree_from_heads([[1, 2]], [[0.2, 0.5]], 4)
