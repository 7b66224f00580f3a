"""What transformers runs without an error and gets wrong for a tree: each case with and without us.

Each test shows two things: what comes out with our handling is what the text alone gives, and with
that handling taken away nothing is raised and the logits are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cache_kinds import KINDS
from recurrent_models import build_recurrent
from tiny_architectures import build
from tiny_models import tiny_llama
from torch import Tensor
from transformers import (
    AttentionMaskInterface,
    BloomConfig,
    BloomForCausalLM,
    Cache,
    DynamicCache,
    FalconConfig,
    FalconForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PreTrainedModel,
)

from freedraft import CandidateTree
from freedraft.verifier import TreeForward, open_target, tree_forward
from freedraft.verifier.caches.rolling_layers import RollingKeeper, StaticRollingKeeper
from freedraft.verifier.caches.step_layer import StepLayer
from freedraft.verifier.chain_forward import ChainForward
from freedraft.verifier.cpu.attention import PACKED_ATTENTION
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path
from freedraft.verifier.layout import TreeBatch
from freedraft.verifier.masks import Slots, visible_keys
from freedraft.verifier.model_support import plan_masks
from freedraft.verifier.recurrent_state import Snapshot

# 1 ─ 2 ─ 3 ─ 4
# └ 5 ─ 6
TREE = CandidateTree.from_chains([[1, 2, 3, 4], [1, 5, 6]])
PROMPTS = [[7, 3, 9, 11, 2, 8, 7, 3, 9], [12, 4, 6, 4]]
ROOTS = [13, 14]
WRONG = 1e-3
IDS: dict[str, Any] = {
    "vocab_size": 48,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def alone(model: PreTrainedModel, text: Sequence[int]) -> Tensor:
    """Return the logits after a text that is run by itself."""
    logits: Tensor = model(torch.tensor([list(text)])).logits[0, -1]
    return logits


def error_of_a_tree(model: PreTrainedModel, prompts: list[list[int]], cache: Cache | None) -> float:
    """Return by how much the logits behind some node of some row are off, before any commit."""
    with torch.no_grad():
        target = TreeForward(model, cache, num_tokens=20)
        target.prefill(prompts)
        logits = target.forward([TREE] * len(prompts), ROOTS[: len(prompts)])
        return max(
            float((logits[row, node + 1] - alone(model, text)).abs().max())
            for row, prompt in enumerate(prompts)
            for node in range(-1, TREE.num_nodes)
            for text in [[*prompt, ROOTS[row], *TREE.token_ids[TREE.path(node)].tolist()]]
        )


def error_behind_a_step(model: PreTrainedModel, prompts: list[list[int]], cache: Cache) -> float:
    """Return by how much the next step is off, when the second branch was accepted in row 0."""
    with torch.no_grad():
        target = TreeForward(model, cache, num_tokens=20)
        target.prefill(prompts)
        target.forward([TREE] * len(prompts), ROOTS[: len(prompts)])
        accepted = [TREE.path(5), TREE.path(0)][: len(prompts)]
        target.commit(accepted)
        logits = target.forward([CandidateTree.empty()] * len(prompts), [15] * len(prompts))
        texts = [
            [*prompt, root, *TREE.token_ids[path].tolist(), 15]
            for prompt, root, path in zip(prompts, ROOTS, accepted, strict=False)
        ]
        return max(
            float((logits[row, 0] - alone(model, text)).abs().max())
            for row, text in enumerate(texts)
        )


def boolean_mask(
    batch: TreeBatch, lengths: Tensor, slots: Slots, dtype: torch.dtype, window: int | None = None
) -> Tensor:
    return visible_keys(batch, lengths, slots, window)[:, None]


def test_eager_attention_adds_a_boolean_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    model.set_attn_implementation("eager")
    assert error_of_a_tree(model, PROMPTS, None) < 1e-6  # its softmax is in float32
    monkeypatch.setattr(tree_forward, "additive_mask", boolean_mask)
    assert error_of_a_tree(model, PROMPTS, None) > WRONG
    model.set_attn_implementation("sdpa")  # the mask itself is right: there it is applied
    assert error_of_a_tree(model, PROMPTS, None) < 1e-9


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_a_tree_mask_without_the_window(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = build(name)
    assert error_of_a_tree(model, PROMPTS, None) < 1e-6
    full = tree_forward.additive_mask
    monkeypatch.setattr(
        tree_forward,
        "additive_mask",
        lambda batch, lengths, slots, dtype, window=None: full(batch, lengths, slots, dtype),
    )
    assert error_of_a_tree(model, PROMPTS, None) > WRONG


def test_a_window_by_slot_and_not_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings and padding stand between a node and its window's first token."""
    model = build("mistral")

    def by_slot(
        batch: TreeBatch, lengths: Tensor, slots: Slots, dtype: torch.dtype, window: int | None
    ) -> Tensor:
        allowed = visible_keys(batch, lengths, slots)
        assert window is not None
        own = slots.num_used + torch.arange(batch.width)
        keys = torch.arange(allowed.shape[2])
        allowed &= keys > own[:, None] - window
        mask = torch.zeros(allowed.shape, dtype=dtype)
        return mask.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]

    monkeypatch.setattr(tree_forward, "additive_mask", by_slot)
    assert error_of_a_tree(model, PROMPTS, None) > WRONG


