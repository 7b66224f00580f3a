"""Are the Triton kernels right on this device, and how fast beside their torch twins?

python benchmarks/gpu_kernels.py --json out.json [--small]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gpu_step_cost import random_tree
from gpu_timing import device_seconds, machine

from freedraft.verifier.device.batched_sampling import RowSampling, process_scores
from freedraft.verifier.device.batched_walk import stack_trees
from freedraft.verifier.device.operations import TORCH_OPERATIONS, triton_operations
from freedraft.verifier.noise import NoiseKey

try:
    from freedraft.verifier.device import triton_cache
    from freedraft.verifier.device.triton_cache import cache_addresses
except ImportError as error:
    raise SystemExit(f"expected Triton to be installed: {error}") from error

SETTINGS: dict[str, tuple[float, int, float, float]] = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "temperature": (0.8, 0, 1.0, 0.0),
    "top_k": (0.8, 50, 1.0, 0.0),
    "top_p": (0.8, 0, 0.9, 0.0),
    "min_p": (0.8, 0, 1.0, 0.05),
    "all": (1.2, 50, 0.9, 0.05),
}


def compare_choices(
    num_rows: int, width: int, vocab_size: int, device: torch.device
) -> list[dict[str, object]]:
    """Return for each setting how many choices differ, and both times.

    A difference is excused where the two tokens are both possible: the logarithms of two math
    libraries may differ in the last bit, which decides a near tie.
    """
    kernels = triton_operations()
    generator = torch.Generator().manual_seed(num_rows * 1000 + width)
    logits = torch.randn(num_rows, width, vocab_size, generator=generator) * 3
    logits = logits.to(device, torch.bfloat16)
    positions = torch.arange(width).repeat(num_rows, 1).to(device)
    keys = [NoiseKey(seed) for seed in range(num_rows)]
    reports: list[dict[str, object]] = []
    for name, setting in SETTINGS.items():
        columns = [[value] * num_rows for value in setting]
        sampling = RowSampling.build(keys, *columns, device=device)  # type: ignore[arg-type]
        got = kernels.choose_tokens(logits, positions, sampling)
        expected = TORCH_OPERATIONS.choose_tokens(logits, positions, sampling)
        possible = process_scores(logits, sampling).gather(2, got[..., None]) > -torch.inf
        seconds = {
            kind: device_seconds(
                lambda choose=choose, sampling=sampling: choose(logits, positions, sampling), device
            )
            for kind, choose in (
                ("triton", kernels.choose_tokens),
                ("torch", TORCH_OPERATIONS.choose_tokens),
            )
        }
        reports.append(
            {
                "operation": f"choose {name}",
                "rows": num_rows,
                "columns": width,
                "differing": int((got != expected).sum()),
                "impossible": int((~possible).sum()),
            }
            | {f"{kind}_us": value * 1e6 for kind, value in seconds.items()}
        )
    return reports


def compare_structure(num_rows: int, width: int, device: torch.device) -> list[dict[str, object]]:
    """Return the same for the walk, the gather and the compaction."""
    kernels = triton_operations()
    rng = np.random.default_rng(width)
    trees = [random_tree(rng, width - 1) for _ in range(num_rows)]
    stacked = stack_trees(trees, [0] * num_rows, width, device)
    choices = torch.from_numpy(rng.integers(width - 1, size=(num_rows, width))).to(device)
    walks = [
        operations.walk_trees(choices, stacked.token_ids, stacked.parents)
        for operations in (kernels, TORCH_OPERATIONS)
    ]
    hidden = torch.randn(num_rows, width, 4096, device=device)
    columns, kept = walks[1].columns, walks[1].lengths + 1
    lengths = torch.full((num_rows,), 20, device=device)
    states = torch.randn(4, num_rows, 8, 32 + width, 128, device=device)
    copies = [states.clone(), states.clone()]
    for operations, copy in zip((kernels, TORCH_OPERATIONS), copies, strict=True):
        operations.compact_cache(list(copy), columns, kept, lengths, 32)
    differing: dict[str, int] = {
        "walk": sum(
            int((getattr(walks[0], field) != getattr(walks[1], field)).sum())
            for field in ("columns", "lengths", "token_ids")
        ),
        "gather": int(
            (
                kernels.gather_columns(hidden, columns)
                != TORCH_OPERATIONS.gather_columns(hidden, columns)
            ).sum()
        ),
        "compact": int((copies[0] != copies[1]).sum()),
    }
    states_of = list(copies[0])
    table = cache_addresses(states_of)
    tree = (choices, stacked.token_ids, stacked.parents)
    move = (states_of, columns, kept, lengths, 32)
    work: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "walk": (lambda: kernels.walk_trees(*tree), lambda: TORCH_OPERATIONS.walk_trees(*tree)),
        "gather": (
            lambda: kernels.gather_columns(hidden, columns),
            lambda: TORCH_OPERATIONS.gather_columns(hidden, columns),
        ),
        "compact": (
            lambda: triton_cache.compact_cache(*move, addresses=table),
            lambda: TORCH_OPERATIONS.compact_cache(*move),
        ),
    }
    return [
        {
            "operation": name,
            "rows": num_rows,
            "columns": width,
            "differing": count,
            "impossible": 0,
            "triton_us": device_seconds(work[name][0], device) * 1e6,
            "torch_us": device_seconds(work[name][1], device) * 1e6,
        }
        for name, count in differing.items()
    ]


def main() -> int:
    """Compare, print and write; fail on a wrong kernel."""
    parser = argparse.ArgumentParser(description="kernels against torch")
    parser.add_argument("--json", type=Path, required=True, help="where the numbers are written")
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run at all?")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = [(2, 4)] if arguments.small else [(1, 33), (8, 33), (32, 9)]
    reports: list[dict[str, object]] = []
    for num_rows, width in sizes:
        reports += compare_choices(num_rows, width, 50 if arguments.small else 128_256, device)
        reports += compare_structure(num_rows, width, device)
    wrong = 0
    for report in reports:
        choices = int(str(report["rows"])) * int(str(report["columns"]))
        is_choice = str(report["operation"]).startswith("choose")
        allowed = max(1, choices // 100) if is_choice else 0
        wrong += int(str(report["differing"])) > allowed or report["impossible"] != 0
        print(
            f"{report['operation']!s:20} B={report['rows']} n={report['columns']}: "
            f"{report['differing']} differ, triton {report['triton_us']:.0f} us, "
            f"torch {report['torch_us']:.0f} us"
        )
    result = {"machine": machine(device), "small": arguments.small, "kernels": reports}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
