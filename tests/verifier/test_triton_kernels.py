"""The Triton kernels against their torch twins: on a GPU, or in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
pytest.importorskip("triton", reason="Triton is not installed")

from tiny_models import RandomTreeDrafter, tiny_llama  # noqa: E402

import freedraft  # noqa: E402
from freedraft import GenerationResult  # noqa: E402
from freedraft.drafters import CandidateTree  # noqa: E402
from freedraft.verifier import NoiseKey  # noqa: E402
from freedraft.verifier.device.batched_sampling import RowSampling  # noqa: E402
from freedraft.verifier.device.batched_walk import stack_trees  # noqa: E402
from freedraft.verifier.device.operations import (  # noqa: E402
    TORCH_OPERATIONS,
    device_operations,
    triton_operations,
)
from freedraft.verifier.device.triton_support import can_run_on, next_power_of_2  # noqa: E402

if not can_run_on(DEVICE):
    pytest.skip(
        "no GPU, and Triton was imported without TRITON_INTERPRET=1", allow_module_level=True
    )

# On a GPU some versions of Triton announce a changing default at the first compilation.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
KERNELS = triton_operations()
few = settings(max_examples=25, deadline=None)  # the interpreter takes some ms a program
seeds = st.integers(0, 2**31)


@few
@given(seeds, st.integers(1, 3), st.sampled_from([1, 2, 5, 16, 33]))
def test_walk(seed: int, num_rows: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    trees = []
    for _ in range(num_rows):
        chains = [rng.integers(3, size=rng.integers(1, 7)).tolist() for _ in range(6)]
        trees.append(CandidateTree.from_chains(chains).cut(int(rng.integers(0, width))))
    stacked = stack_trees(trees, [0] * num_rows, width, DEVICE)
    choices = torch.from_numpy(rng.integers(3, size=(num_rows, width))).to(DEVICE)
    got = KERNELS.walk_trees(choices, stacked.token_ids, stacked.parents)
    expected = TORCH_OPERATIONS.walk_trees(choices, stacked.token_ids, stacked.parents)
    assert torch.equal(got.columns, expected.columns)
    assert torch.equal(got.lengths, expected.lengths)
    assert torch.equal(got.token_ids, expected.token_ids)


def test_walk_down_the_longest_chain() -> None:
    stacked = stack_trees([CandidateTree.from_chain([5] * 256)], [0], 257, DEVICE)
    choices = torch.full((1, 257), 5, device=DEVICE)
    got = KERNELS.walk_trees(choices, stacked.token_ids, stacked.parents)
    assert got.lengths.tolist() == [256] and got.columns.tolist() == [list(range(257))]


@few
@given(seeds, st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
def test_gather(seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, size=rng.integers(2, 5)).tolist())
    values = torch.from_numpy(rng.integers(99, size=shape)).to(DEVICE, dtype)
    columns = torch.from_numpy(rng.integers(-1, shape[1], size=(shape[0], 3))).to(DEVICE)
    got = KERNELS.gather_columns(values, columns)
    assert torch.equal(got, TORCH_OPERATIONS.gather_columns(values, columns))


@few
@given(seeds, st.sampled_from([torch.float32, torch.float16]))
def test_compact(seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    num_rows, width, num_slots = (int(n) for n in rng.integers(1, 7, size=3))
    lengths = rng.integers(0, num_slots + 1, size=num_rows)
    counts = rng.integers(0, width + 1, size=num_rows)
    columns = np.stack([np.sort(rng.permutation(width)) for _ in range(num_rows)])
    for row, count in enumerate(counts):
        columns[row, :count] = np.sort(rng.choice(width, count, replace=False))
        columns[row, count:] = -1
    shape = (num_rows, 2, num_slots + width + 1, 5)
    states = [torch.from_numpy(rng.normal(size=shape)).to(DEVICE, dtype) for _ in range(3)]
    expected = [tensor.clone() for tensor in states]
    arguments = [torch.from_numpy(a).to(DEVICE) for a in (columns, counts, lengths)]
    TORCH_OPERATIONS.compact_cache(expected, *arguments, num_slots)
    KERNELS.compact_cache(states, *arguments, num_slots)
    for got, wanted in zip(states, expected, strict=True):
        assert torch.equal(got, wanted)


def test_compact_refuses_mixed_forms() -> None:
    ones = torch.ones(1, 1, dtype=torch.int64, device=DEVICE)
    states = [torch.zeros(1, 1, 4, size, device=DEVICE) for size in (2, 3)]
    with pytest.raises(ValueError, match="states of one form"):
        KERNELS.compact_cache(states, ones, ones[0], ones[0], 2)


def row_settings() -> st.SearchStrategy[tuple[float, int, float, float]]:
    return st.tuples(
        st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        st.sampled_from([0, 1, 3, 8, 100]),
        st.sampled_from([1.0, 0.95, 0.5, 0.01]),
        st.sampled_from([0.0, 0.05, 0.6]),
    )


@few
@given(seeds, st.lists(row_settings(), min_size=2, max_size=2), st.sampled_from([2, 7, 33]))
@example(0, [(1.0, 3, 0.5, 0.05), (0.3, 8, 0.95, 0.0)], 33)
def test_choice(seed: int, rows: list[tuple[float, int, float, float]], vocab_size: int) -> None:
    rng = np.random.default_rng(seed)
    # Small whole numbers make equal scores common; some tokens are impossible.
    logits = torch.from_numpy(rng.normal(size=(2, 2, vocab_size)) * 2).float()
    if seed % 2:
        logits = logits.round()
    logits[torch.from_numpy(rng.random(logits.shape) < 0.2)] = -torch.inf
    logits[..., 0] = 0.0
    dtype = [torch.float32, torch.bfloat16][seed // 2 % 2]
    logits = logits.to(DEVICE, dtype)
    positions = torch.from_numpy(rng.integers(0, 2**33, size=(2, 2))).to(DEVICE)
    keys = [NoiseKey(seed * 2**20, 3), NoiseKey(-1, 2**32 - 1)]
    sampling = RowSampling.build(keys, *zip(*rows, strict=True), device=DEVICE)  # type: ignore[arg-type]
    got = KERNELS.choose_tokens(logits, positions, sampling)
    assert torch.equal(got, TORCH_OPERATIONS.choose_tokens(logits, positions, sampling))


def test_choice_over_several_blocks() -> None:
    logits = torch.randn(1, 1, 10_000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for position in range(3):
        positions = torch.tensor([[position]], device=DEVICE)
        for rest in ([0], [0.9]), ([50], [0.9]), ([50], [1.0]):
            sampling = RowSampling.build(
                [NoiseKey(1)], [1.5], *rest[:1], rest[1] or [1.0], device=DEVICE
            )
            got = KERNELS.choose_tokens(logits, positions, sampling)
            assert torch.equal(got, TORCH_OPERATIONS.choose_tokens(logits, positions, sampling))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_row_of_nan_ends() -> None:
    logits = torch.full((1, 1, 9), torch.nan, device=DEVICE)
    sampling = RowSampling.build([NoiseKey(1)], [1.0], [2], [0.5], device=DEVICE)
    chosen = KERNELS.choose_tokens(
        logits, torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), sampling
    )
    assert 0 <= int(chosen) < 9


@pytest.mark.parametrize(
    "options",
    [{"do_sample": False}, {"do_sample": True, "top_k": 9, "top_p": 0.9, "seed": 4}],
    ids=["greedy", "sampled"],
)
def test_a_generation_with_the_kernels(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    model = tiny_llama().to(DEVICE)
    prompts = torch.tensor([[0, 0, 3, 4, 5, 3, 4], [6, 7, 8, 6, 7, 8, 6]], device=DEVICE)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7], device=DEVICE)

    def decode(drafter: RandomTreeDrafter | None, walk_on: str) -> GenerationResult:
        result = freedraft.generate(
            model,
            prompts,
            attention_mask=mask,
            drafter=drafter,
            max_new_tokens=9,
            cost_gate=False,
            return_dict=True,
            walk_on=walk_on,  # type: ignore[call-overload]
            **options,
        )
        assert isinstance(result, GenerationResult)
        return result

    plain = decode(None, "host").token_ids
    for user in (
        "freedraft.verifier.tree_forward",
        "freedraft.integrations.generation.device_walk",
    ):
        monkeypatch.setattr(f"{user}.device_operations", lambda device: KERNELS)
    assert decode(None, "device").token_ids == plain
    answers = [[3, 4, 5, 3, 4, *plain[0]], [6, 7, 8, 6, 7, 8, 6, *plain[1]]]
    drafted = decode(RandomTreeDrafter(1, answers), "device")
    assert drafted.token_ids == plain
    assert drafted.statistics.accepted > 5


def test_which_operations_run_where() -> None:
    assert device_operations(torch.device("cpu")).kind == "torch"
    assert device_operations(torch.device("cuda")).kind == "triton"
    assert [next_power_of_2(n) for n in (1, 2, 3, 64, 65)] == [2, 2, 4, 64, 128]


def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """The interpreter is laxer than the compiler; compiling needs no GPU."""
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_compile.py"
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sm_90") == 4
