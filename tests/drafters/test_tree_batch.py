"""Trees in the rows of a batch: cut out when they are looked at."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from freedraft.drafters import CandidateTree
from freedraft.drafters.tree_batch import TreeBatch


def example() -> TreeBatch:
    nodes = [
        [2, 7, 8, 99, 99, -1, 0, 99, 99],
        [0, 99, 99, 99, 99, 99, 99, 99, 99],
        [4, 1, 2, 3, 4, -1, 0, 0, -1],
    ]
    probs = [[0.5, 0.25, 9, 9], [9, 9, 9, 9], [0.5, 0.25, 0.125, 0.0625]]
    return TreeBatch(np.array(nodes, np.int32), np.array(probs, np.float32))


def test_a_row_is_a_tree() -> None:
    first, empty, full = example().trees()
    assert isinstance(first, CandidateTree)
    assert first.token_ids.tolist() == [7, 8]
    assert first.parents.tolist() == [-1, 0]
    assert first.probs.tolist() == [0.5, 0.25]
    assert first.draft_probs is None
    assert (first.num_nodes, empty.num_nodes, full.num_nodes) == (2, 0, 4)
    assert first.is_chain
    assert full.probs.tolist() == [0.5, 0.25, 0.125, 0.0625]
    for tree in (first, empty, full):
        tree.validate()


@pytest.mark.parametrize("field", ["token_ids", "parents", "probs", "draft_probs"])
def test_any_field_may_be_looked_at_first(field: str) -> None:
    tree, other = example().trees()[2], example().trees()[2]
    assert other.num_nodes == 4
    np.testing.assert_array_equal(getattr(tree, field), getattr(other, field))
    assert tree.parents.tolist() == [-1, 0, 0, -1]


def test_it_has_no_other_attribute_and_none_can_be_set() -> None:
    tree = example().trees()[0]
    with pytest.raises(AttributeError, match="'DraftedTree' object has no attribute 'tokens'"):
        _ = tree.tokens  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        tree.probs = np.zeros(2, np.float32)  # type: ignore[misc]
    assert tree.num_nodes == 2


def test_it_can_be_copied_and_pickled_before_it_was_looked_at() -> None:
    for twin in (
        copy.deepcopy(example().trees()[0]),
        pickle.loads(pickle.dumps(example().trees()[0])),
    ):
        assert twin.token_ids.tolist() == [7, 8]
        assert twin.draft_probs is None
