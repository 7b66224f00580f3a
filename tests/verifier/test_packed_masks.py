from __future__ import annotations

import random

import pytest
import torch

from freedraft import CandidateTree
from freedraft.verifier.layout import pack_trees
from freedraft.verifier.masks import Slots, additive_mask
from freedraft.verifier.packed_masks import WORD_BITS, pack_visible, unpack_visible


def random_tree(rng: random.Random, num_nodes: int) -> CandidateTree:
    parents = [rng.randint(max(-1, node - 6), node - 1) for node in range(num_nodes)]
    return CandidateTree.from_arrays(range(num_nodes), parents)


@pytest.mark.parametrize("num_nodes", [0, 1, 30, 31, 32, 63, 64, 200])
def test_bits_are_those_of_the_additive_mask(num_nodes: int) -> None:
    rng = random.Random(num_nodes)
    batch = pack_trees([random_tree(rng, num_nodes), random_tree(rng, num_nodes // 2)], [1, 2])
    words = pack_visible(batch.visible)
    assert words.dtype == torch.int32
    mask = additive_mask(batch, torch.tensor([4, 4]), Slots(4), torch.float32)[:, 0, :, 4:]
    for row in range(2):
        for column in range(batch.width):
            seen = {
                WORD_BITS * place + bit
                for place, word in enumerate(words[row, column].tolist())
                for bit in range(WORD_BITS)
                if (word % 2**WORD_BITS) >> bit & 1
            }
            assert seen == set(torch.nonzero(mask[row, column] == 0).flatten().tolist())
    assert torch.equal(unpack_visible(words, batch.width), batch.visible)


def test_words_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(rows, 40, 2\), got \(1, 40, 1\)"):
        unpack_visible(torch.zeros(1, 40, 1, dtype=torch.int32), 40)
