"""What does a look-ahead window bring, by its size, and what do its probes cost?

    python benchmarks/lookahead_window.py MODEL --prompts FILE.jsonl --costs COSTS --out OUT
        [--plot PNG] [--new-tokens N] [--cells N]

Every prompt is answered greedily with the look-ahead drafter alone, its window W columns wide (0:
only the n-grams of the text), N tokens to an n-gram. No cost gate: every probe is verified. A
window's gain is tokens a step over those of W = 0; predicted speed-up as in ``cold_start_live.py``.
What the file holds already is not run again; ``--cells`` ends a run after so many sizes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from cold_start_arms import read_costs, summary
from cold_start_live import prompt_ids, run
from forward_cost import processor
from transformers import AutoModelForCausalLM, AutoTokenizer

from freedraft.drafters import CandidateTree, RequestId
from freedraft.drafters.lookahead import LookaheadConfig, LookaheadDrafter
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path

WINDOWS = (0, 1, 2, 4, 8, 15)
NGRAM_SIZES = (3, 4)


class Windowless(LookaheadDrafter):
    """The pool alone."""

    def add_probes(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: Any,
    ) -> list[CandidateTree]:
        """Return the trees as they are."""
        return list(trees)


def make_drafter(window_size: int, ngram_size: int) -> LookaheadDrafter:
    """Return a drafter with a window of that size, or with none."""
    config = LookaheadConfig(max(window_size, 1), ngram_size)
    return LookaheadDrafter(config) if window_size else Windowless(config)


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw tokens a step and predicted speed-ups over the window's size."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), constrained_layout=True)
    for ngram_size in NGRAM_SIZES:
        rows = [
            (window, report["runs"][f"{window} | {ngram_size}"]["summary"])
            for window in WINDOWS
            if f"{window} | {ngram_size}" in report["runs"]
        ]
        windows = [window for window, _ in rows]
        label = f"N = {ngram_size}"
        axes[0].plot(windows, [row["tokens_per_step"] for _, row in rows], "o-", label=label)
        axes[1].plot(
            windows, [row["speedup_measured"] for _, row in rows], "o-", label=f"{label}, this CPU"
        )
        axes[1].plot(
            windows,
            [row["speedup_flat"] for _, row in rows],
            "s--",
            label=f"{label}, flat to 64 nodes",
        )
    axes[0].set_ylabel("tokens a step")
    axes[1].set_ylabel("predicted speed-up")
    axes[1].axhline(1, color="grey", linewidth=0.8)
    for axis in axes:
        axis.set_xlabel("window size W (0: no probes)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run what is missing, write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--cells", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    enable_cpu_fast_path(model)
    costs, first = read_costs(arguments.costs)
    prompts = [json.loads(line) for line in arguments.prompts.read_text().splitlines()]
    report: dict[str, Any] = {"runs": {}}
    if arguments.out.exists():
        report = json.loads(arguments.out.read_text())
    report |= {
        "machine": processor(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "prompts": [prompt["id"] for prompt in prompts],
        "new_tokens": arguments.new_tokens,
    }
    sizes = [(window, ngram_size) for ngram_size in NGRAM_SIZES for window in WINDOWS]
    missing = [size for size in sizes if f"{size[0]} | {size[1]}" not in report["runs"]]
    for window, ngram_size in missing[: arguments.cells]:
        drafter = make_drafter(window, ngram_size)
        rows = []
        for prompt in prompts:
            ids = prompt_ids(tokenizer, prompt["prompt"])
            rows.append(run(model, ids, drafter, None, "greedy", arguments.new_tokens)[0])
        key = f"{window} | {ngram_size}"
        report["runs"][key] = {"summary": summary(rows, costs, first), "rows": rows}
        print(key, report["runs"][key]["summary"], flush=True)
        arguments.out.write_text(json.dumps(report) + "\n")
    if arguments.plot is not None:
        plot(report, arguments.plot)


if __name__ == "__main__":
    main()
