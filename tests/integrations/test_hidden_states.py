"""Hidden states, scores and logits of emitted tokens are those of plain decoding."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from recurrent_models import build_recurrent
from tiny_models import RandomTreeDrafter, random_prompt, tiny_llama
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import freedraft
from freedraft import GenerationResult

NEW_TOKENS = 12
OPTIONS: dict[str, Any] = {
    "max_new_tokens": NEW_TOKENS,
    "do_sample": False,
    "output_hidden_states": True,
    "return_dict_in_generate": True,
}


def drafted(model: PreTrainedModel, ids: Tensor, wanted: Any, **options: Any) -> GenerationResult:
    pads = [int((row == 0).sum()) for row in ids]
    answers = [row[pad:].tolist() for row, pad in zip(wanted.sequences, pads, strict=True)]
    drafter = RandomTreeDrafter(1, answers)
    result = freedraft.generate(
        model, ids, drafter=drafter, cost_gate=False, return_dict=True, **{**OPTIONS, **options}
    )
    assert isinstance(result, GenerationResult)
    assert torch.equal(result.sequences, wanted.sequences)
    assert result.statistics.accepted > 0
    return result


def check(got: Any, wanted: Any, padding: Tensor) -> None:
    assert len(got) == len(wanted)
    for position, (layers, wanted_layers) in enumerate(zip(got, wanted, strict=True)):
        assert len(layers) == len(wanted_layers)
        for layer, wanted_layer in zip(layers, wanted_layers, strict=True):
            assert layer.shape == wanted_layer.shape
            if position == 0:  # transformers leaves whatever comes out in left padding
                wanted_layer = wanted_layer.masked_fill(padding[..., None], 0)
            torch.testing.assert_close(layer, wanted_layer, atol=1e-5, rtol=1e-4)


def test_of_a_ragged_batch() -> None:
    model = tiny_llama()
    rng = random.Random(3)
    prompts = [random_prompt(rng, 4), random_prompt(rng, 7)]
    ids = torch.tensor([[0] * 3 + prompts[0], prompts[1]])
    mask = (ids != 0).long()
    wanted = model.generate(ids, attention_mask=mask, **OPTIONS)
    result = drafted(model, ids, wanted, attention_mask=mask)
    check(result.hidden_states, wanted.hidden_states, mask == 0)


def test_of_rows_that_end_at_different_times() -> None:
    model = tiny_llama()
    rng = random.Random(4)
    ids = torch.tensor([random_prompt(rng, 5), random_prompt(rng, 5)])
    plain = freedraft.generate(
        model, ids, attention_mask=torch.ones_like(ids), drafter=None, return_dict=True, **OPTIONS
    )
    assert isinstance(plain, GenerationResult)
    assert plain.hidden_states is not None
    end = plain.token_ids[0][4]
    wanted = freedraft.generate(
        model,
        ids,
        attention_mask=torch.ones_like(ids),
        drafter=None,
        return_dict=True,
        eos_token_id=end,
        **OPTIONS,
    )
    assert isinstance(wanted, GenerationResult)
    length = plain.token_ids[0].index(end) + 1
    assert len(wanted.token_ids[0]) == length < NEW_TOKENS
    assert wanted.hidden_states is not None
    for position, (layers, whole) in enumerate(
        zip(wanted.hidden_states, plain.hidden_states, strict=False)
    ):
        for layer, whole_layer in zip(layers, whole, strict=True):
            if position < length:
                torch.testing.assert_close(layer[0], whole_layer[0], atol=1e-9, rtol=1e-9)
            else:
                assert not layer[0].any()


def test_behind_a_cache_that_holds_the_beginning() -> None:
    model = tiny_llama()
    ids = torch.tensor([[5, 6, 7, 8, 5, 6]])
    caches = []
    for _ in range(2):
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids[:, :4], cache=cache)
        caches.append(cache)
    mask = torch.ones_like(ids)
    wanted = model.generate(ids, attention_mask=mask, cache=caches[0], **OPTIONS)
    result = drafted(model, ids, wanted, cache=caches[1])
    assert result.hidden_states is not None
    assert result.hidden_states[0][0].shape[1] == 2
    check(result.hidden_states, wanted.hidden_states, torch.zeros(1, 2, dtype=torch.bool))


@pytest.mark.parametrize("name", ["falcon_h1"])
def test_of_a_model_with_a_recurrent_state(name: str) -> None:
    model = build_recurrent(name)
    ids = torch.tensor([[5, 6, 7, 8, 5, 6]])
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), **OPTIONS)
    result = drafted(model, ids, wanted)
    check(result.hidden_states, wanted.hidden_states, torch.zeros(1, 6, dtype=torch.bool))


def test_nothing_is_kept_unless_asked_for() -> None:
    result = freedraft.generate(tiny_llama(), [1, 2, 3], max_new_tokens=4, return_dict=True)
    assert isinstance(result, GenerationResult)
    assert result.hidden_states is None
