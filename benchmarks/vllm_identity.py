"""Is vLLM's greedy output the same with freedraft as without, and its sampled one of the same kind?

Real vLLM on the CPU, float32. Greedy: every prompt at batch 1 and 8, token for token. Sampled: a
short continuation drawn many times with seeds, with and without drafts; the counts of continuations
are compared (by their beginnings, of the length at which most come often) by a two-sample
chi-square test.

    python benchmarks/vllm_identity.py --model FOLDER --json benchmarks/results/vllm_identity.json

Run it with the Python that has vLLM and freedraft. What the JSON file already holds of the sampled
part is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm_worker import FREEDRAFT, METHODS, EngineProcess, read_prompts

PROMPTS = Path(__file__).with_name("vllm_prompts.jsonl")
SAMPLED_PROMPT = "Repeat: red blue red blue red blue red blue red"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7, top_k 20": {"temperature": 0.7, "top_k": 20},
    "temperature 0.9, top_p 0.8": {"temperature": 0.9, "top_p": 0.8},
}
PARTS = ("greedy", "sampled")
LEAST_P_VALUE = 1e-3
MIN_COUNT = 10  # of both samples together; rarer continuations are pooled


def greedy_outputs(
    engine: EngineProcess, prompts: Sequence[str], batch_size: int, max_tokens: int
) -> list[list[int]]:
    """Return each prompt's greedy continuation."""
    outputs: list[list[int]] = []
    for start in range(0, len(prompts), batch_size):
        part = list(prompts[start : start + batch_size])
        sampling = [{"temperature": 0.0, "max_tokens": max_tokens}] * len(part)
        outputs += [row[0] for row in engine.ask(prompts=part, sampling=sampling)["token_ids"]]
    return outputs


def sampled_counts(
    engine: EngineProcess, prompt: str, sampling: dict[str, Any], num_draws: int, seed: int
) -> Counter[tuple[int, ...]]:
    """Return how often each continuation of ``num_draws`` came."""
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, num_draws, 200):
        draws = range(start, min(start + 200, num_draws))
        answer = engine.ask(
            prompts=[prompt] * len(draws),
            sampling=[{**sampling, "seed": seed + draw} for draw in draws],
        )
        counts.update(tuple(row[0]) for row in answer["token_ids"])
    return counts


def cut_to_common(
    first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]]
) -> tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]:
    """Return the counts of the beginnings of that length of which most are not rare.

    Where nearly every continuation is its own, all would be pooled and nothing compared.
    """
    best, most = None, 0
    for length in range(max(map(len, first | second)), 0, -1):
        cut = (Counter[tuple[int, ...]](), Counter[tuple[int, ...]]())
        for counts, kept in zip((first, second), cut, strict=True):
            for key, count in counts.items():
                kept[key[:length]] += count
        num_common = sum(count >= MIN_COUNT for count in (cut[0] + cut[1]).values())
        if num_common > most:
            best, most = cut, num_common
    if best is None:
        raise SystemExit("expected continuations that come more than once, got too few draws")
    return best


def two_sample_p_value(
    first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]]
) -> tuple[float, int]:
    """Return the p-value of the chi-square test that both counts are of one distribution.

    Returns:
        The p-value and the number of classes.
    """
    pooled = [0, 0]
    rows = []
    for key in first.keys() | second.keys():
        pair = [first[key], second[key]]
        if sum(pair) < MIN_COUNT:
            pooled = [pooled[0] + pair[0], pooled[1] + pair[1]]
        else:
            rows.append(pair)
    if sum(pooled):
        rows.append(pooled)
    sizes = [sum(row[side] for row in rows) for side in (0, 1)]
    statistic = 0.0
    for row in rows:
        for side in (0, 1):
            expected = sum(row) * sizes[side] / sum(sizes)
            statistic += (row[side] - expected) ** 2 / expected
    return chi_square_tail(statistic, len(rows) - 1), len(rows)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Return P(X > statistic) for a chi-square variable (Wilson and Hilferty's cube root)."""
    if freedom < 1:
        return 1.0
    spread = 2 / (9 * freedom)
    score = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(score / math.sqrt(2))


def check_greedy(
    engines: dict[str, EngineProcess], prompts: Sequence[str], max_tokens: int
) -> dict[str, Any]:
    """Return by batch size how many prompts came out the same."""
    report = {}
    for batch_size in (1, 8):
        plain = greedy_outputs(engines["off"], prompts, batch_size, max_tokens)
        drafted = greedy_outputs(engines["freedraft"], prompts, batch_size, max_tokens)
        same = sum(a == b for a, b in zip(plain, drafted, strict=True))
        report[f"batch {batch_size}"] = {
            "prompts": len(prompts),
            "identical": same,
            "tokens": sum(map(len, plain)),
        }
        print(f"greedy, batch {batch_size}: {same} of {len(prompts)} identical", flush=True)
    return report


def check_sampled(
    engines: dict[str, EngineProcess], num_draws: int, report: dict[str, Any]
) -> Iterator[None]:
    """Add the test's outcome for each kind of sampling that the report does not have yet."""
    for name, sampling in SAMPLINGS.items():
        if name in report:
            continue
        sampling = {**sampling, "max_tokens": 4}
        plain = sampled_counts(engines["off"], SAMPLED_PROMPT, sampling, num_draws, 1)
        drafted = sampled_counts(
            engines["freedraft"], SAMPLED_PROMPT, sampling, num_draws, 1_000_001
        )
        p_value, classes = two_sample_p_value(*cut_to_common(plain, drafted))
        report[name] = {"draws": num_draws, "classes": classes, "p_value": p_value}
        print(f"sampled, {name}: p = {p_value:.3f} over {classes} classes", flush=True)
        yield


def write(report: dict[str, Any], path: Path | None) -> None:
    """Write what was found so far, so that a long run can go on where it stopped."""
    report["machine"] = f"{platform.machine()}, {platform.python_version()}"
    report["date"] = time.strftime("%Y-%m-%d")
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", default=str(PROMPTS))
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-draws", type=int, default=2000)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--logs", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    prompts = [row["prompt"] for row in read_prompts(arguments.prompts)]
    prompts = prompts[:: max(1, len(prompts) // arguments.num_prompts)][: arguments.num_prompts]
    drafting = {
        "speculative_config": {"model": FREEDRAFT, "num_speculative_tokens": 16},
        "additional_config": {"freedraft": {"budget": "full"}},  # draft whatever it costs
    }
    engines = {
        name: EngineProcess(arguments.model, values, arguments.logs / f"{name}.log")
        for name, values in {"off": METHODS["off"], "freedraft": drafting}.items()
    }
    report: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():
        report = json.loads(arguments.json.read_text())  # the other part's
    try:
        if "greedy" in arguments.parts:
            report["greedy"] = check_greedy(engines, prompts, arguments.max_tokens)
            write(report, arguments.json)
        if "sampled" in arguments.parts:
            found = report.setdefault("sampled", {})
            for _ in check_sampled(engines, arguments.num_draws, found):
                write(report, arguments.json)
    finally:
        for engine in engines.values():
            engine.close()
    if any(row["identical"] < row["prompts"] for row in report.get("greedy", {}).values()):
        raise SystemExit("expected the same greedy output with and without drafts")
    if any(row["p_value"] < LEAST_P_VALUE for row in report.get("sampled", {}).values()):
        raise SystemExit("expected samples of one distribution with and without drafts")


if __name__ == "__main__":
    main()
