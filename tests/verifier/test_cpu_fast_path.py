"""The CPU fast path against the stock model: equal logits, honest fall-backs, a clean way back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import (
    DynamicCache,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from freedraft.verifier.cpu import attention as cpu_attention
from freedraft.verifier.cpu import fast_path as fast_path_module
from freedraft.verifier.cpu import linear as cpu_linear
from freedraft.verifier.cpu.attention import PACKED_ATTENTION, packed_attention_forward
from freedraft.verifier.cpu.contiguous_cache import ContiguousCache
from freedraft.verifier.cpu.fast_path import (
    FastPathReport,
    disable_cpu_fast_path,
    enable_cpu_fast_path,
)
from freedraft.verifier.cpu.linear import PackedLinear, PackedWeight, SharedLinear

VOCAB_SIZE = 256
HIDDEN = 192  # large enough that the fast path cares for the layers
NUM_HEADS = 6


def make_model(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a two-layer model: llama, tied llama, qwen2 (with biases), mqa, mha or gpt_neox."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": NUM_HEADS,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        "initializer_range": 0.1,  # logits that are far from equal
    }
    groups = {"mqa": 1, "mha": NUM_HEADS}.get(kind, 2)
    model: Any
    if kind == "gpt_neox":
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_key_value_heads=groups))
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.normal_(layer.bias)
    else:
        tied = kind == "tied"
        config = LlamaConfig(**sizes, num_key_value_heads=groups, tie_word_embeddings=tied)
        model = LlamaForCausalLM(config)
    return model.to(dtype).eval()


def run_tree(model: Any, cache: Any, batch: int) -> Tensor:
    """Run a prompt, a tree, and, from the path that was kept, one more token.

    The tree of each row, below the last committed token r:

        r -- a -- b -- d
         \\    \\
          e    c
    """
    ids = torch.randint(1, VOCAB_SIZE, (batch, 30), generator=torch.Generator().manual_seed(3))
    parents = [-1, 0, 1, 1, 2, 0]  # r, a, b, c, d, e
    visible = torch.eye(6, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            visible[node] |= visible[parent]
    allowed = torch.cat([torch.ones(6, 20, dtype=torch.bool), visible], dim=1)
    mask = torch.zeros(batch, 1, 6, 26, dtype=model.dtype)
    mask.masked_fill_(~allowed, torch.finfo(model.dtype).min)
    depths = visible.sum(1) - 1
    kept = [0, 1, 2, 4]
    with torch.inference_mode():
        prompt = model(input_ids=ids[:, :20], cache=cache)
        tree = model(
            input_ids=ids[:, 20:26],
            attention_mask=mask,
            position_ids=(20 + depths).expand(batch, -1),
            cache=cache,
        )
        if isinstance(cache, ContiguousCache):
            cache.compact(20, kept)
        else:
            slots = torch.tensor([*range(20), *(20 + node for node in kept)])
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[:, :, slots], layer.values[:, :, slots]
        after = model(input_ids=ids[:, 26:27], cache=cache)
    return torch.cat([prompt.logits, tree.logits, after.logits], dim=1)


class FakeAttention(nn.Module):
    """What an attention function reads of its layer."""

    def __init__(self, layer_idx: int | None, group_size: int) -> None:
        super().__init__()
        if layer_idx is not None:
            self.layer_idx = layer_idx
        self.num_key_value_groups = group_size


def assert_same_logits(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["llama", "tied", "qwen2", "mqa", "mha", "gpt_neox"])
def test_trees_give_the_logits_of_the_stock_model(kind: str, batch: int) -> None:
    model = make_model(kind)
    expected = run_tree(model, DynamicCache(), batch)
    assert expected.std() > 0.5
    report = enable_cpu_fast_path(model)
    assert report.enabled and report.difference < 1e-5
    assert report.packed_attention == (kind not in ("mha", "gpt_neox"))
    assert_same_logits(run_tree(model, ContiguousCache(), batch), expected)
    assert_same_logits(run_tree(model, DynamicCache(), batch), expected)


def test_bfloat16() -> None:
    model = make_model("qwen2", torch.bfloat16)
    expected = run_tree(model, DynamicCache(), 2).float()
    assert enable_cpu_fast_path(model).num_packed > 0
    got = run_tree(model, ContiguousCache(), 2).float()
    assert (got - expected).square().mean().sqrt() < 0.03 * expected.std()


def test_what_is_packed() -> None:
    report = enable_cpu_fast_path(make_model("llama"))
    assert report == FastPathReport(
        enabled=True,
        num_packed=15,  # seven a layer and the head
        num_stacked=10,  # query, key, value; gate, up
        packed_attention=True,
        difference=report.difference,
    )
    assert report.lines()[0] == (
        "CPU fast path: on, 15 linear layers packed (10 of them stacked), 0 on plain weights, "
        "attention packed by group"
    )


def test_generate_through_padded_rows() -> None:
    model = make_model("llama")
    ids = torch.randint(1, VOCAB_SIZE, (2, 9), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, **options)
    enable_cpu_fast_path(model)
    assert torch.equal(model.generate(ids, cache=ContiguousCache(), **options), expected)


@pytest.mark.parametrize("kind", ["tied", "qwen2"])
def test_the_way_back_is_exact(kind: str) -> None:
    model = make_model(kind)
    layers = {name: type(module) for name, module in model.named_modules()}
    parameters = dict(model.named_parameters())
    values = {name: value.clone() for name, value in model.state_dict().items()}
    expected = run_tree(model, DynamicCache(), 1)
    report = enable_cpu_fast_path(model, allow_extra_memory=True)
    assert model.config._attn_implementation == PACKED_ATTENTION
    released = parameters["model.layers.0.mlp.down_proj.weight"]
    assert released.numel() == 0  # not kept twice
    while_packed = model.state_dict()
    disable_cpu_fast_path(model)
    disable_cpu_fast_path(model)
    assert report.num_packed == 15
    assert {name: type(module) for name, module in model.named_modules()} == layers
    again = dict(model.named_parameters())
    assert again.keys() == parameters.keys()
    assert all(again[name] is parameters[name] for name in parameters)
    for state in (while_packed, model.state_dict()):
        assert state.keys() == values.keys()
        assert all(torch.equal(state[name], value) for name, value in values.items())
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(run_tree(model, DynamicCache(), 1), expected)
    assert enable_cpu_fast_path(model).enabled


def test_a_shared_weight_costs_memory_only_when_told_so() -> None:
    model = make_model("tied")
    embedding = model.get_input_embeddings().weight
    report = enable_cpu_fast_path(model)
    assert (report.num_packed, report.num_unpacked, report.extra_bytes) == (14, 1, 0)
    assert isinstance(model.lm_head, SharedLinear)
    disable_cpu_fast_path(model)
    report = enable_cpu_fast_path(model, allow_extra_memory=True)
    assert (report.num_packed, report.num_unpacked) == (15, 0)
    assert report.extra_bytes == VOCAB_SIZE * HIDDEN * 4
    assert model.lm_head.weight is embedding is model.get_input_embeddings().weight
    assert embedding.shape == (VOCAB_SIZE, HIDDEN)


def test_the_context_manager_goes_back_after_an_error() -> None:
    model = make_model("llama")
    with pytest.raises(KeyError), fast_path_module.cpu_fast_path(model) as report:
        assert report.enabled
        raise KeyError
    assert type(model.lm_head) is nn.Linear


def test_float64_is_left_alone() -> None:
    model = make_model("llama", torch.float64)
    report = enable_cpu_fast_path(model)
    assert not report.enabled
    assert report.lines() == [
        "CPU fast path: off (the model is in torch.float64, not float32 or bfloat16)"
    ]
    assert type(model.lm_head) is nn.Linear
    assert model.config._attn_implementation == "sdpa"


def test_misuse_is_refused() -> None:
    model = make_model("tied")
    with pytest.raises(ValueError, match="evaluation mode"):
        enable_cpu_fast_path(model.train())
    enable_cpu_fast_path(model.eval(), allow_extra_memory=True)
    with pytest.raises(RuntimeError, match="has it already"):
        enable_cpu_fast_path(model)
    for misuse in (
        lambda: model.train(),
        lambda: model.to(torch.bfloat16),
        lambda: model.load_state_dict(model.state_dict()),
        lambda: copy.deepcopy(model),
    ):
        with pytest.raises((RuntimeError, TypeError), match="disable_cpu_fast_path"):
            misuse()
    model.to("cpu", torch.float32)


def test_without_the_operators_the_layers_stay_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = make_model("llama")
    expected = run_tree(model, DynamicCache(), 1)
    report = enable_cpu_fast_path(model)
    assert report.num_packed == 0 and report.packed_attention
    assert report.left_alone["lm_head"] == "this PyTorch is built without oneDNN"
    assert any("stock: " in line and "without oneDNN" in line for line in report.lines())
    assert_same_logits(run_tree(model, ContiguousCache(), 1), expected)
    nothing = enable_cpu_fast_path(make_model("mha"))
    assert not nothing.enabled and nothing.reason == "no layer and no attention to exchange"


def test_an_operator_that_refuses_or_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reorder, multiply = cpu_linear._operators()

    def refuse(*args: object) -> Tensor:
        raise RuntimeError("no such instruction")

    def wrong(x: Tensor, *args: Any) -> Tensor:
        result: Tensor = multiply(x, *args)
        result[-1, 0] += 1e-2
        return result

    for broken, reason in (
        ((refuse, multiply), "oneDNN refuses: no such instruction"),
        ((reorder, refuse), "oneDNN refuses: no such instruction"),
        ((reorder, wrong), "differs from the plain layer"),
    ):
        monkeypatch.setattr(cpu_linear, "_operators", lambda broken=broken: broken)
        model = make_model("tied")
        values = {name: value.clone() for name, value in model.state_dict().items()}
        report = enable_cpu_fast_path(model, allow_extra_memory=True)
        assert report.num_packed == 0
        assert report.left_alone["model.layers.1.mlp.down_proj"].startswith(reason)
        assert all(torch.equal(model.state_dict()[name], values[name]) for name in values)


def test_a_wrong_attention_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return packed_attention_forward(*args, **kwargs)[0] * 1.01, None

    monkeypatch.setattr(cpu_attention, "packed_attention_forward", wrong)
    model = make_model("llama")
    report = enable_cpu_fast_path(model)
    assert report.num_packed > 0 and not report.packed_attention
    assert report.left_alone["attention"].startswith("logits differ from the stock model's")
    assert model.config._attn_implementation == "sdpa"


def test_stacking_that_changes_the_result_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama")
    mlp = model.model.layers[0].mlp

    def doubles_its_input_between(x: Tensor) -> Tensor:
        gate = mlp.act_fn(mlp.gate_proj(x))
        x.mul_(2)
        return mlp.down_proj(gate * mlp.up_proj(x))

    monkeypatch.setattr(mlp, "forward", doubles_its_input_between)
    expected = run_tree(model, DynamicCache(), 1)
    report = enable_cpu_fast_path(model)
    assert report.num_stacked == 0 and report.num_packed > 0
    assert report.left_alone["stacking"].startswith("logits differ from the stock model's")
    assert_same_logits(run_tree(model, ContiguousCache(), 1), expected)


def test_a_weight_that_is_read_directly_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama")
    mlp = model.model.layers[1].mlp
    monkeypatch.setattr(
        mlp,
        "forward",
        lambda x: linear(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x), mlp.down_proj.weight),
    )
    report = enable_cpu_fast_path(model)
    assert report.left_alone == {
        "model.layers.1.mlp.down_proj": "the model reads its weight directly"
    }
    assert type(mlp.down_proj) is nn.Linear and report.num_packed == 14


def test_hooked_layers_stay_plain() -> None:
    model = make_model("llama")
    handle = model.lm_head.register_forward_hook(lambda *args: None)
    assert enable_cpu_fast_path(model).left_alone == {"lm_head": "something hooks into it"}
    handle.remove()


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12),
    bias=st.booleans(),
)
def test_stacked_layers_in_any_order_on_any_input(calls: list[tuple[int, int]], bias: bool) -> None:
    torch.manual_seed(1)
    plain = [nn.Linear(8, width, bias=bias) for width in (5, 3, 4)]
    weights = [layer.weight.detach().clone() for layer in plain]
    inputs = [torch.randn(2, 4, 8), torch.randn(1, 8), torch.randn(3, 16)[:, ::2]]
    shared = PackedWeight(plain)
    layers = [PackedLinear(shared, index) for index in range(3)]
    for index, which in calls:
        with torch.inference_mode():
            got = layers[index](inputs[which])
        torch.testing.assert_close(got, linear(inputs[which], weights[index], plain[index].bias))
    assert torch.equal(layers[1].weight, weights[1])


def test_a_round_of_stacked_layers_starts_anew_on_a_refilled_input() -> None:
    plain = [nn.Linear(8, 5), nn.Linear(8, 3)]
    shared = PackedWeight(plain)
    x = torch.ones(1, 8)
    with torch.inference_mode():
        first = shared.multiply(0, x).clone()
        x.zero_()
        torch.testing.assert_close(shared.multiply(0, x)[0], plain[0].bias)
        torch.testing.assert_close(shared.multiply(1, x)[0], plain[1].bias)
    assert not torch.equal(first[0], plain[0].bias)


@pytest.mark.parametrize("shape", [(8,), (0, 8), (1, 0, 8), (2, 3, 4, 8)])
def test_packed_layers_take_the_shapes_that_plain_ones_take(shape: tuple[int, ...]) -> None:
    plain = nn.Linear(8, 5)
    x = torch.randn(shape)
    with torch.inference_mode():
        expected = plain(x)
        layer = PackedLinear(PackedWeight([plain]), 0)
        torch.testing.assert_close(layer(x), expected)
        with pytest.raises(TypeError, match=r"expected an input of torch.float32, got .*float16"):
            layer(x.to(torch.bfloat16))


@settings(max_examples=80, deadline=None)
@given(
    batch=st.integers(1, 3),
    mask_rows=st.sampled_from(["one", "batch", "none"]),
    groups=st.sampled_from([1, 2, 6]),
    queries=st.sampled_from([1, 2, 5, 64, 65]),
    context=st.integers(0, 40),
    boolean=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention_equals_sdpa(
    batch: int, mask_rows: str, groups: int, queries: int, context: int, boolean: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    module = FakeAttention(None, NUM_HEADS // groups)
    keys = context + queries
    query = random(batch, queries, NUM_HEADS, 8).transpose(1, 2)
    key, value = random(batch, groups, keys, 8), random(batch, groups, keys, 4)
    mask = None
    if mask_rows != "none":
        mask = random(1 if mask_rows == "one" else batch, 1, queries, keys) > 0
        mask[..., 0] = True
        if not boolean:
            mask = torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
    elif queries > 1:
        key, value = key[:, :, :queries], value[:, :, :queries]
    got, _ = packed_attention_forward(module, query, key, value, mask, scaling=0.3)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert got.is_contiguous()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_mask_that_is_refilled_between_forwards_counts_anew() -> None:
    layers = [FakeAttention(0, 3), FakeAttention(1, 3)]
    with torch.inference_mode():
        query, key = torch.randn(1, 6, 4, 8), torch.randn(1, 2, 4, 8)
        mask = torch.zeros(1, 1, 4, 4)
        for hidden in range(4):  # the same tensor, another content each forward
            mask.zero_()[..., hidden] = -1e9
            for layer in layers[: 1 + hidden % 2]:  # some forwards end early
                got, _ = packed_attention_forward(layer, query, key, key, mask)
                expected, _ = sdpa_attention_forward(layer, query, key, key, mask)
                torch.testing.assert_close(got, expected)


def test_layers_share_the_work_on_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    repeats = []
    repeat = cpu_attention._repeat
    monkeypatch.setattr(
        cpu_attention, "_repeat", lambda *args: repeats.append(args) or repeat(*args)
    )
    query, key = torch.randn(1, 6, 4, 8), torch.randn(1, 2, 4, 8)
    full, window = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    for _ in range(3):
        for index in range(6):  # two kinds of layers in turn
            mask = (full, window)[index % 2]
            packed_attention_forward(FakeAttention(index, 3), query, key, key, mask)
    assert len(repeats) == 6