@pytest.mark.parametrize("static", [False, True])
def test_a_rolling_window_that_is_taken_for_slots(
    monkeypatch: pytest.MonkeyPatch, static: bool
) -> None:
    model = build("mistral")
    kind = KINDS["static" if static else "rolling"]
    assert error_of_a_tree(model, PROMPTS, kind(model, 20)["cache"]) < 1e-9
    keeper = StaticRollingKeeper if static else RollingKeeper
    monkeypatch.setattr(keeper, "right_aligned", False)
    if static:  # it says how many slots it shows only where they are slots
        monkeypatch.setattr(keeper, "capacity", None)
    monkeypatch.setattr(
        TreeForward, "_slots", lambda self, kind, width: Slots(self._keepers[0].num_slots)
    )
    assert error_of_a_tree(model, PROMPTS, kind(model, 20)["cache"]) > WRONG


@pytest.mark.parametrize("kind", ["dynamic", "static", "fp8"])
def test_a_branch_that_is_cut_but_not_moved(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model = tiny_llama()
    exact = WRONG if kind == "fp8" else 1e-9  # the 8-bit floats are rounded

    def error() -> float:
        return error_behind_a_step(model, PROMPTS, KINDS[kind](model, 20)["cache"])

    right = error()
    assert right < 50 * exact
    monkeypatch.setattr("freedraft.verifier.caches.slot_layers.move_slots", lambda *_: None)
    assert error() > max(WRONG, 3 * right)


def test_a_static_cache_that_counts_what_was_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    cache = KINDS["static"](model, 40)["cache"]
    for layer in cache.layers:
        monkeypatch.setattr(layer, "crop", lambda tokens_to_remove: None)
    with torch.no_grad():
        target = TreeForward(model, cache, num_tokens=20)
        target.prefill(PROMPTS[:1])
        target.forward([TREE], ROOTS[:1])
        target.commit([[0]])
        assert int(cache.get_seq_length()) > target.context_lengths[0]
        logits = model(torch.tensor([[15]]), cache=cache).logits[0, -1]
        wanted = alone(model, [*PROMPTS[0], 13, 1, 15])
        assert float((logits - wanted).abs().max()) > WRONG


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_single_token_on_a_static_cache(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = build(name)

    def error() -> float:
        with torch.no_grad():
            target = TreeForward(model, KINDS["static"](model, 12)["cache"], num_tokens=12)
            return float((target.prefill([[39]])[0] - alone(model, [39])).abs().max())

    assert error() < 1e-6
    monkeypatch.setattr(StepLayer, "is_compileable", False)
    monkeypatch.setattr(StepLayer, "__setattr__", _all_but_is_compileable)
    assert (error() > WRONG) == (name != "llama")  # which has no layer that stands aside


def _all_but_is_compileable(layer: StepLayer, name: str, value: object) -> None:
    if name != "is_compileable":
        object.__setattr__(layer, name, value)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "mamba2", "falcon_h1"])
