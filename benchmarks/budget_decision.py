"""How long does the pooled choice take, and the whole cut around it?

    python benchmarks/budget_decision.py --out budget_decision.json

64 requests with trees of 32 nodes, new probabilities each time: the pure function
(``pooled_choice``), and ``PooledBudget.cut`` with corrections, step times and the cutting of 64
trees. Processor time of the thread stands beside wall time: on a shared machine wall times hold the
turns of others.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np

from freedraft import CandidateTree
from freedraft.integrations.budget import PooledBudget, StepCosts, load_calibration, pooled_choice
from freedraft.workbench.calibration.measure import processor_name

NUM_REQUESTS, NUM_NODES = 64, 32
CASES = 256


def microseconds(call: Callable[[int], object], repeats: int) -> dict[str, dict[str, float]]:
    """Return p50, p90 and p99 of the wall and the processor time of ``call(case)``."""
    wall, cpu = np.empty(repeats), np.empty(repeats)
    for number in range(-min(500, repeats), repeats):
        case = number % CASES
        cpu_begin, wall_begin = time.thread_time_ns(), time.perf_counter_ns()
        call(case)
        wall_end, cpu_end = time.perf_counter_ns(), time.thread_time_ns()
        if number >= 0:
            wall[number], cpu[number] = wall_end - wall_begin, cpu_end - cpu_begin
    return {
        clock: {f"p{p}": round(float(np.percentile(times, p)) / 1e3, 2) for p in (50, 90, 99)}
        for clock, times in (("wall_us", wall), ("cpu_us", cpu))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=20_000)
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    steps = generator.beta(4, 1, (CASES, NUM_REQUESTS, NUM_NODES)).astype(np.float32)
    probs = np.minimum.accumulate(np.cumprod(steps, axis=2), axis=2)
    sizes = np.full(NUM_REQUESTS, NUM_NODES)
    times = load_calibration("h100")
    costs = times.pooled_seconds(NUM_REQUESTS, NUM_REQUESTS * NUM_NODES)
    flat = [np.ascontiguousarray(case.reshape(-1)) for case in probs]
    budget = PooledBudget(StepCosts(times))
    requests = list(range(NUM_REQUESTS))
    trees = [
        [CandidateTree.from_chain(np.arange(NUM_NODES), row) for row in case] for case in probs
    ]
    chosen = [int(pooled_choice(case, sizes, costs).sum()) for case in flat]
    content = {
        "machine": processor_name(),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
        },
        "date": time.strftime("%Y-%m-%d"),
        "requests": NUM_REQUESTS,
        "nodes": NUM_NODES,
        "chosen_nodes": {"min": min(chosen), "max": max(chosen)},
        "pooled_choice": microseconds(
            lambda case: pooled_choice(flat[case], sizes, costs), arguments.repeats
        ),
        "cut": microseconds(
            lambda case: budget.cut(requests, trees[case]), arguments.repeats // 10
        ),
    }
    text = json.dumps(content, indent=1) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
