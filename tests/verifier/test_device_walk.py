"""All rows walked at once, where the logits lie, against rows walked one by one on the host."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cache_kinds import KINDS
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_models import build_recurrent
from tiny_architectures import build
from tiny_models import VOCAB_SIZE, RandomTreeDrafter, random_prompt, tiny_llama
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import freedraft
from freedraft import CandidateTree, GenerationResult
from freedraft.integrations.generation.device_walk import DeviceWalk
from freedraft.verifier import NoiseKey, TreeForward, choose_token, walk
from freedraft.verifier.device import batched_cache
from freedraft.verifier.device.batched_sampling import RowSampling
from freedraft.verifier.device.launched_step import Wanted, launch_step
from freedraft.verifier.device.operations import TORCH_OPERATIONS, DeviceOperations
from freedraft.verifier.layout import pack_trees, unfold_on_device

NEW_TOKENS = 14
Settings = tuple[float, int, float, float]


def random_trees(rng: np.random.Generator, num_rows: int, num_tokens: int) -> list[CandidateTree]:
    trees = []
    for _ in range(num_rows):
        chains = [rng.integers(num_tokens, size=rng.integers(1, 6)).tolist() for _ in range(5)]
        trees.append(CandidateTree.from_chains(chains).cut(int(rng.integers(0, 12))))
    return trees


def warpers(setting: Settings) -> LogitsProcessorList:
    """Return transformers' own processors of a row, in its own order."""
    temperature, top_k, top_p, min_p = setting
    found = LogitsProcessorList()
    if temperature:
        found.append(TemperatureLogitsWarper(temperature))
    if temperature and top_k:
        found.append(TopKLogitsWarper(top_k))
    if temperature and top_p < 1:
        found.append(TopPLogitsWarper(top_p))
    if temperature and min_p:
        found.append(MinPLogitsWarper(min_p))
    return found


one_setting = st.tuples(
    st.sampled_from([0.0, 0.6, 1.0, 1.7]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1.0, 0.83, 0.41]),
    st.sampled_from([0.0, 0.07]),
)


