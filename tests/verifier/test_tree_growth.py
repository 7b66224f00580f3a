"""Trees that grow over several forwards see what one forward of the path alone would see."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import VOCAB_SIZE, tiny_llama
from torch import Tensor
from transformers import (
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    StaticCache,
)

from freedraft.drafters.model_drafting import NO_NODES, NewNodes
from freedraft.verifier import TreeForward
from freedraft.verifier.tree_growth import TreeGrowth

TOLERANCE = 1e-6  # eager attention takes its softmax in float32, also in float64 models

SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(3)
    if name == "mistral":
        return MistralForCausalLM(MistralConfig(sliding_window=6, **SMALL)).double().eval()
    if name == "gemma2":
        layers = ["sliding_attention", "full_attention"]
        config = Gemma2Config(head_dim=8, sliding_window=5, layer_types=layers, **SMALL)
        return Gemma2ForCausalLM(config).double().eval()
    return tiny_llama()


def logits_after(model: PreTrainedModel, text: list[int]) -> Tensor:
    with torch.no_grad():
        row: Tensor = model(torch.tensor([text])).logits[0, -1]
    return row


def open_runner(model: PreTrainedModel, texts: list[list[int]]) -> TreeGrowth:
    # A cache of full length: that of a sliding window cannot be cut back once it has moved on.
    runner = TreeGrowth(model, TreeForward(model, DynamicCache()))
    runner.prefill(texts)
    runner.request_ids = list(range(len(texts)))
    return runner


def states_of(runner: TreeGrowth) -> list[Tensor]:
    layers = runner._target.cache.layers
    return [states.clone() for layer in layers for states in (layer.keys, layer.values)]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_every_node_sees_its_own_path_only(name: str) -> None:
    model = build(name)
    rng = random.Random(name)
    for _ in range(6):
        texts = [
            [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randint(1, 12))] for _ in range(3)
        ]
        runner = open_runner(model, texts)
        before = states_of(runner)
        paths: list[dict[int, list[int]]] = [{-1: text} for text in texts]
        for _ in range(3):
            nodes = [grown_at(rng, path) for path in paths]
            nodes[rng.randrange(3)] = NO_NODES
            if not any(row.token_ids for row in nodes):
                continue
            logits, first = runner.grow(nodes)
            for row, new in enumerate(nodes):
                for index, (token, parent) in enumerate(
                    zip(new.token_ids, new.parents, strict=True)
                ):
                    path = [*paths[row][parent], token]
                    paths[row][first + index] = path
                    wanted = logits_after(model, path)
                    assert torch.allclose(logits[row, index], wanted, atol=TOLERANCE), (row, path)
        runner.keep([[], [], []])
        assert all(map(torch.equal, states_of(runner), before))
        assert runner.context_lengths == [len(text) for text in texts]


def grown_at(rng: random.Random, paths: dict[int, list[int]]) -> NewNodes:
    parents = [rng.choice(list(paths)) for _ in range(rng.randint(1, 3))]
    return NewNodes([rng.randrange(1, VOCAB_SIZE) for _ in parents], parents)


def test_kept_paths_become_the_context() -> None:
    model = tiny_llama()
    runner = open_runner(model, [[1, 2, 3], [4, 5, 6, 7, 8]])
    # row 0: 9 - 10, 9 - 11; row 1: 12
    runner.grow([NewNodes([9, 10], [-1, 0]), NewNodes([12], [-1])])
    runner.grow([NewNodes([11], [0]), NO_NODES])
    runner.keep([[0, 2], []])
    assert runner.context_lengths == [5, 5]
    logits, first = runner.grow([NewNodes([13], [-1]), NewNodes([14], [-1])])
    assert first == 0
    assert torch.allclose(logits[0, 0], logits_after(model, [1, 2, 3, 9, 11, 13]), atol=TOLERANCE)
    assert torch.allclose(logits[1, 0], logits_after(model, [4, 5, 6, 7, 8, 14]), atol=TOLERANCE)


def test_selected_rows_go_on() -> None:
    model = tiny_llama()
    runner = open_runner(model, [[1, 2, 3], [4, 5], [6]])
    runner.select([2, 0])
    assert runner.request_ids == [2, 0]
    logits, _ = runner.grow([NewNodes([7], [-1]), NewNodes([8], [-1])])
    assert torch.allclose(logits[0, 0], logits_after(model, [6, 7]), atol=TOLERANCE)
    assert torch.allclose(logits[1, 0], logits_after(model, [1, 2, 3, 8]), atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_rescored_tokens_are_those_of_the_text(name: str) -> None:
    model = build(name)
    texts = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [1, 2, 3]]
    runner = open_runner(model, texts)
    before = states_of(runner)
    logits = runner.rescore([texts[0][-4:], texts[1][-2:]])
    for row, (text, count) in enumerate(zip(texts, (4, 2), strict=True)):
        for index in range(count):
            wanted = logits_after(model, text[: len(text) - count + index + 1])
            assert torch.allclose(logits[row, index], wanted, atol=TOLERANCE)
    assert all(map(torch.equal, states_of(runner), before))


def test_a_parent_that_comes_later_is_refused() -> None:
    runner = open_runner(tiny_llama(), [[1, 2]])
    with pytest.raises(ValueError, match=r"a parent in -1\.\.0, got 1"):
        runner.grow([NewNodes([3, 4], [-1, 1])])


def test_a_cache_that_cannot_be_cut_is_refused() -> None:
    model = tiny_llama()
    cache = StaticCache(model.config, max_cache_len=32)
    with torch.no_grad():
        model(torch.tensor([[1, 2]]), cache=cache)
    target = TreeForward(model)
    target.cache, target.context_lengths = cache, [2]
    with pytest.raises(ValueError, match="got StaticLayer, from which a draft cannot be dropped"):
        TreeGrowth(model, target).grow([NewNodes([3], [-1])])
