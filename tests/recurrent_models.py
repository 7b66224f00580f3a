"""Tiny random models that keep a recurrent state, alone or beside attention."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tiny_models import VOCAB_SIZE
from transformers import PreTrainedModel

IDS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
HYBRID: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **IDS,
}
LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3Next", {**LINEAR, **EXPERTS, **HYBRID}),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"], **HYBRID}),
    "mamba2": (
        "Mamba2",
        {
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
            **IDS,
        },
    ),
    "falcon_h1": (
        "FalconH1",
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 8,
            "head_dim": 8,
            **HYBRID,
        },
    ),
    "mamba": ("Mamba", {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, **IDS}),
    "jamba": (
        "Jamba",
        {
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "num_experts": 2,
            **HYBRID,
        },
    ),
    "recurrent_gemma": (
        "RecurrentGemma",
        {**HYBRID, "lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3},
    ),
}


def build_recurrent(name: str) -> PreTrainedModel:
    """Return the model of that name, in float64."""
    torch.manual_seed(7)
    family, options = CONFIGS[name]
    config = getattr(transformers, f"{family}Config")(**options)
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config).double().eval()
    if name == "qwen3_next":
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model