@settings(deadline=None)
@given(
    st.integers(0, 2**31),
    st.lists(one_setting, min_size=1, max_size=3),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_a_launched_step_is_what_the_host_would_do(
    seed: int, setting: list[Settings], dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    num_rows, vocab_size = len(setting), 7
    trees = random_trees(rng, num_rows, vocab_size)
    width = 1 + max(tree.num_nodes for tree in trees) + int(rng.integers(0, 3))
    logits = torch.from_numpy(rng.normal(scale=2, size=(num_rows, width, vocab_size))).to(dtype)
    keys = [NoiseKey(seed, row) for row in range(num_rows)]
    positions = rng.integers(1, 50, size=num_rows).tolist()
    columns = list(zip(*setting, strict=True))
    sampling = RowSampling.build(keys, *columns)
    step = launch_step(logits, trees, positions, sampling, TORCH_OPERATIONS, Wanted(True, 3))
    outcome = step.outcome()
    for row, tree in enumerate(trees):
        key = keys[row] if setting[row][0] else None
        processors = warpers(setting[row])
        depths = [0, *tree.depths().tolist()]

        def choose(node: int) -> int:
            scores = processors(torch.zeros(1, 1).long(), logits[row, node + 1][None].float())  # noqa: B023
            return choose_token(scores[0], key, positions[row] + depths[node + 1])  # noqa: B023

        expected = walk(tree, choose, lambda *_: True)
        assert outcome.token_ids[row] == expected.token_ids
        assert outcome.columns[row] == [0, *(node + 1 for node in expected.accepted)]
        raw = logits[row].float()
        logprobs = raw.log_softmax(-1)
        assert outcome.choices[row].tolist() == raw.argmax(-1).tolist()
        assert outcome.highest[row].tolist() == raw.amax(-1).tolist()
        assert outcome.logprobs is not None and outcome.top_ids is not None
        assert outcome.top_logprobs is not None
        for token, column in zip(expected.token_ids, outcome.columns[row], strict=True):
            assert outcome.logprobs[row, column] == pytest.approx(float(logprobs[column, token]))
        top = logprobs.topk(3, -1)
        assert outcome.top_logprobs[row] == pytest.approx(top.values.double().numpy())
        picked = logprobs.gather(1, torch.from_numpy(outcome.top_ids[row]))
        torch.testing.assert_close(picked, top.values)


@given(st.integers(0, 2**31), st.integers(1, 3))
def test_unfolded_trees_are_packed_trees(seed: int, num_rows: int) -> None:
    trees = random_trees(np.random.default_rng(seed), num_rows, 5)
    roots = list(range(num_rows))
    packed = pack_trees(trees, roots)
    unfolded = unfold_on_device(trees, roots, packed.width, "cpu")
    for name in ("input_ids", "depths", "visible"):
        assert torch.equal(getattr(unfolded, name), getattr(packed, name)), name
    assert unfolded.num_nodes == packed.num_nodes


def test_trees_are_unfolded_where_there_is_no_cpu() -> None:
    trees = [CandidateTree.from_chains([[1, 2], [3]]), CandidateTree.empty()]
    packed = pack_trees(trees, [5, 6], "meta")
    assert packed.visible.shape == (2, 4, 4) and packed.visible.device.type == "meta"
    long = CandidateTree.from_chain(np.zeros(300, np.int64))  # wider than the packed masks
    assert pack_trees([long], [5], "meta").width == 301


def ragged(rng: random.Random, batch_size: int) -> tuple[list[list[int]], Tensor, Tensor]:
    prompts = [random_prompt(rng, rng.randint(1, 14)) for _ in range(batch_size)]
    longest = max(map(len, prompts))
    ids = torch.zeros((batch_size, longest), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return prompts, ids, mask


def decode(model: PreTrainedModel, ids: Tensor, mask: Tensor, **options: Any) -> GenerationResult:
    result = freedraft.generate(
        model,
        ids,
        attention_mask=mask,
        cost_gate=False,
        return_dict=True,
        **{"max_new_tokens": NEW_TOKENS, **options},
    )
    assert isinstance(result, GenerationResult)
    assert result.statistics.switched_off == 0
    return result


GREEDY: dict[str, Any] = {"do_sample": False}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_k": 12, "top_p": 0.9}


def compare(model: PreTrainedModel, kind: str, batch_size: int, num_batches: int) -> int:
    """Assert that drafts and the place of the walk change nothing; return what was accepted."""
    rng = random.Random(batch_size)
    accepted = 0
    for number in range(num_batches):
        prompts, ids, mask = ragged(rng, batch_size)
        length = ids.shape[1] + NEW_TOKENS - 1
        for options in (GREEDY, {**SAMPLED, "seed": number}):
            results: list[GenerationResult] = []
            for walk_on in ("host", "device"):
                answers = (
                    [p + new for p, new in zip(prompts, results[0].token_ids, strict=True)]
                    if results
                    else []
                )
                for drafter in (None, RandomTreeDrafter(number, answers)):
                    cache = KINDS[kind](model, length)
                    results.append(
                        decode(
                            model, ids, mask, drafter=drafter, walk_on=walk_on, **options, **cache
                        )
                    )
            for result in results[1:]:
                assert result.token_ids == results[0].token_ids, (number, options)
                for got, want in zip(result.logprobs, results[0].logprobs, strict=True):
                    assert got == pytest.approx(want, abs=1e-5)
            accepted += results[-1].statistics.accepted
    return accepted


CASES = [
    ("llama", "own"),
    ("llama", "static"),
    ("llama", "fp8"),
    ("llama", "quantised"),
    ("gemma3", "own"),
    ("gemma3", "rolling"),
    ("lfm2", "own"),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_same_tokens_wherever_they_are_walked(name: str, kind: str, batch_size: int) -> None:
    if (kind, batch_size) == ("quantised", 5):
        pytest.skip("refused: a cache that is quantised in groups of tokens keeps one row")
    model = build_recurrent(name) if name == "lfm2" else build(name)
    assert compare(model, kind, batch_size, 2) > NEW_TOKENS


def test_what_the_device_has_not_moved_would_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = DeviceOperations(
        TORCH_OPERATIONS.choose_tokens,
        TORCH_OPERATIONS.walk_trees,
        TORCH_OPERATIONS.gather_columns,
        lambda *_: None,
        "torch",
    )
    monkeypatch.setattr(
        "freedraft.verifier.tree_forward.device_operations", lambda device: operations
    )
    with pytest.raises(AssertionError):
        compare(build("llama"), "own", 5, 3)


@pytest.mark.parametrize("kind", ["own", "static"])
def test_a_row_that_ends_inside_an_accepted_run_leaves_the_same_cache(kind: str) -> None:
    model = build("llama")
    prompts, ids, mask = ragged(random.Random(3), 3)
    plain = decode(model, ids, mask, drafter=None, **GREEDY)
    answers = [p + new for p, new in zip(prompts, plain.token_ids, strict=True)]
    ends = [plain.token_ids[0][5], plain.token_ids[2][8]]
    results = []
    for walk_on in ("host", "device"):
        options = {**GREEDY, "eos_token_id": ends, "pad_token_id": 0, "walk_on": walk_on}
        cache = KINDS[kind](model, ids.shape[1] + NEW_TOKENS - 1)
        drafter = RandomTreeDrafter(1, answers)
        results.append(decode(model, ids, mask, drafter=drafter, **options, **cache))
    host, device = results
    assert "eos" in host.finish_reasons
    assert device.finish_reasons == host.finish_reasons
    assert torch.equal(device.sequences, host.sequences)
    assert host.steps == device.steps
    assert host.cache is not None and device.cache is not None
    length = int(host.cache.get_seq_length())
    assert int(device.cache.get_seq_length()) == length
    for left, right in zip(host.cache.layers, device.cache.layers, strict=True):
        torch.testing.assert_close(left.keys[:, :, :length], right.keys[:, :, :length])


def test_criteria_end_a_row_as_on_the_host() -> None:
    model = build("llama")
    prompts, ids, mask = ragged(random.Random(4), 2)
    plain = decode(model, ids, mask, drafter=None, **GREEDY)
    answers = [p + new for p, new in zip(prompts, plain.token_ids, strict=True)]
    for walk_on in ("host", "device"):
        calls: list[int] = []

        def at_seven(input_ids: Tensor, scores: object) -> Tensor:
            calls.append(input_ids.shape[1])  # noqa: B023
            return torch.tensor([input_ids.shape[1] == ids.shape[1] + 7])

        result = decode(
            model,
            ids,
            mask,
            drafter=RandomTreeDrafter(1, answers),
            stopping_criteria=[at_seven],
            walk_on=walk_on,
            **GREEDY,
        )
        assert result.finish_reasons == ["criteria"] * 2
        assert result.token_ids == [new[:7] for new in plain.token_ids]
        assert len(calls) == 14


class Watched(Tensor):
    """Logits that tell when the host looks at what was made of them."""

    waits: list[str]
    LOOKS = ("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in (*cls.LOOKS, "cpu"):
            cls.waits.append(name)
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result.as_subclass(Tensor) if name == "cpu" else result  # type: ignore[no-untyped-call]


def count_waits(
    monkeypatch: pytest.MonkeyPatch, walk_on: str, **options: Any
) -> tuple[list[str], int]:
    """Return how often the host has waited for what came from a forward, and the steps."""
    model = tiny_llama()
    steps = 0
    for name in ("prefill", "forward"):
        own: Callable[..., Tensor] = getattr(TreeForward, name)

        def watched(self: TreeForward, *args: Any, own: Any = own) -> Tensor:
            nonlocal steps
            steps += 1
            logits: Tensor = own(self, *args).as_subclass(Watched)
            return logits

        monkeypatch.setattr(TreeForward, name, watched)
    _, ids, mask = ragged(random.Random(8), 4)
    Watched.waits = []
    decode(model, ids, mask, walk_on=walk_on, **options)
    return Watched.waits, steps


@pytest.mark.parametrize("drafter", ["ngram", "recycling"])  # one that asks for likely tokens
@pytest.mark.parametrize("options", [GREEDY, {**SAMPLED, "seed": 1}], ids=["greedy", "sampled"])
def test_the_host_waits_once_a_step(
    monkeypatch: pytest.MonkeyPatch, drafter: str, options: dict[str, Any]
) -> None:
    with monkeypatch.context() as patch:
        waits, steps = count_waits(patch, "device", drafter=drafter, **options)
    assert waits == ["cpu"] * steps and steps > 3
    with monkeypatch.context() as patch:
        waits, steps = count_waits(patch, "host", drafter=drafter, **options)
    assert len(waits) > 2 * steps  # or the watch would see nothing


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "penalty": ({"repetition_penalty": 1.2}, "RepetitionPenaltyLogitsProcessor"),
    "scores": ({"output_scores": True}, "output_scores or output_logits"),
    "order": (
        {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)]), **SAMPLED},
        "TemperatureLogitsWarper",
    ),
    "greedy warper": (
        {"logits_processor": LogitsProcessorList([TopKLogitsWarper(2)])},
        "TopKLogitsWarper",
    ),
    "kept tokens": (
        {
            "logits_processor": LogitsProcessorList([MinPLogitsWarper(0.1, min_tokens_to_keep=2)]),
            "do_sample": True,
        },
        "MinPLogitsWarper",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_host_is_refused_by_name(name: str) -> None:
    options, found = REFUSED[name]
    options = {"do_sample": False, "top_k": 0, **options}
    _, ids, mask = ragged(random.Random(1), 1)
    model = build("llama")
    with pytest.raises(ValueError, match=f"walk_on='device', got .*{found}"):
        decode(model, ids, mask, walk_on="device", **options)
    decode(model, ids, mask, walk_on="auto", **options)


def test_other_places_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'auto', 'host', 'device', got 'moon'"):
        freedraft.generate(build("llama"), [1, 2], max_new_tokens=2, walk_on="moon")  # type: ignore[call-overload]
    model = build("llama")
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}  # type: ignore[assignment]
    with pytest.raises(ValueError, match="got a model on several devices"):
        freedraft.generate(model, [1, 2], max_new_tokens=2, do_sample=False, walk_on="device")


def test_steps_with_drawn_drafts_are_walked_on_the_host() -> None:
    q = np.full((1, VOCAB_SIZE), 1 / VOCAB_SIZE, np.float32)
    drawn = CandidateTree.from_arrays([3], [-1], None, q)
    model = build("llama")

    class Drawing(RandomTreeDrafter):
        def propose(
            self, request_ids: Sequence[object], max_nodes: int, max_depth: int
        ) -> list[CandidateTree]:
            return [drawn if max_depth else CandidateTree.empty() for _ in request_ids]

    _, ids, mask = ragged(random.Random(6), 2)
    options = {**SAMPLED, "seed": 2}
    device = decode(model, ids, mask, drafter=Drawing(1), walk_on="device", **options)
    host = decode(model, ids, mask, drafter=Drawing(1), walk_on="host", **options)
    assert device.token_ids == host.token_ids
    assert host.statistics.drafted > NEW_TOKENS
    walker = DeviceWalk(torch.device("cpu"))
    assert not walker.serves([_row(NoiseKey(1))], [drawn])
    assert walker.serves([_row(None)], [drawn])
    wide = CandidateTree.from_chain(np.zeros(257, np.int64))
    assert not walker.serves([_row(None)], [wide])


def _row(key: NoiseKey | None) -> Any:
    class Row:
        pass

    row = Row()
    row.key = key  # type: ignore[attr-defined]
    return row


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("walk_on", ["host", "device"])
def test_sampling_from_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, value: float, walk_on: str
) -> None:
    own = TreeForward.prefill
    monkeypatch.setattr(
        TreeForward, "prefill", lambda self, prompts: own(self, prompts).fill_(value)
    )
    with pytest.raises(ValueError, match="expected at least one possible token"):
        freedraft.generate(
            tiny_llama(),
            [1, 2, 3],
            do_sample=True,
            max_new_tokens=3,
            top_k=0,
            walk_on=walk_on,  # type: ignore[call-overload]
        )


def test_compaction_is_called_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(states: Sequence[Tensor], *rest: Any) -> None:
        calls.append(len(states))
        batched_cache.compact_cache(states, *rest)

    operations = DeviceOperations(
        TORCH_OPERATIONS.choose_tokens,
        TORCH_OPERATIONS.walk_trees,
        TORCH_OPERATIONS.gather_columns,
        counted,
        "torch",
    )
    monkeypatch.setattr(
        "freedraft.verifier.tree_forward.device_operations", lambda device: operations
    )
    prompts, ids, mask = ragged(random.Random(5), 1)
    plain = decode(tiny_llama(), ids, mask, drafter=None, walk_on="device", **GREEDY)
    assert calls == []  # nothing to move
    drafter = RandomTreeDrafter(1, [prompts[0] + plain.token_ids[0]])
    drafted = decode(tiny_llama(), ids, mask, drafter=drafter, walk_on="device", **GREEDY)
    assert drafted.token_ids == plain.token_ids
    assert set(calls) == {4}  # keys and values of two layers
