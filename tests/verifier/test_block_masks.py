from __future__ import annotations

import random

import pytest
import torch
from tiny_models import RandomTreeDrafter, random_prompt, tiny_llama
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from transformers import masking_utils
from transformers.integrations import flex_attention as integration

import freedraft
from freedraft import CandidateTree, GenerationResult
from freedraft.verifier import model_support
from freedraft.verifier.block_masks import block_mask
from freedraft.verifier.layout import pack_trees
from freedraft.verifier.masks import Slots, visible_keys


def random_tree(rng: random.Random, num_nodes: int) -> CandidateTree:
    parents = [rng.randint(max(-1, node - 6), node - 1) for node in range(num_nodes)]
    return CandidateTree.from_arrays(range(num_nodes), parents)


@pytest.mark.parametrize("num_nodes", [0, 3, 40, 150])
@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize("slots", [Slots(200), Slots(200, num_unused=70), Slots(4, True)])
def test_same_keys_as_the_additive_mask(num_nodes: int, window: int | None, slots: Slots) -> None:
    rng = random.Random(num_nodes)
    batch = pack_trees([random_tree(rng, num_nodes), random_tree(rng, num_nodes // 3)], [1, 2])
    lengths = torch.tensor([200, 131])
    if slots.right_aligned:
        lengths = torch.tensor([3, 77])
    wanted = visible_keys(batch, lengths, slots, window)
    mask = block_mask(batch, lengths, slots, window)
    shown = create_mask(mask.mask_mod, 2, 1, batch.width, wanted.shape[2], "cpu")
    assert torch.equal(shown[:, 0], wanted)
    assert mask.shape == (2, 1, batch.width, wanted.shape[2])
    size = mask.BLOCK_SIZE[1]
    for row in range(2):  # a block is kept just where some column of it sees some key of it
        for place, kept in enumerate(mask.to_dense()[row, 0].any(0).tolist()):
            keys = wanted[row, :, place * size : (place + 1) * size]
            assert kept == bool(keys.any())


@pytest.fixture
def without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run FlexAttention as plain operations: its compiled kernels know no float64."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(model_support, "_has_flex_kernel", lambda model: True)
    monkeypatch.setattr(
        integration,
        "compile_friendly_flex_attention",
        lambda query, key, value, training, **options: integration.flex_attention(
            query, key, value, **options
        ),
    )
    monkeypatch.setattr(
        masking_utils,
        "create_block_mask",
        lambda **options: create_block_mask(**{**options, "_compile": False}),
    )


@pytest.mark.usefixtures("without_compiling")
@pytest.mark.parametrize("batch_size", [1, 3])
def test_same_tokens_as_with_sdpa(batch_size: int) -> None:
    rng = random.Random(batch_size)
    prompts = [random_prompt(rng, 2 + 3 * row) for row in range(batch_size)]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    texts: list[list[list[int]]] = []
    for attention in ("sdpa", "flex_attention"):
        model = tiny_llama()
        model.set_attn_implementation(attention)
        answers = [p + new for p, new in zip(prompts, texts[0], strict=True)] if texts else []
        result = freedraft.generate(
            model,
            ids,
            attention_mask=mask,
            drafter=RandomTreeDrafter(1, answers) if texts else None,
            cost_gate=False,
            do_sample=False,
            max_new_tokens=12,
            return_dict=True,
        )
        assert isinstance(result, GenerationResult)
        texts.append(result.token_ids)
    assert texts[1] == texts[0]
    assert result.statistics.accepted > 5


def test_refused_where_the_kernel_does_not_compile() -> None:
    model = tiny_llama()
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="on a GPU only, got the device 'cpu'"):
        freedraft.generate(model, [1, 2, 3], max_new_tokens=3)
