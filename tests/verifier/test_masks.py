from __future__ import annotations

import pytest
import torch

from freedraft import CandidateTree
from freedraft.verifier.layout import pack_trees
from freedraft.verifier.masks import Slots, additive_mask, slot_positions, tree_positions

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
    mask = additive_mask(batch, CONTEXTS, Slots(5), torch.float64, window)
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


@pytest.mark.parametrize("window", [3, 4, 6])
def test_right_aligned_slots_show_the_same_keys(window: int) -> None:
    batch = pack_trees(TREES, [8, 9])
    for num_used in range(window - 1, 6):
        rolling = Slots(num_used, right_aligned=True)
        places = slot_positions(CONTEXTS, rolling)
        mask = additive_mask(batch, CONTEXTS, rolling, torch.float64, window)
        for row in range(2):
            length = int(CONTEXTS[row])
            for column in range(4):
                seen = {
                    int(places[row, s]) for s in range(num_used) if mask[row, 0, column, s] == 0
                }
                wanted = {k for k in range(length) if allowed_by_hand(row, column, k, window)}
                assert seen == wanted, (row, column)
                for key in range(4):
                    allowed = allowed_by_hand(row, column, 5 + key, window)
                    assert bool(mask[row, 0, column, num_used + key] == 0) == allowed


def test_slots_behind_the_step_are_hidden() -> None:
    batch = pack_trees(TREES, [8, 9])
    open_end = additive_mask(batch, CONTEXTS, Slots(5), torch.float64)
    mask = additive_mask(batch, CONTEXTS, Slots(5, num_unused=3), torch.float64)
    assert torch.equal(mask[..., :9], open_end)
    assert (mask[..., 9:] == torch.finfo(torch.float64).min).all()
