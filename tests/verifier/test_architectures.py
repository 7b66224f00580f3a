"""Eleven architectures with random weights decode the same tokens with drafts as without."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE, RandomTreeDrafter, random_prompt
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import freedraft
from freedraft import GenerationResult

NUM_PROMPTS = 100 if os.environ.get("NUMBA_DISABLE_JIT") != "1" else 10
NEW_TOKENS = 8

IDS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    **IDS,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, **SMALL}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXED = ["sliding_attention", "full_attention"]


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(7)
    models: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=8, **GROUPED)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(sliding_window=7, **GROUPED)),
        "gemma2": lambda: Gemma2ForCausalLM(
            Gemma2Config(head_dim=8, sliding_window=6, layer_types=MIXED, **GROUPED)
        ),
        "gemma3": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(head_dim=8, sliding_window=5, layer_types=MIXED, **GROUPED)
        ),
        "phi": lambda: PhiForCausalLM(PhiConfig(**SMALL)),
        "phi3": lambda: Phi3ForCausalLM(Phi3Config(**GROUPED)),
        "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, **IDS)),
        "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(head_dim=8, **EXPERTS, **GROUPED)),
    }
    model: PreTrainedModel = models[name]().double().eval()
    if name == "qwen3_moe":
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model


NAMES = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3",
    "phi",
    "phi3",
    "gpt_neox",
    "gpt2",
    "qwen3_moe",
)


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
