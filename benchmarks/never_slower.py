"""Is generation with drafts ever slower than without, where there is little to copy?

Chat prompts, greedy, three ways in turn and in another order each round: transformers' ``generate``
(plain), freedraft without a drafter, and freedraft as it comes (auto: the blend behind the gate).

    OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 python benchmarks/never_slower.py MODEL CHAT.jsonl \
        --out never_slower.json --seconds 300

CHAT.jsonl has a prompt a line (``prompt``, with the chat template in it). The script stops after
``--seconds`` and goes on where it stopped when started again.
On a machine that others share, --threads 1 --clock cpu compares processor times (the gate itself
goes by the wall clock all the same, with all its noise).
A ratio is plain's median time over auto's, of one group of prompts; below 1 auto is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import freedraft
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path
from freedraft.workbench.calibration.measure import processor_name

ARMS = ("plain", "plain loop", "auto")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Bench:
    """A model, its prompts in groups, and what was measured so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Load everything."""
        self.options = arguments
        self.model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
        self.model.eval()
        if arguments.fast_path:
            enable_cpu_fast_path(self.model)
        self.tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines]
        firsts = [text for text in prompts if text.count("<|im_start|>user") <= 1]
        self.prompts = firsts[:: max(1, len(firsts) // 24)]

    def group(self, batch: int, number: int) -> dict[str, Tensor]:
        """Return the encoded prompts of one group."""
        texts = [self.prompts[(number * batch + i) % len(self.prompts)] for i in range(batch)]
        encoded: dict[str, Tensor] = dict(
            self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        )
        return encoded

    def run(self, arm: str, inputs: dict[str, Tensor]) -> dict[str, Any]:
        """Generate once and return its time and what it did."""
        limit = {"max_new_tokens": self.options.max_new_tokens, "do_sample": False}
        clock = CLOCKS[self.options.clock]
        begin = clock()
        if arm == "plain":
            sequences = self.model.generate(**inputs, **limit)
            return {"seconds": clock() - begin, "ids": sequences.tolist()}
        drafter = "blend" if arm == "auto" else None
        result: Any = freedraft.generate(
            self.model,
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            drafter=drafter,
            calibration=self.options.calibration,
            return_dict=True,
            **limit,
        )
        seconds = clock() - begin
        counts = result.statistics
        return {
            "seconds": seconds,
            "ids": result.sequences.tolist(),
            "tokens_per_step": counts.tokens_per_step,
            "drafted_per_step": counts.drafted_per_step,
            "draft_share": counts.draft_seconds / counts.seconds,
        }


def summarize(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios of each group with all its rounds, and their medians by batch."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault((entry["batch"], entry["group"]), []).append(entry)
    rows = []
    for (batch, number), rounds in sorted(groups.items()):
        median = {arm: statistics.median(r[arm]["seconds"] for r in rounds) for arm in ARMS}
        rows.append(
            {
                "batch": batch,
                "group": number,
                "rounds": len(rounds),
                "plain_seconds": round(median["plain"], 3),
                "auto_ratio": round(median["plain"] / median["auto"], 3),
                "plain_loop_ratio": round(median["plain"] / median["plain loop"], 3),
                "tokens_per_step": round(rounds[-1]["auto"]["tokens_per_step"], 3),
                "drafted_per_step": round(rounds[-1]["auto"]["drafted_per_step"], 2),
                "draft_share": round(
                    statistics.median(r["auto"]["draft_share"] for r in rounds), 4
                ),
                "same_text": all(r["same_text"] for r in rounds),
            }
        )
    batches = sorted({row["batch"] for row in rows})
    medians = {
        str(batch): {
            key: round(statistics.median(r[key] for r in rows if r["batch"] == batch), 3)
            for key in ("auto_ratio", "plain_loop_ratio")
        }
        for batch in batches
    }
    return {"median_by_batch": medians, "groups": rows}


def report(arguments: argparse.Namespace, entries: list[dict[str, Any]], left: int) -> str:
    """Return the JSON of what was measured so far."""
    content = {
        "machine": {"processor": processor_name(), "threads": arguments.threads},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "freedraft": freedraft.__version__,
        },
        "date": time.strftime("%Y-%m-%d"),
        "load_average": os.getloadavg(),
        "model": Path(arguments.model).name,
        "fast_path": arguments.fast_path,
        "clock": arguments.clock,
        "max_new_tokens": arguments.max_new_tokens,
        "units_left": left,
        "summary": summarize(entries),
        "entries": entries,
    }
    return json.dumps(content, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a transformers causal language model")
    parser.add_argument("prompts", type=Path, help="JSONL with a prompt a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 2], help="one a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--calibration")
    parser.add_argument("--fast-path", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--seconds", type=float, default=300.0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    begin = time.perf_counter()
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    entries: list[dict[str, Any]] = content.get("entries", [])
    done = {(entry["batch"], entry["group"], entry["round"]) for entry in entries}
    bench = Bench(arguments)
    bench.run("plain", bench.group(1, 0))  # warms up
    bench.run("auto", bench.group(1, 0))
    numbers = dict(zip(arguments.batches, arguments.groups, strict=True))
    units = [
        (batch, group, number)
        for batch, groups in numbers.items()
        for group, number in product(range(groups), range(arguments.rounds))
    ]
    for batch, group, number in units:
        if (batch, group, number) in done or time.perf_counter() - begin > arguments.seconds:
            continue
        inputs = bench.group(batch, group)
        order = [ARMS[(number + shift) % len(ARMS)] for shift in range(len(ARMS))]
        runs = {arm: bench.run(arm, inputs) for arm in order}
        texts = [runs[arm].pop("ids") for arm in ARMS]
        same = texts[0] == texts[1] == texts[2]
        entries.append({"batch": batch, "group": group, "round": number, "same_text": same, **runs})
        ratio = runs["plain"]["seconds"] / runs["auto"]["seconds"]
        print(f"batch {batch} group {group} round {number}: {ratio:.3f}", flush=True)
        done.add((batch, group, number))
        left = sum(unit not in done for unit in units)
        arguments.out.write_text(report(arguments, entries, left))
    print(json.dumps(summarize(entries), indent=1))


if __name__ == "__main__":
    main()
