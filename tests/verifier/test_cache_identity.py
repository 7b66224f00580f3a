"""On every kind of cache the tokens are those of plain decoding on that kind of cache.

The sweep over all architectures with a hundred prompts each is ``benchmarks/cache_identity.py``.
"""

from __future__ import annotations

import pytest
import torch
from cache_kinds import FULL_ATTENTION_ONLY, KINDS, SINGLE_ROW, count_differences, rounded_cache
from tiny_models import tiny_llama
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

import freedraft


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    torch.manual_seed(7)
    gemma3 = Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    return {"llama": tiny_llama(), "gemma3": gemma3.double().eval()}


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_same_tokens(
    models: dict[str, PreTrainedModel], name: str, kind: str, batch_size: int
) -> None:
    if name == "gemma3" and kind in FULL_ATTENTION_ONLY:
        pytest.skip("transformers quantises caches of full attention only")
    if batch_size > 1 and kind in SINGLE_ROW:
        pytest.skip("refused: see the test below")
    different, accepted = count_differences(models[name], KINDS[kind], 3, batch_size, 15)
    assert different == 0
    assert accepted > 15


def test_groups_of_tokens_are_quantised_for_one_row_only(
    models: dict[str, PreTrainedModel],
) -> None:
    model = models["llama"]
    ids = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="batch of 1 with a cache that is quantised in groups"):
        freedraft.generate(
            model,
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=3,
            cache=rounded_cache(model),
        )


def test_a_path_beyond_the_limit_of_exact_tokens_would_be_wrong(
    models: dict[str, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    from freedraft.verifier.caches.quantized_layers import QuantizedKeeper

    monkeypatch.setattr(QuantizedKeeper, "max_depth", None)
    different, _ = count_differences(models["llama"], KINDS["quantised"], 6, 1, 24)
    assert different > 0
