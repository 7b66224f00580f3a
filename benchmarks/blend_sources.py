"""Is the default blend faster or slower with the recycling drafter in it, end to end?

    python benchmarks/blend_sources.py MODEL --prompts FILE.jsonl --out OUT.json [--rounds N]

Every prompt (id, workload, prompt) is answered greedily, cost gate on, with the default settings:
by the blend as it is, by the blend without recycling, and without drafts; in turn, in another order
each round, one process. The figures are ratios of median wall times. A round that the file holds is
not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from cold_start_live import prompt_ids
from forward_cost import processor
from transformers import AutoModelForCausalLM, AutoTokenizer

import freedraft
from freedraft.drafters import Drafter, create_drafter
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.catalog import BLEND_SOURCES
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path

NEW_TOKENS = 160
RETRIEVAL = tuple(name for name in BLEND_SOURCES if name != "recycling")
ARMS: dict[str, Callable[[], Drafter | None]] = {
    "none": lambda: None,
    "without recycling": lambda: BlendDrafter([create_drafter(name) for name in RETRIEVAL]),
    "blend": lambda: create_drafter("blend"),
}


def run(model: Any, ids: torch.Tensor, arm: str) -> dict[str, Any]:
    """Answer one prompt with one arm; its drafter is made before the clock starts."""
    drafter = ARMS[arm]()
    begin = time.perf_counter()
    result = freedraft.generate(
        model, ids, drafter=drafter, max_new_tokens=NEW_TOKENS, do_sample=False, return_dict=True
    )
    seconds = time.perf_counter() - begin
    assert isinstance(result, freedraft.GenerationResult)
    return {
        "seconds": seconds,
        "tokens_per_step": result.statistics.tokens_per_step,
        "drafted_per_step": result.statistics.drafted_per_step,
        "token_ids": result.token_ids[0],
    }


def table(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return each prompt's ratios, and their geometric means."""
    rows = {}
    for name in rounds[0]:
        seconds = {arm: statistics.median(r[name][arm]["seconds"] for r in rounds) for arm in ARMS}
        last = rounds[-1][name]
        rows[name] = {
            "speedup_blend": round(seconds["none"] / seconds["blend"], 3),
            "speedup_without": round(seconds["none"] / seconds["without recycling"], 3),
            "blend_over_without": round(seconds["without recycling"] / seconds["blend"], 3),
            "tokens_per_step": {arm: round(last[arm]["tokens_per_step"], 3) for arm in ARMS},
            "drafted_per_step": {arm: round(last[arm]["drafted_per_step"], 2) for arm in ARMS},
            "same_text": all(last[arm]["token_ids"] == last["none"]["token_ids"] for arm in ARMS),
        }
    means = {
        key: round(math.exp(statistics.fmean(math.log(row[key]) for row in rows.values())), 3)
        for key in ("speedup_blend", "speedup_without", "blend_over_without")
    }
    return {"prompts": rows, "geometric_mean": means}


def main() -> None:
    """Run the rounds that are missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    enable_cpu_fast_path(model)
    prompts = [json.loads(line) for line in arguments.prompts.read_text().splitlines()]
    rounds: list[dict[str, dict[str, Any]]] = []
    if arguments.out.exists():
        rounds = json.loads(arguments.out.read_text())["rounds"]
    names = list(ARMS)
    while len(rounds) < arguments.rounds:
        shift = len(rounds) % len(names)
        order = names[shift:] + names[:shift]
        rounds.append(
            {
                prompt["id"]: {
                    arm: run(model, prompt_ids(tokenizer, prompt["prompt"]), arm) for arm in order
                }
                for prompt in prompts
            }
        )
        report = {
            "machine": processor(),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "date": time.strftime("%Y-%m-%d"),
            "new_tokens": NEW_TOKENS,
            **table(rounds),
            "rounds": rounds,
        }
        arguments.out.write_text(json.dumps(report) + "\n")
        print(len(rounds), report["geometric_mean"], report["prompts"], flush=True)


if __name__ == "__main__":
    main()
