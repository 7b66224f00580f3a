"""How much faster is generation, end to end, on a real model and this machine?

Six prompts (three code edits, two answers from a text, one chat), greedy, each way in turn and in
another order each round, all in one process: transformers' generate, its prompt lookup, freedraft
on the stock model, freedraft on the CPU fast path. The figures are ratios of medians to `generate`.

    OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 python benchmarks/end_to_end.py --json FILE

Wall time and processor time are both kept: on a machine that other jobs share, the wall clock also
counts the others' turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers

import freedraft
from freedraft.integrations.default_model import load_model
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path
from freedraft.workbench.comparison import FREEDRAFT, GENERATE, PROMPT_LOOKUP, Comparison
from freedraft.workbench.demo_prompts import DEMO_PROMPTS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def read_prompts(path: str | None) -> list[dict[str, str]]:
    """Return the prompts of a JSONL file (id, workload, prompt), or the demo's."""
    if path is None:
        return [{"id": p.name, "workload": p.workload, "prompt": p.text} for p in DEMO_PROMPTS]
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def measure(
    arms: dict[str, tuple[Comparison, str]], input_ids: torch.Tensor, num_rounds: int
) -> dict[str, dict[str, Any]]:
    """Return each way's times and counts on one prompt."""
    wall: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    last = {}
    names = list(arms)
    for number in range(num_rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            comparison, way = arms[name]
            cpu_begin = time.process_time()
            run = comparison.run_once(way, input_ids)
            cpu[name].append(time.process_time() - cpu_begin)
            wall[name].append(run.seconds)
            last[name] = run
    base = last["generate"].token_ids
    return {
        name: {
            "wall_seconds": wall[name],
            "speedup": statistics.median(wall["generate"]) / statistics.median(wall[name]),
            "speedup_cpu": statistics.median(cpu["generate"]) / statistics.median(cpu[name]),
            "tokens": len(run.token_ids),
            "tokens_per_step": len(run.token_ids) / run.steps,
            "drafted_per_step": run.drafted / run.steps,
            "same_text": run.token_ids == base,
        }
        for name, run in last.items()
    }


def main() -> None:
    """Run the comparison and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", help="JSONL with id, workload, prompt; default: the demo's")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--drafter", default="ngram", help="comma-separated names")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    stock, tokenizer = load_model(args.model, DTYPES[args.dtype])
    fast, _ = load_model(args.model, DTYPES[args.dtype])
    fast_path = enable_cpu_fast_path(fast, allow_extra_memory=True).lines()
    print("\n".join(fast_path))
    arms: dict[str, tuple[Comparison, str]] = {}
    for drafter in args.drafter.split(","):
        on_stock = Comparison(stock, drafter, args.max_new_tokens)
        on_fast = Comparison(fast, drafter, args.max_new_tokens)
        arms.setdefault("generate", (on_stock, GENERATE))
        arms.setdefault("prompt lookup", (on_stock, PROMPT_LOOKUP))
        arms[f"{drafter}, stock"] = (on_stock, FREEDRAFT)
        arms[f"{drafter}, fast path"] = (on_fast, FREEDRAFT)
    rows = []
    for prompt in read_prompts(args.prompts):
        chat = [{"role": "user", "content": prompt["prompt"]}]
        encoded = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        results = measure(arms, encoded["input_ids"], args.rounds)
        rows.append({"id": prompt["id"], "workload": prompt["workload"], "arms": results})
        for name, result in results.items():
            print(
                f"{prompt['id']:>8} {name:<22} {result['speedup']:5.2f}x "
                f"(cpu {result['speedup_cpu']:5.2f}x)  {result['tokens_per_step']:5.2f} tokens a "
                f"step, {result['drafted_per_step']:4.1f} drafted, "
                f"{'same text' if result['same_text'] else 'OTHER TEXT'}",
                flush=True,
            )
    means = {
        name: {
            key: geometric_mean([row["arms"][name][key] for row in rows])
            for key in ("speedup", "speedup_cpu")
        }
        for name in arms
    }
    for name, mean in means.items():
        print(f"    mean {name:<22} {mean['speedup']:5.2f}x (cpu {mean['speedup_cpu']:5.2f}x)")
    if args.json is not None:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "freedraft": freedraft.__version__,
            "load_average": os.getloadavg(),
        }
        settings = {key: str(value) for key, value in vars(args).items() if key != "json"}
        report = {
            "machine": machine,
            "settings": settings,
            "fast_path": fast_path,
            "prompts": rows,
            "geometric_means": means,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