def test_a_recurrent_state_that_is_not_brought_back(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = build_recurrent(name)

    def error() -> float:
        with torch.no_grad():
            target = open_target(model)
            assert isinstance(target, ChainForward)
            target.prefill(PROMPTS[:1])
            target.forward([CandidateTree.from_chain([1, 2, 3])], [13])
            target.commit([[0]])
            logits = target.forward([CandidateTree.empty()], [15])
            return float((logits[0, 0] - alone(model, [*PROMPTS[0], 13, 1, 15])).abs().max())

    assert error() < 1e-5
    monkeypatch.setattr(Snapshot, "restore", lambda self: None)
    assert error() > WRONG


def test_a_tree_over_convolutions_and_over_linear_attention() -> None:
    """One forward over a tree: a layer without a mask runs each node behind its neighbour."""
    mask = torch.zeros(1, 1, 7, 16, dtype=torch.float64)
    visible = torch.ones(7, 16, dtype=torch.bool)
    visible[1:, 9] = True
    visible[0, 10:] = False
    visible[1:, 10:] = torch.from_numpy(TREE.ancestor_mask())
    mask.masked_fill_(~visible, torch.finfo(torch.float64).min)
    positions = torch.tensor([[9, *(9 + TREE.depths())]])
    ids = torch.tensor([[13, *TREE.token_ids.tolist()]])
    for name, kind in (("lfm2", "conv"), ("qwen3_next", "linear_attention")):
        model = build_recurrent(name)
        with pytest.raises(ValueError, match="got LinearAttentionLayer"):
            TreeForward(model)
        with torch.no_grad():
            cache = DynamicCache(config=model.config)
            model(torch.tensor(PROMPTS[:1]), cache=cache)
            logits = model(
                ids,
                attention_mask={"full_attention": mask, kind: None},
                position_ids=positions,
                cache=cache,
            ).logits[0]
            wanted = alone(model, [*PROMPTS[0], 13, 1, 5])
            target = ChainForward(model)
            target.prefill(PROMPTS[:1])
            right = target.forward([TREE.keep(TREE.path(4))], [13])[0, 2]
        error = float((right - wanted).abs().max())
        assert error < 1e-6, name
        # LFM2's convolutions weigh little in a fresh model.
        assert float((logits[5] - wanted).abs().max()) > max(5e-5, 100 * error), name


def test_an_attention_of_ours_without_a_mask_function(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(torch.float32)
    enable_cpu_fast_path(model, allow_extra_memory=True)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1]])
    inputs = {"attention_mask": mask, "position_ids": torch.tensor([[0, 0, 0, 0, 1, 2]])}

    def error() -> float:
        with torch.no_grad():
            logits = model(torch.tensor([[0, 0, 0, 5, 6, 7]]), **inputs).logits[0, -1]
            return float((logits - alone(model, [5, 6, 7])).abs().max())

    assert error() < 1e-5
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, PACKED_ATTENTION)
    assert error() > WRONG


def test_positions_that_come_from_the_mask_are_refused_by_name() -> None:
    bloom = BloomForCausalLM(BloomConfig(hidden_size=16, n_layer=1, n_head=2, **IDS))
    with pytest.raises(ValueError, match=r"takes position_ids .*, got BloomForCausalLM without it"):
        plan_masks(bloom)
    falcon = FalconForCausalLM(
        FalconConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True, **IDS)
    )
    with pytest.raises(ValueError, match="explicit positions, got FalconForCausalLM with alibi"):
        plan_masks(falcon)


def test_chunked_attention_is_refused_by_name() -> None:
    config = Llama4TextConfig(
        hidden_size=16,
        intermediate_size=16,
        intermediate_size_mlp=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=1,
        attention_chunk_size=4,
        layer_types=["chunked_attention"],
        moe_layers=[],
        **IDS,
    )
    with pytest.raises(ValueError, match="got DynamicSlidingWindowLayer in Llama4ForCausalLM"):
        plan_masks(Llama4ForCausalLM(config))
