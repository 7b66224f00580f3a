"""What the scripts about the cold start share: arms, conditions, step times, figures. No torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from freedraft.drafters import Drafter, create_drafter
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.catalog import BLEND_SOURCES
from freedraft.drafters.lookahead import LookaheadConfig, LookaheadDrafter
from freedraft.drafters.ngram import NgramDrafter
from freedraft.drafters.runner_up import RunnerUpDrafter
from freedraft.drafters.suffix import SuffixDrafter

MAX_NODES = 64
NEW_TOKENS = 256
CONDITIONS = ("flat", "measured")
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "temperature 0.8": {"do_sample": True, "temperature": 0.8, "top_k": 0, "seed": 11},
}


def blend_of(*names: str) -> Callable[[], Drafter]:
    """Return a maker of a blend of named drafters."""
    return lambda: BlendDrafter([create_drafter(name) for name in names])


def with_runners_up(*names: str) -> Callable[[], Drafter]:
    """Return a maker of a blend of named drafters and the runner-up drafter on their pools."""

    def make() -> Drafter:
        sources = [create_drafter(name) for name in names]
        pools = [source for source in sources if isinstance(source, NgramDrafter | SuffixDrafter)]
        return BlendDrafter([*sources, RunnerUpDrafter(pools)])

    return make


ARMS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: create_drafter("ngram"),
    "suffix": lambda: create_drafter("suffix"),
    "edit": lambda: create_drafter("edit"),
    "recycling": lambda: create_drafter("recycling"),
    "stochastic_ngram": lambda: create_drafter("stochastic_ngram"),
    "lookahead 5x3": lambda: LookaheadDrafter(LookaheadConfig(window_size=5, ngram_size=3)),
    "recycling + ngram": blend_of("ngram", "recycling"),
    "blend": lambda: create_drafter("blend"),
    "ngram + runner_up": with_runners_up("ngram"),
    "suffix + runner_up": with_runners_up("suffix"),
    "blend + runner_up": with_runners_up(*BLEND_SOURCES),
}


def read_costs(path: Path) -> tuple[list[float], float]:
    """Return T(1 + n) / T(1) for n nodes, interpolated, and T(1) in seconds."""
    fast = json.loads(path.read_text())["results"]["fp32"]["512"]["fast"]["wall"]
    widths = [int(width) for width in fast["ratio_to_one"]]
    ratios = np.maximum.accumulate(list(fast["ratio_to_one"].values()))
    costs = np.interp(np.arange(1, MAX_NODES + 2), widths, ratios).tolist()
    return costs, fast["median_ms"]["1"] / 1e3


def summary(rows: list[dict[str, Any]], costs: list[float], first: float) -> dict[str, float]:
    """Return the figures of one arm, mode, workload and condition over its prompts.

    Args:
        rows: one a prompt.
        costs: T(1 + n) / T(1) for n nodes.
        first: T(1) in seconds.
    """
    tokens = sum(row["tokens"] for row in rows)
    nodes = [count for row in rows for count in row["nodes"]]
    draft = statistics.median(row["draft_us"] for row in rows) * 1e-6 / first
    verify = sum(costs[count] for count in nodes)
    return {
        "tokens_per_step": round(tokens / len(nodes), 3),
        "drafted_per_step": round(sum(nodes) / len(nodes), 2),
        "draft_us": round(draft * first * 1e6, 1),
        "draft_over_target": round(draft, 5),
        "speedup_measured": round(tokens / (verify + draft * len(nodes)), 3),
        "speedup_flat": round(tokens / len(nodes) / (1 + draft), 3),
    }
