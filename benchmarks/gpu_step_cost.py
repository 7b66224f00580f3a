"""What does a step cost with n columns? t(B, n) / t(B, 1), and the verifier's share of it.

A random-weight model of Llama-3-8B's shape in bf16; all rows have the same context, full of random
keys and values. t(B, 1) is the same model's plain decode step: no mask, no second attention.

    python benchmarks/gpu_step_cost.py --json out.json [--small]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from gpu_model import TINY, LlamaShape, RandomLlama, attend, context_of, num_pieces
from gpu_timing import device_seconds, machine, wall_seconds

from freedraft.drafters import CandidateTree
from freedraft.verifier.device.batched_sampling import RowSampling
from freedraft.verifier.device.batched_walk import (
    BatchedWalk,
    ancestor_words,
    column_depths,
    stack_trees,
    unpack_ancestors,
)
from freedraft.verifier.device.operations import DeviceOperations, device_operations
from freedraft.verifier.noise import NoiseKey


@dataclass(frozen=True)
class Grid:
    """What is measured."""

    shape: LlamaShape
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    overhead_widths: tuple[int, ...]


FULL = Grid(LlamaShape(), (1, 8, 32), (1, 2, 4, 8, 16, 32, 64, 128, 256), (1024, 16384), (32,))
SMALL = Grid(TINY, (1, 2), (1, 2, 8), (64, 128), (8,))


def check_attention(device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest error of the attention that is timed against float32."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for width, slots in (4, 64), (32, 32):
        query, key, value = (
            torch.randn(2, 8, length, 128, generator=generator) for length in (width, slots, slots)
        )
        seen = torch.ones(width, slots, dtype=torch.bool).tril()
        bias = torch.zeros(2, 8, width, slots).masked_fill(~seen, -torch.inf)
        for mask in (None, bias):
            expected, expected_sum = attend(query, key, value, mask)
            on_device = [x.to(device, dtype) for x in (query, key, value)]
            got, got_sum = attend(*on_device, None if mask is None else mask.to(device, dtype))
            worst = max(worst, float((got.cpu().float() - expected).abs().max()))
            worst = max(worst, float((got_sum.cpu().float() - expected_sum).abs().max()))
    return worst


def random_tree(rng: np.random.Generator, num_nodes: int) -> CandidateTree:
    """Return a tree whose nodes hang from random earlier ones; siblings differ."""
    parents = [int(rng.integers(-1, node)) for node in range(num_nodes)]
    return CandidateTree.from_arrays(np.arange(num_nodes), np.array(parents, np.int32))


def forward_times(
    model: RandomLlama, storage: list[torch.Tensor], grid: Grid, device: torch.device
) -> list[dict[str, float]]:
    """Return the time of each forward and its ratio to one column."""
    cells = []
    for num_rows in grid.rows:
        for slots in grid.contexts:
            context = context_of(grid.shape, storage, num_rows, slots)
            pieces = num_pieces(num_rows, grid.shape.num_kv_heads, slots)
            base = 0.0
            for width in grid.widths:
                rng = np.random.default_rng(width)
                trees = [random_tree(rng, width - 1) for _ in range(num_rows)]
                stacked = stack_trees(trees, [0] * num_rows, width, device)
                words = ancestor_words(stacked.parents)
                visible = None if width == 1 else unpack_ancestors(words, stacked.parents)
                positions = column_depths(stacked.parents) + slots

                def step(
                    ids=stacked.token_ids,
                    positions=positions,
                    visible=visible,
                    context=context,
                    pieces=pieces,
                ) -> torch.Tensor:
                    return model.forward(ids, positions, visible, context, pieces)

                seconds = device_seconds(step, device)
                base = base or seconds
                cells.append(
                    {
                        "rows": num_rows,
                        "context": slots,
                        "columns": width,
                        "milliseconds": seconds * 1e3,
                        "ratio": seconds / base,
                    }
                )
                print(
                    f"B={num_rows:3} context={slots:6} n={width:4} {seconds * 1e3:9.3f} ms "
                    f"{seconds / base:6.2f} of n=1"
                )
    return cells


def overhead(
    grid: Grid, num_rows: int, width: int, device: torch.device, operations: DeviceOperations
) -> dict[str, float]:
    """Return the microseconds of each part of the verifier beside the forward.

    ``step_wall`` is all of them launched one by one, with the one small copy to the host at the
    end; the others are the work on the device.
    """
    rng = np.random.default_rng(0)
    shape = grid.shape
    trees = [random_tree(rng, width - 1) for _ in range(num_rows)]
    stacked = stack_trees(trees, [0] * num_rows, width, device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    logits = torch.randn(num_rows, width, shape.vocab_size, device=device, dtype=dtype)
    positions = column_depths(stacked.parents) + 100
    keys = [NoiseKey(7, row) for row in range(num_rows)]
    samplings = {
        "greedy": RowSampling.build(keys, [0.0] * num_rows, device=device),
        "temperature": RowSampling.build(keys, [0.8] * num_rows, device=device),
        "top_k_top_p": RowSampling.build(
            keys, [0.8] * num_rows, [50] * num_rows, [0.95] * num_rows, device=device
        ),
    }
    # Choices that accept a path: each column's choice is its first child's token.
    choices = torch.zeros(num_rows, width, dtype=torch.int64)
    for row, tree in enumerate(trees):
        for node in range(tree.num_nodes - 1, -1, -1):
            choices[row, int(tree.parents[node]) + 1] = int(tree.token_ids[node])
    choices = choices.to(device)
    capacity = 64 + width
    cache_size = (num_rows, shape.num_kv_heads, capacity, shape.head_size)
    states = [
        torch.randn(cache_size, device=device, dtype=dtype) for _ in range(2 * shape.num_layers)
    ]
    lengths = torch.full((num_rows,), 40, device=device)

    def walk() -> BatchedWalk:
        return operations.walk_trees(choices, stacked.token_ids, stacked.parents)

    move = operations.compact_cache
    if operations.kind == "triton":
        from freedraft.verifier.device.triton_cache import cache_addresses

        # A static cache lies still; and a captured graph cannot hold the copy of the table.
        move = partial(move, addresses=cache_addresses(states))
    walked = walk()

    def compact(walked: BatchedWalk = walked) -> None:
        move(states, walked.columns, walked.lengths + 1, lengths, 64)

    def step() -> list[list[int]]:
        unpack_ancestors(ancestor_words(stacked.parents), stacked.parents)
        operations.choose_tokens(logits, positions, samplings["greedy"])
        walked = walk()
        compact(walked)
        both = torch.cat([walked.token_ids, walked.lengths[:, None]], 1)
        rows: list[list[int]] = both.tolist()
        return rows

    times = {
        f"choose_{name}": device_seconds(
            lambda sampling=sampling: operations.choose_tokens(logits, positions, sampling), device
        )
        for name, sampling in samplings.items()
    }
    times["mask"] = device_seconds(
        lambda: unpack_ancestors(ancestor_words(stacked.parents), stacked.parents), device
    )
    times["walk"] = device_seconds(walk, device)
    times["compact"] = device_seconds(compact, device)
    times["step_wall"] = wall_seconds(step, device)
    return {name: seconds * 1e6 for name, seconds in times.items()}


def main() -> int:
    """Measure, print and write the numbers."""
    parser = argparse.ArgumentParser(description="step times by columns, and the verifier's share")
    parser.add_argument("--json", type=Path, required=True, help="where the numbers are written")
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run at all?")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    grid = SMALL if arguments.small else FULL
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    error = check_attention(device, dtype)
    print(f"attention against float32: largest error {error:.1e}")
    operations = device_operations(device)
    overheads = []
    for num_rows in grid.rows:
        for width in grid.overhead_widths:
            parts = overhead(grid, num_rows, width, device, operations)
            overheads.append({"rows": num_rows, "columns": width, "microseconds": parts})
            line = ", ".join(f"{name} {value:.0f}" for name, value in parts.items())
            print(f"verifier ({operations.kind}) B={num_rows} n={width}, us: {line}")
    shape = grid.shape
    slots = max(rows * context for rows in grid.rows for context in grid.contexts)
    numel = 2 * slots * shape.num_kv_heads * shape.head_size
    model = RandomLlama(shape, device, dtype)
    storage = [
        torch.empty(numel, device=device, dtype=dtype).normal_() for _ in range(shape.num_layers)
    ]
    with torch.inference_mode():
        cells = forward_times(model, storage, grid, device)
    for entry in overheads:
        wall = entry["microseconds"]["step_wall"]
        entry["percent_of_step"] = {
            str(cell["context"]): wall / (wall + cell["milliseconds"] * 1e3) * 100
            for cell in cells
            if cell["rows"] == entry["rows"] and cell["columns"] == entry["columns"]
        }
        print(f"verifier B={entry['rows']} n={entry['columns']}: {entry['percent_of_step']} %")
    result = {
        "machine": machine(device),
        "small": arguments.small,
        "dtype": str(dtype),
        "attention_error": error,
        "forwards": cells,
        "verifier": {"operations": operations.kind, "overheads": overheads},
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(error > 0.1)


if __name__ == "__main__":
    sys.exit(main())
