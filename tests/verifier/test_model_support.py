from __future__ import annotations

import random

import pytest
import torch
from tiny_models import random_prompt, tiny_llama
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

import freedraft
from freedraft.verifier import TreeForward
from freedraft.verifier.model_support import plan_masks

SMALL = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


def sliding_models() -> dict[str, PreTrainedModel]:
    torch.manual_seed(1)
    layers = ["sliding_attention", "sliding_attention", "full_attention"]
    return {
        "mistral": MistralForCausalLM(
            MistralConfig(sliding_window=6, num_hidden_layers=2, **SMALL)
        ),
        "gemma3": Gemma3ForCausalLM(
            Gemma3TextConfig(sliding_window=5, num_hidden_layers=3, layer_types=layers, **SMALL)
        ),
    }


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sliding_windows_decode_as_without_drafts(name: str, attention: str) -> None:
    model = sliding_models()[name].double().eval()
    model.set_attn_implementation(attention)
    rng = random.Random(3)
    accepted = 0
    for length in (2, 5, 12, 20):
        prompt = torch.tensor([random_prompt(rng, length)])
        wanted = model.generate(prompt, max_new_tokens=24, do_sample=False)
        result = freedraft.generate(
            model,
            prompt,
            drafter="ngram",
            cost_gate=False,
            max_new_tokens=24,
            do_sample=False,
            return_dict=True,
        )
        assert isinstance(result, freedraft.GenerationResult)
        assert torch.equal(result.sequences, wanted)
        accepted += result.statistics.accepted
    assert accepted > 0


def test_a_mask_without_the_window_would_be_wrong() -> None:
    model = sliding_models()["mistral"].double().eval()
    assert plan_masks(model).windows == {"sliding_attention": 6}
    tree = freedraft.CandidateTree.from_chains([[1, 2, 3, 4], [1, 5]])
    prompt = list(range(1, 13))
    with torch.no_grad():
        wanted = model(torch.tensor([[*prompt, 13, 1, 2, 3, 4]])).logits[0, -1]
        logits = []
        for windows in ({"sliding_attention": 6}, {"full_attention": None}):
            target = TreeForward(model)
            object.__setattr__(target._plan, "windows", windows)
            object.__setattr__(target._plan, "layer_kinds", list(windows) * 2)
            target.prefill([prompt])
            logits.append(target.forward([tree], [13])[0, 4])
    torch.testing.assert_close(logits[0], wanted)
    assert float((logits[1] - wanted).abs().max()) > 1e-3


def test_models_without_a_sliceable_cache_are_refused_by_name() -> None:
    mamba = MambaForCausalLM(
        MambaConfig(vocab_size=48, hidden_size=16, state_size=4, num_hidden_layers=2)
    )
    with pytest.raises(ValueError, match="MambaForCausalLM"):
        plan_masks(mamba)
    t5 = T5ForConditionalGeneration(
        T5Config(vocab_size=48, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8)
    )
    with pytest.raises(ValueError, match=r"decoder-only model, got .*T5ForConditionalGeneration"):
        plan_masks(t5)


def test_attention_that_reads_no_additive_mask_is_refused() -> None:
    model = tiny_llama()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="got 'flash_attention_2'"):
        plan_masks(model)
