"""Sizes of models, by name or from a model's own ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...integrations.budget.data_sheets import LLAMA_8B, ModelShape

# Sizes as the models' own configuration files give them; a routed expert has three matrices.
MODEL_SHAPES = {
    "llama-3.1-8b": LLAMA_8B,
    "llama-3.3-70b": ModelShape("Llama-3.3-70B, bf16", 70.6e9, 80, 64, 8, 128),
    "qwen3-4b": ModelShape("Qwen3-4B, bf16", 4.02e9, 36, 32, 8, 128),
    "qwen3-30b-a3b": ModelShape(
        "Qwen3-30B-A3B, bf16",
        30.5e9,
        48,
        32,
        4,
        128,
        expert_params=48 * 128 * 3 * 2048 * 768,
        num_experts=128,
        num_chosen=8,
    ),
}


class ShapeError(ValueError):
    """A model whose size cannot be told."""


def model_shape(name: str, bytes_per_value: float = 2.0) -> ModelShape:
    """Return the sizes of a model.

    Args:
        name: one of :data:`MODEL_SHAPES`, a ``config.json`` as transformers writes it, or a folder
            with one.
        bytes_per_value: of weights, keys and values, for a configuration file.

    Raises:
        ShapeError: neither a known name nor a readable configuration.
    """
    if name in MODEL_SHAPES:
        return MODEL_SHAPES[name]
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        known = ", ".join(MODEL_SHAPES)
        raise ShapeError(f"expected {known}, a config.json or a folder with one, got {name!r}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return shape_of_config(config, bytes_per_value)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ShapeError(
            f"{path}: expected a language model's configuration, got {error}"
        ) from error


def shape_of_config(config: dict[str, Any], bytes_per_value: float = 2.0) -> ModelShape:
    """Return the sizes of a decoder with gated feed-forward layers, dense or of experts.

    Counts attention, feed-forward layers and embeddings; norms and biases are left out.

    Args:
        config: with the names that transformers uses for Llama, Mistral, Qwen and their like.
        bytes_per_value: of weights, keys and values.

    Raises:
        KeyError: a size is missing.
    """
    config = config.get("text_config", config)
    width, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or width // heads)
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
    chosen = int(config.get("num_experts_per_tok") or 1) if experts > 1 else 1
    inner = int(
        (config.get("moe_intermediate_size") if experts > 1 else None)
        or config["intermediate_size"]
    )
    attention = 2 * width * head_dim * (heads + kv_heads)
    feed_forward = 3 * width * inner * experts
    embeddings = int(config["vocab_size"]) * width
    if not config.get("tie_word_embeddings", False):
        embeddings *= 2
    return ModelShape(
        str(config.get("model_type", "model")),
        float(layers * (attention + feed_forward) + embeddings),
        layers,
        heads,
        kv_heads,
        head_dim,
        bytes_per_value,
        expert_params=float(layers * feed_forward) if experts > 1 else 0.0,
        num_experts=experts,
        num_chosen=chosen,
    )
