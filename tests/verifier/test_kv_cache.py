from __future__ import annotations

import random

import pytest
import torch
from tiny_models import random_prompt, tiny_llama
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from freedraft import CandidateTree
from freedraft.verifier import TreeForward
from freedraft.verifier.kv_cache import check_cache, keep_accepted


@pytest.mark.parametrize("seed", range(30))
def test_kept_slots_are_those_of_the_accepted_paths(seed: int) -> None:
    rng = random.Random(seed)
    num_rows, width = rng.randint(1, 4), rng.randint(1, 6)
    lengths = [rng.randint(1, 5) for _ in range(num_rows)]
    num_slots = max(lengths)
    cache = DynamicCache()
    # The value of a slot is its own number, so that a moved slot is recognised.
    numbers = torch.arange(num_slots + width, dtype=torch.float64)
    states = numbers[None, None, :, None].expand(num_rows, 2, -1, 3).clone()
    for layer in range(2):
        cache.update(states.clone(), -states.clone(), layer)
    accepted = [
        [0, *sorted(rng.sample(range(1, width), rng.randint(0, width - 1)))]
        for _ in range(num_rows)
    ]
    new_lengths = keep_accepted(cache, lengths, num_slots, accepted)
    assert new_lengths == [n + len(path) for n, path in zip(lengths, accepted, strict=True)]
    assert cache.get_seq_length() == max(new_lengths)
    for layer in cache.layers:
        for row, path in enumerate(accepted):
            wanted = [*range(lengths[row]), *(num_slots + column for column in path)]
            assert layer.keys[row, 1, : new_lengths[row], 2].tolist() == wanted
            assert layer.values[row, 0, : new_lengths[row], 0].tolist() == [-n for n in wanted]


def test_a_tree_scores_like_its_paths_and_leaves_no_trace() -> None:
    model = tiny_llama()
    rng = random.Random(2)
    prompts = [random_prompt(rng, 6), random_prompt(rng, 9)]
    trees = [
        CandidateTree.from_chains([[1, 2, 3], [1, 4], [5]]),
        CandidateTree.from_chains([[7], [8, 9]]),
    ]
    with torch.no_grad():
        target = TreeForward(model)
        target.prefill(prompts)
        logits = target.forward(trees, [10, 11])
        for row, (prompt, tree) in enumerate(zip(prompts, trees, strict=True)):
            for node in range(-1, tree.num_nodes):
                path = [int(tree.token_ids[index]) for index in tree.path(node)]
                text = torch.tensor([[*prompt, 10 + row, *path]])
                alone = model(text).logits[0, -1]
                torch.testing.assert_close(logits[row, node + 1], alone)
        target.commit([[0, 3], []])  # the second branch of row 0 lies behind a rejected node
        again = target.forward([trees[1], trees[0]], [12, 13])
        text = torch.tensor([[*prompts[0], 10, 1, 4, 12, 8, 9]])
        torch.testing.assert_close(again[0, 3], model(text).logits[0, -1])
        text = torch.tensor([[*prompts[1], 11, 13, 1, 2, 3]])
        torch.testing.assert_close(again[1, 3], model(text).logits[0, -1])


def test_caches_that_cannot_be_cut_back_are_refused_by_name() -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match="got StaticLayer"):
        check_cache(StaticCache(config=model.config, max_cache_len=8))
    sliding = DynamicCache()
    sliding.layers.append(DynamicSlidingWindowLayer(4))
    with pytest.raises(ValueError, match="got DynamicSlidingWindowLayer"):
        check_cache(sliding)
    check_cache(DynamicCache())
    check_cache(DynamicCache(config=model.config))
