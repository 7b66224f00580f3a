"""What stays in a cache after a step is what plain decoding would have left there."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import random_prompt, tiny_llama
from torch import Tensor
from transformers import Cache, DynamicCache, MistralConfig, MistralForCausalLM, StaticCache
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    QuantizedCache,
)

from freedraft import CandidateTree
from freedraft.verifier import TreeForward
from freedraft.verifier.caches import KeptColumns, keepers_of
from freedraft.verifier.caches.step_layer import StepLayer, gather_slots
from freedraft.verifier.cpu.contiguous_cache import ContiguousCache

WINDOW = 4


def sliding_config() -> MistralConfig:
    return MistralConfig(
        sliding_window=WINDOW, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )


def random_step(rng: random.Random) -> tuple[list[int], int, list[list[int]]]:
    """Return context lengths, the width of a step and the columns that stay of each row."""
    num_rows, width = rng.randint(1, 4), rng.randint(1, 6)
    lengths = [rng.randint(1, 7) for _ in range(num_rows)]
    columns = [
        [0, *sorted(rng.sample(range(1, width), rng.randint(0, width - 1)))]
        for _ in range(num_rows)
    ]
    return lengths, width, columns


def numbered(num_rows: int, start: int, stop: int) -> Tensor:
    """Return states whose value is their slot's number, so that a moved slot is recognised."""
    numbers = torch.arange(start, stop, dtype=torch.float64)
    return numbers[None, None, :, None].expand(num_rows, 2, -1, 3).clone()


CACHES: dict[str, Any] = {
    "dynamic": lambda: DynamicCache(),
    "contiguous": lambda: ContiguousCache(),
    "static": lambda: StaticCache(config=tiny_llama().config, max_cache_len=16),
    "static croppable window": lambda: StaticCache(
        config=MistralConfig(sliding_window=16, num_hidden_layers=2), max_cache_len=16
    ),
}


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("seed", range(15))
def test_kept_slots_are_those_of_the_accepted_paths(name: str, seed: int) -> None:
    lengths, width, columns = random_step(random.Random(seed))
    cache: Cache = CACHES[name]()
    num_slots = max(lengths)
    states = numbered(len(lengths), 0, num_slots + width)
    for layer in range(2):
        cache.update(states.clone(), -states.clone(), layer)
    kept = KeptColumns(lengths, num_slots, width, columns)
    assert kept.new_lengths == [n + len(path) for n, path in zip(lengths, columns, strict=True)]
    for keeper in keepers_of(cache):
        keeper.keep(kept)
    assert int(cache.get_seq_length()) == max(kept.new_lengths)
    for layer in cache.layers:
        for row, path in enumerate(columns):
            wanted = [*range(lengths[row]), *(num_slots + column for column in path)]
            stop = kept.new_lengths[row]
            assert layer.keys[row, 1, :stop, 2].tolist() == wanted
            assert layer.values[row, 0, :stop, 0].tolist() == [-n for n in wanted]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_rolling_window_holds_the_last_tokens_of_each_row(static: bool, seed: int) -> None:
    rng = random.Random(seed)
    lengths, width, columns = random_step(rng)
    config = sliding_config()
    cache = StaticCache(config=config, max_cache_len=64) if static else DynamicCache(config=config)
    (keeper, _) = keepers_of(cache, [WINDOW, WINDOW])
    texts: list[list[float]] = [[] for _ in lengths]
    begun = [0] * len(lengths)
    next_number = 0
    for step_width, step_columns in (
        (max(lengths), [range(length) for length in lengths]),
        (width, columns),
        (1, [[0]] * len(lengths)),
    ):
        slots = keeper.num_slots
        layer = keeper.begin(max(begun))
        assert isinstance(layer, StepLayer)
        states = numbered(len(lengths), next_number, next_number + step_width)
        keys, values = layer.update(states, -states)
        assert keys.shape[2] == slots + step_width
        assert torch.equal(keys, -values)
        for row, text in enumerate(texts):  # right-aligned: the last slot is the last token
            seen = keys[row, 0, :slots, 0].tolist()
            assert seen[slots - min(slots, len(text)) :] == text[-slots:][: len(seen)]
        kept = KeptColumns(begun, max(begun), step_width, step_columns)
        keeper.keep(kept)
        for text, path in zip(texts, step_columns, strict=True):
            text += [float(next_number + column) for column in path]
        begun = kept.new_lengths
        next_number += step_width
        assert cache.layers[0].get_seq_length() == max(begun)
        assert keeper.num_slots == min(max(begun), WINDOW - 1)


