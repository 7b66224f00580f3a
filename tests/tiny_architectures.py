"""Tiny random models of eleven architectures, in float64."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import VOCAB_SIZE
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
