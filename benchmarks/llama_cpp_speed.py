"""Is llama-cpp-python faster with freedraft's draft model, and never slower?

Greedy, on SmolLM2-135M: no draft, the library's own prompt lookup (2-gram, 10 drafts), freedraft,
in turn and in another order each round, on one loaded model that keeps the logits of every token,
which drafts need; a fourth arm, no draft on a model that does not, shows what that costs. freedraft
begins each run without memory of earlier ones. "decode" is the time after the first token, "total"
has the prompt too; "cpu" is the process's user time, which other work disturbs less.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/llama_cpp_speed.py --gguf FILE --json FILE

Prompts that the JSON file already holds are left out, and after --seconds no new one is begun, so
that a long measurement can be made in slices.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import freedraft
from freedraft.integrations.budget import Calibration
from freedraft.integrations.llama_cpp_adapter import LlamaDraftConfig, attach
from freedraft.integrations.llama_cpp_costs import measure_costs
from freedraft.workbench.demo_prompts import DEMO_PROMPTS

KEYS = ("decode", "decode_cpu", "total")  # wall, processor, and wall with the prompt
PLAIN, LOOKUP, FREEDRAFT = "no draft", "prompt lookup", "freedraft"
LAST_ONLY = "no draft, last logits only"
N_CTX = 1024
MORE_PROMPTS = Path(__file__).with_name("vllm_prompts.jsonl")
NUM_MORE = 3  # edits and questions about a text of that file, beside the demo's

_ITEMS = ("apples", "bread", "coffee", "dates", "eggs", "flour", "grapes", "honey", "ice", "jam")
_ROWS = "".join(f"- {item}: {7 * number + 3} pieces\n" for number, item in enumerate(_ITEMS))
_STEPS = "".join(f"Step {n}: open box {n}, check label {n}, close box {n}.\n" for n in range(1, 9))
_TABLE = "id,name,unit,price\n" + "".join(f"{n},bolt M{n},piece,0.{n}0\n" for n in range(1, 9))
_MONTHS = (
    "January, February, March, April, May, June, July, August, September, October, November, "
    "December. "
)
_COLOURS = "red, orange, yellow, green, blue, indigo, violet, white, black, brown\n"
# Most end amid a repetition, or the model takes the text for finished.
LISTS = {
    "list1": f"Monday\n{_ROWS}\nTuesday\n{_ROWS}\nWednesday\n{_ROWS}\nThursday\n",
    "list2": f"{_STEPS}\n{_STEPS}\n{_STEPS}\nStep 1: open box 1,",
    "list3": f"{_COLOURS * 6}red, orange,",
    "list4": f"{_MONTHS * 3}January,",
    "list5": f"{_TABLE}\n{_TABLE}\nid,name,unit,price\n",
}
FREE = {
    "free1": "Write a short story about a lighthouse keeper who finds a strange bottle.",
    "free2": "What are the advantages of living in a small town?",
    "free3": "Describe a typical day of a baker.",
    "free4": "Write a letter to a friend about a trip to the mountains.",
    "free5": "Explain how a bicycle works.",
}


def prompts() -> list[tuple[str, str, str]]:
    """Return id, workload and text of each prompt; lists are continued, the others answered.

    The workloads take turns, so that a measurement that is cut short has some of each.
    """
    found = [(p.name, p.workload, _chat(p.text)) for p in DEMO_PROMPTS if p.workload != "chat"]
    taken: dict[str, int] = defaultdict(int)
    for line in MORE_PROMPTS.read_text().splitlines():
        row = json.loads(line)
        taken[row["workload"]] += 1
        if row["workload"] != "chat" and taken[row["workload"]] <= NUM_MORE:
            name = f"more_{row['id']}"
            found.append((name, row["workload"], _chat(row["prompt"])))
    found += [(name, "list", text) for name, text in LISTS.items()]
    found += [(name, "free text", _chat(text)) for name, text in FREE.items()]
    turns: dict[str, int] = defaultdict(int)
    ordered = []
    for number, prompt in enumerate(found):
        turns[prompt[1]] += 1
        ordered.append((turns[prompt[1]], -number, prompt))  # free text first
    return [prompt for _, _, prompt in sorted(ordered)]


def _chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def open_models(path: str, num_threads: int) -> dict[str, Any]:
    """Return the engine of each arm; all but one arm share one and set its draft model."""

    def load(logits_all: bool) -> Any:
        return llama_cpp.Llama(
            path,
            n_ctx=N_CTX,
            n_threads=num_threads,
            n_threads_batch=num_threads,
            use_mmap=False,  # pages that other programs push out must not be read again
            logits_all=logits_all,
            verbose=False,
        )

    shared = load(logits_all=True)
    return {PLAIN: shared, LOOKUP: shared, FREEDRAFT: shared, LAST_ONLY: load(logits_all=False)}


def set_draft_model(llama: Any, arm: str, calibration: Calibration) -> None:
    """Give the engine the arm's draft model, without memory of earlier texts."""
    llama.draft_model = None
    if arm == LOOKUP:
        llama.draft_model = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=10)
    elif arm == FREEDRAFT:
        attach(llama, config=LlamaDraftConfig(calibration=calibration))