def test_gathered_slots() -> None:
    states = numbered(2, 0, 5)
    got = gather_slots(states, torch.tensor([[4, 0], [1, 1]]))
    assert got[:, 1, :, 2].tolist() == [[4.0, 0.0], [1.0, 1.0]]


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


def test_trees_are_cut_to_the_free_slots_of_a_cache_of_fixed_size() -> None:
    model = tiny_llama()
    tree = CandidateTree.from_chain([1, 2, 3, 4, 5])
    with torch.no_grad():
        target = TreeForward(model, StaticCache(config=model.config, max_cache_len=10), 0, 10)
        target.prefill([[1, 2, 3, 4], [5, 6, 7, 8, 9, 10]])
        (fitted, empty) = target.fit([tree, CandidateTree.empty()])
        assert fitted.num_nodes == 3  # 10 slots, 6 in use, one for the root
        target.forward([fitted, empty], [3, 4])
        target.commit([[0, 1, 2], []])
        assert target.context_lengths == [8, 7]
        assert [fit.num_nodes for fit in target.fit([tree, tree])] == [1, 1]
    with pytest.raises(ValueError, match="room for 11 tokens, got 10"):
        TreeForward(model, StaticCache(config=model.config, max_cache_len=10), 0, 11)


def test_caches_that_cannot_be_cut_back_are_refused_by_name() -> None:
    model = tiny_llama()
    linear, indexed = DynamicCache(), DynamicCache()
    linear.layers.append(LinearAttentionLayer())
    indexed.layers.append(DynamicIndexedLayer())
    with pytest.raises(ValueError, match="got LinearAttentionLayer"):
        keepers_of(linear)
    with pytest.raises(ValueError, match="got DynamicIndexedLayer"):
        keepers_of(indexed)
    with pytest.raises(ValueError, match="got DynamicIndexedLayer"):
        keepers_of(Cache(layer_class_to_replicate=DynamicIndexedLayer))
    keepers_of(DynamicCache())
    keepers_of(DynamicCache(config=model.config))


def test_a_cache_that_keeps_less_than_the_model_sees_is_refused() -> None:
    sliding = DynamicCache()
    sliding.layers.append(DynamicSlidingWindowLayer(4))
    with pytest.raises(ValueError, match="keeps all tokens in layer 0, got DynamicSliding"):
        keepers_of(sliding, [None, None])
    with pytest.raises(ValueError, match="keeps 6 tokens in layer 0, got DynamicSliding"):
        TreeForward(
            MistralForCausalLM(
                MistralConfig(
                    sliding_window=6,
                    num_hidden_layers=1,
                    hidden_size=16,
                    intermediate_size=16,
                    num_attention_heads=2,
                    num_key_value_heads=2,
                    vocab_size=8,
                    bos_token_id=None,
                    eos_token_id=None,
                    pad_token_id=0,
                )
            ),
            sliding,
        )
    mixed = DynamicCache(config=tiny_llama().config)
    mixed.layers[1] = QuantizedCache("fp8", config=tiny_llama().config).layers[1]
    with pytest.raises(ValueError, match=r"one class of cache layers .* in layer 1"):
        keepers_of(mixed, [None, None])


def test_the_layers_stand_in_the_cache_again_when_the_model_fails() -> None:
    model = tiny_llama()
    cache = QuantizedCache("fp8", config=model.config)
    own = list(cache.layers)
    target = TreeForward(model, cache)
    with pytest.raises(IndexError):
        target.prefill([[1, 10**6]])
    assert cache.layers == own
