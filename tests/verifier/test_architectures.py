"""Eleven architectures with random weights decode the same tokens with drafts as without."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from tiny_architectures import NAMES, build
from tiny_models import RandomTreeDrafter, random_prompt
from torch import Tensor
from transformers import PreTrainedModel

import freedraft
from freedraft import GenerationResult

NUM_PROMPTS = 100 if os.environ.get("NUMBA_DISABLE_JIT") != "1" else 10
NEW_TOKENS = 8


def decode(model: PreTrainedModel, ids: Tensor, mask: Tensor, **options: Any) -> GenerationResult:
    result = freedraft.generate(
        model,
        ids,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        cost_gate=False,
        return_dict=True,
        **options,
    )
    assert isinstance(result, GenerationResult)
    return result


def own_generate(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    sequences: Tensor = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    new: list[int] = sequences[0, len(prompt) :].tolist()
    return new


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_same_tokens_greedy_and_seeded(name: str, batch_size: int) -> None:
    model = build(name)
    rng = random.Random(name)
    accepted = 0
    for number in range(NUM_PROMPTS // batch_size):
        prompts = [random_prompt(rng, rng.randint(1, 14)) for _ in range(batch_size)]
        longest = max(map(len, prompts))
        ids = torch.zeros((batch_size, longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        for options in ({"do_sample": False}, {"do_sample": True, "top_k": 8, "seed": number}):
            if options["do_sample"]:
                plain = decode(model, ids, mask, drafter=None, **options).token_ids
            else:  # each alone: eager attention in float64 turns left padding into nan
                plain = [own_generate(model, prompt) for prompt in prompts]
            answers = [prompt + new for prompt, new in zip(prompts, plain, strict=True)]
            drafter = RandomTreeDrafter(number, answers)
            result = decode(model, ids, mask, drafter=drafter, **options)
            assert result.token_ids == plain, (number, options)
            assert result.statistics.switched_off == 0
            accepted += result.statistics.accepted
    assert accepted > NUM_PROMPTS
