"""Tiny models and drafters that run them, shared by several tests."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import VOCAB_SIZE
from torch import Tensor
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from freedraft.drafters.draft_model import DraftModelDrafter, VocabularyMap
from freedraft.drafters.layer_skip import LayerSkipConfig, LayerSkipDrafter, SkipSet
from freedraft.drafters.model_drafting import ModelDraftConfig
from freedraft.verifier import TreeForward
from freedraft.verifier.tree_growth import TreeGrowth

SHAPES = {
    "chain": {},
    "tree": {"width": 2, "branches": 3},
    "drawn chain": {"temperature": 0.9},
    "drawn tree": {"temperature": 0.9, "width": 2, "branches": 2},
}


def deep_llama(num_layers: int = 5, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> PreTrainedModel:
    """Return a model in float64 with a lively next token, so that not all drafts are right."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).double().eval()


IDS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    **IDS,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


OTHER_MODELS = ("gpt2", "gpt_neox", "phi", "falcon", "gemma2", "qwen3_moe")


def other_model(name: str) -> PreTrainedModel:
    """Return a model of three layers of another make, in float64."""
    torch.manual_seed(5)
    models: dict[str, Any] = {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=3, n_head=4, **IDS)),
        "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)),
        "phi": lambda: PhiForCausalLM(PhiConfig(**SMALL)),
        "falcon": lambda: FalconForCausalLM(FalconConfig(**SMALL)),
        "gemma2": lambda: Gemma2ForCausalLM(
            Gemma2Config(head_dim=8, num_key_value_heads=2, **SMALL)
        ),
        "qwen3_moe": lambda: Qwen3MoeForCausalLM(
            Qwen3MoeConfig(head_dim=8, num_key_value_heads=2, **EXPERTS, **SMALL)
        ),
    }
    model: PreTrainedModel = models[name]().double().eval()
    if name == "qwen3_moe":
        model.set_experts_implementation("eager")
    return model


def draft_config(shape: str) -> ModelDraftConfig:
    """Return settings that always draft, so that every step tests something."""
    return ModelDraftConfig(max_depth=4, confidence=0.0, gate=False, **SHAPES[shape])


def layer_skipper(shape: str, skip: SkipSet | None = None) -> LayerSkipDrafter:
    """Return a drafter that leaves out two attentions and an MLP, one layer whole."""
    chosen = SkipSet.of([1, 3], [3]) if skip is None else skip
    return LayerSkipDrafter(LayerSkipConfig(chosen, draft_config(shape)))


def opened_runners(model: PreTrainedModel, opened: list[TreeGrowth]) -> TreeGrowth:
    """Open a runner and note it in ``opened``."""
    opened.append(TreeGrowth(model, TreeForward(model)))
    return opened[-1]


def model_drafter(
    model: PreTrainedModel, shape: str, opened: list[TreeGrowth] | None = None
) -> DraftModelDrafter:
    """Return a drafter with a model of the target's vocabulary."""
    runners: list[TreeGrowth] = [] if opened is None else opened
    size = model.config.get_text_config().vocab_size
    return DraftModelDrafter(
        lambda: opened_runners(model, runners),
        VocabularyMap.identity(VOCAB_SIZE, size),
        draft_config(shape),
    )


def cached_states(cache: object) -> list[Tensor]:
    """Return copies of all keys and values."""
    layers = cache.layers  # type: ignore[attr-defined]
    return [states.clone() for layer in layers for states in (layer.keys, layer.values)]
