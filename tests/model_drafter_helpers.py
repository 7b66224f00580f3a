"""Tiny models and drafters that run them, shared by several tests."""

from __future__ import annotations

import torch
from tiny_models import VOCAB_SIZE
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

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
