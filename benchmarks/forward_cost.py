"""What does a forward of n tokens cost on this CPU, stock and on the fast path?

T(n)/T(1) is what verifying a draft costs beside decoding one token. Both stacks are measured in
turn, forward by forward, in one process: a tree of n tokens (root and nodes) with its mask on top
of a context, as the verifier runs it; n = 1 is plain decoding without a mask. Stock is the model as
transformers loads it with a DynamicCache; fast is enable_cpu_fast_path with a ContiguousCache.

    OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 python benchmarks/forward_cost.py MODEL_FOLDER

Wall time and processor time are both kept: on a machine that other jobs share, run with --threads 1
and read the processor time (the wall clock also counts the others' turns).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from freedraft.verifier.cpu.contiguous_cache import ContiguousCache
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass
class Stack:
    """A model with its cache, filled with the context, and its times in seconds."""

    name: str
    model: Any
    cache: Any
    wall: dict[int, list[float]] = field(default_factory=dict)
    cpu: dict[int, list[float]] = field(default_factory=dict)

    def run(self, inputs: dict[str, Tensor | None], count: int, keep: bool) -> Tensor:
        """Run one forward of ``count`` tokens, take its time, and cut the cache back."""
        wall, cpu = time.perf_counter(), time.process_time()
        logits: Tensor = self.model(**inputs, cache=self.cache, use_cache=True).logits
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.cache.crop(-count)
        if keep:
            self.wall.setdefault(count, []).append(wall)
            self.cpu.setdefault(count, []).append(cpu)
        return logits


def tree_inputs(
    count: int, context: int, vocab_size: int, dtype: torch.dtype, generator: torch.Generator
) -> dict[str, Tensor | None]:
    """Return the arguments of a forward of a random tree of ``count`` tokens, the root included."""
    visible = torch.eye(count, dtype=torch.bool)
    for node in range(1, count):
        parent = int(torch.randint(max(0, node - 3), node, (1,), generator=generator))
        visible[node] |= visible[parent]
    allowed = torch.cat([torch.ones(count, context, dtype=torch.bool), visible], dim=1)
    mask = torch.zeros(1, 1, count, context + count, dtype=dtype)
    mask.masked_fill_(~allowed, torch.finfo(dtype).min)
    return {
        "input_ids": torch.randint(vocab_size, (1, count), generator=generator),
        "attention_mask": None if count == 1 else mask,
        "position_ids": (context + visible.sum(1) - 1)[None],
    }


def measure(
    models: Sequence[tuple[str, Any]], context: int, dtype: torch.dtype, repeats: int
) -> dict[str, Any]:
    """Measure all counts of tokens at one context length, the stacks in turn."""
    generator = torch.Generator().manual_seed(context)
    vocab_size = models[0][1].config.vocab_size
    prompt = torch.randint(vocab_size, (1, context), generator=generator)
    stacks = [
        Stack(name, model, DynamicCache() if name == "stock" else ContiguousCache())
        for name, model in models
    ]
    for stack in stacks:
        stack.model(input_ids=prompt, cache=stack.cache, use_cache=True, logits_to_keep=1)
    differences = {}
    for count in COUNTS:
        inputs = tree_inputs(count, context, vocab_size, dtype, generator)
        for repeat in range(repeats + 1):  # the first one warms up
            logits = [stack.run(inputs, count, repeat > 0) for stack in stacks]
        differences[count] = (logits[0] - logits[-1]).abs().max().item()
    return {
        "max_abs_logit_difference": differences,
        **{stack.name: {"wall": table(stack.wall), "cpu": table(stack.cpu)} for stack in stacks},
        "fast_over_stock": {
            clock: {
                count: round(statistics.median(fast[count]) / statistics.median(stock[count]), 3)
                for count in COUNTS
            }
            for clock, stock, fast in (
                ("wall", stacks[0].wall, stacks[1].wall),
                ("cpu", stacks[0].cpu, stacks[1].cpu),
            )
        },
    }


def table(times: dict[int, list[float]]) -> dict[str, dict[int, float]]:
    """Return medians, 90th percentiles and minima in ms, and the ratios of medians to T(1)."""
    median = {count: statistics.median(values) for count, values in times.items()}
    return {
        "median_ms": {count: round(value * 1e3, 2) for count, value in median.items()},
        "p90_ms": {
            count: round(statistics.quantiles(values, n=10)[-1] * 1e3, 2)
            for count, values in times.items()
        },
        "min_ms": {count: round(min(values) * 1e3, 2) for count, values in times.items()},
        "ratio_to_one": {count: round(value / median[1], 3) for count, value in median.items()},
    }


def processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def show(dtype: str, context: int, result: dict[str, Any], clock: str) -> None:
    for name in ("stock", "fast"):
        times = result[name][clock]
        ratios = "  ".join(f"{count}: {times['ratio_to_one'][count]:.2f}" for count in COUNTS)
        print(f"{context} {dtype} {name}: T1 {times['median_ms'][1]:.1f} ms ({clock}); {ratios}")
    print(f"{context} {dtype} fast/stock: {result['fast_over_stock'][clock]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a transformers causal language model")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--dtypes", nargs="+", choices=sorted(DTYPES), default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--allow-extra-memory", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = "cpu" if arguments.threads == 1 else "wall"
    results: dict[str, Any] = {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "model": Path(arguments.model).name,
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "allow_extra_memory": arguments.allow_extra_memory,
        "load_average_before": os.getloadavg(),
    }
    for name in arguments.dtypes:
        dtype = DTYPES[name]
        stock, fast = (
            AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).eval()
            for _ in range(2)
        )
        report = enable_cpu_fast_path(fast, allow_extra_memory=arguments.allow_extra_memory)
        results.setdefault("report", {})[name] = report.lines()
        for context in arguments.contexts:
            with torch.inference_mode():
                models = [("stock", stock), ("fast", fast)]
                result = measure(models, context, dtype, arguments.repeats)
            results.setdefault("results", {}).setdefault(name, {})[context] = result
            show(name, context, result, clock)
    results["load_average_after"] = os.getloadavg()
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