def user_seconds() -> float:
    """Return what the process has computed so far, the kernel's work for it left out."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def run_once(llama: Any, tokens: list[int], max_new_tokens: int) -> dict[str, Any]:
    """Return times, tokens, and whether each token is the argmax of its own row."""
    llama.reset()
    emitted: list[int] = []
    begin, cpu = time.perf_counter(), user_seconds()
    first = begin
    for token in llama.generate(tokens, temp=0.0, top_k=1):
        if not emitted:
            first, cpu = time.perf_counter(), user_seconds()
        emitted.append(token)
        if token == llama.token_eos() or len(emitted) == max_new_tokens:
            break
    end, cpu = time.perf_counter(), user_seconds() - cpu
    own = True
    if llama.scores.shape[0] >= N_CTX:
        rows = llama.scores[len(tokens) - 1 : len(tokens) - 1 + len(emitted)]
        own = rows.argmax(axis=1).tolist() == emitted
    return {
        "decode": (end - first) / max(len(emitted) - 1, 1),
        "decode_cpu": cpu / max(len(emitted) - 1, 1),
        "total": (end - begin) / len(emitted),
        "tokens": emitted,
        "own": own,
    }


def measure(
    arms: dict[str, Any],
    calibration: Calibration,
    tokens: list[int],
    max_new_tokens: int,
    num_rounds: int,
) -> dict[str, Any]:
    """Return each arm's medians on one prompt, and ratios to no draft."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    names = list(arms)
    steps = emitted = 0
    for number in range(num_rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            set_draft_model(arms[name], name, calibration)
            runs[name].append(run_once(arms[name], tokens, max_new_tokens))
            if name == FREEDRAFT:
                drafted = arms[name].draft_model.statistics
                steps, emitted = steps + drafted.steps, emitted + drafted.emitted
    result: dict[str, Any] = {}
    for name in names:
        result[name] = {key: statistics.median(run[key] for run in runs[name]) for key in KEYS}
        result[name]["num_tokens"] = len(runs[name][-1]["tokens"])
        result[name]["own_argmax"] = all(run["own"] for run in runs[name])
        result[name]["same_text"] = runs[name][-1]["tokens"] == runs[PLAIN][-1]["tokens"]
    for name in names:
        for key in KEYS:
            result[name][f"{key}_ratio"] = result[PLAIN][key] / result[name][key]
    result[FREEDRAFT]["tokens_per_step"] = emitted / max(steps, 1)
    return result


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return geometric means of the ratios by workload, and the worst prompt."""
    summary: dict[str, Any] = {}
    for workload in sorted({row["workload"] for row in rows}):
        chosen = [row["arms"] for row in rows if row["workload"] == workload]
        summary[workload] = {
            arm: {
                key: math.exp(statistics.fmean(math.log(r[arm][f"{key}_ratio"]) for r in chosen))
                for key in KEYS
            }
            | {"worst_decode": min(r[arm]["decode_ratio"] for r in chosen)}
            for arm in (LOOKUP, FREEDRAFT, LAST_ONLY)
        }
    return summary


def main() -> None:
    """Run what is left of the comparison and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--quantization", required=True, help="how the file is quantized")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    rows = json.loads(args.json.read_text())["prompts"] if args.json.is_file() else []
    arms = open_models(args.gguf, args.threads)
    calibration = measure_costs(arms[FREEDRAFT])
    seconds = calibration.seconds.ravel()
    settings = {
        "machine": describe_machine(args.threads),
        "model": f"SmolLM2-135M-Instruct, {args.quantization}",
        "max_new_tokens": args.max_new_tokens,
        "rounds": args.rounds,
        "step_costs_1_2_4_8_16_32": (seconds / seconds[0]).round(3).tolist(),
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    started_at = time.perf_counter()
    for name, workload, text in prompts():
        if name in {row["id"] for row in rows} or time.perf_counter() - started_at > args.seconds:
            continue
        tokens = list(arms[PLAIN].tokenize(text.encode(), add_bos=False, special=True))
        result = measure(arms, calibration, tokens, args.max_new_tokens, args.rounds)
        rows.append({"id": name, "workload": workload, "prompt": len(tokens), "arms": result})
        print_row(rows[-1])
        report = settings | {"summary": summarize(rows), "prompts": rows}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    for workload, ratios in summarize(rows).items():
        print(workload, {arm: {k: round(v, 3) for k, v in r.items()} for arm, r in ratios.items()})


def print_row(row: dict[str, Any]) -> None:
    """Print a prompt's ratios: wall, processor."""
    result = row["arms"]
    ratios = "  ".join(
        f"{arm} {result[arm]['decode_ratio']:.2f}x (cpu {result[arm]['decode_cpu_ratio']:.2f}x)"
        for arm in (LOOKUP, FREEDRAFT)
    )
    own = "" if result[FREEDRAFT]["own_argmax"] else "  NOT THE ARGMAX"
    steps = f"{result[FREEDRAFT]['tokens_per_step']:.2f} tokens a step"
    print(f"{row['id']:>6} {row['workload']:<9} {ratios}  {steps}{own}", flush=True)


def describe_machine(num_threads: int) -> dict[str, Any]:
    """Return the machine and the versions."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": num_threads,
        "python": platform.python_version(),
        "llama-cpp-python": version("llama-cpp-python"),
        "freedraft": freedraft.__version__,
        "load_average": os.getloadavg(),
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
