from __future__ import annotations

import pytest
import torch

from freedraft import CandidateTree
from freedraft.verifier.layout import pack_trees
from freedraft.verifier.masks import additive_mask, tree_positions

# row 0: 1 ─ 2   row 1: 3
#        └ 4
TREES = [CandidateTree.from_chains([[1, 2], [1, 4]]), CandidateTree.from_chain([3])]
CONTEXTS = torch.tensor([3, 5])


def allowed_by_hand(row: int, column: int, key: int, window: int | None) -> bool:
    """Say whether a column of a row may look at a key: 5 slots, then the row's 4 columns."""
    length = int(CONTEXTS[row])
    depth = [0, *TREES[row].depths().tolist(), 0, 0]
    place = length + depth[column]
    if key < 5:
        seen, key_place = key < length, key
    else:
        other = key - 5
        key_place = length + depth[other]
        nodes = TREES[row].num_nodes
        if column > nodes:
            seen = other == column
        else:
            ancestors = [0, *(node + 1 for node in TREES[row].path(column - 1))] if column else [0]
            seen = other in ancestors
    return seen and (window is None or place - key_place < window)


@pytest.mark.parametrize("window", [None, 1, 2, 3, 5, 100])
def test_mask_against_the_definition(window: int | None) -> None:
    batch = pack_trees(TREES, [8, 9])
    mask = additive_mask(batch, CONTEXTS, 5, torch.float64, window)
    assert mask.shape == (2, 1, 4, 9)
    for row in range(2):
        for column in range(4):
            for key in range(9):
                wanted = (
                    0.0
                    if allowed_by_hand(row, column, key, window)
                    else torch.finfo(torch.float64).min
                )
                assert float(mask[row, 0, column, key]) == wanted, (row, column, key)


def test_positions_and_ids() -> None:
    batch = pack_trees(TREES, [8, 9])
    assert batch.input_ids.tolist() == [[8, 1, 2, 4], [9, 3, 0, 0]]
    assert tree_positions(batch, CONTEXTS).tolist() == [[3, 4, 5, 5], [5, 6, 5, 5]]
    assert batch.num_nodes == [3, 1]
    assert batch.width == 4
