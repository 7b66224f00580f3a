"""Tiny models whose state cannot simply be cut back to the accepted tokens."""

from __future__ import annotations

import torch
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from .alphabet import MAX_CONTEXT


def recurrent_models(vocab_size: int) -> dict[str, PreTrainedModel]:
    """Return a purely recurrent and a hybrid model with random weights in float64, by name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        mamba = MambaForCausalLM(
            MambaConfig(
                vocab_size=vocab_size,
                hidden_size=16,
                state_size=4,
                num_hidden_layers=2,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=0,
                initializer_range=0.3,
            )
        )
        hybrid = Qwen3NextForCausalLM(
            Qwen3NextConfig(
                vocab_size=vocab_size,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=4,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                linear_num_key_heads=2,
                linear_num_value_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                num_experts=0,  # its experts' kernel takes no float64
                max_position_embeddings=MAX_CONTEXT,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=0,
                initializer_range=0.3,
            )
        )
    return {
        type(model).__name__: model.to(torch.float64).eval()  # type: ignore[arg-type]
        for model in (mamba, hybrid)
    }
