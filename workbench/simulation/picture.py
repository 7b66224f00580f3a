"""The picture of a sweep: throughput, pace and goodput over the load, one line a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..request_times import Objective
from .result import SimulationResult


def draw_sweep(
    results: Sequence[SimulationResult], objective: Objective, title: str, path: Path
) -> None:
    """Draw a sweep; the ending of the file's name tells the format.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the picture cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    throughput, pace, good = figure.subplots(1, 3)
    for name in dict.fromkeys(result.policy for result in results):
        rows = [result for result in results if result.policy == name]
        rates = [result.rate for result in rows]
        width = 2.4 if name == "auto" else 1.2
        throughput.plot(
            rates, [row.level.throughput for row in rows], "o-", label=name, linewidth=width
        )
        pace.plot(rates, [row.level.tpot_p50 * 1e3 for row in rows], "o-", linewidth=width)
        good.plot(rates, [row.level.goodput for row in rows], "o-", linewidth=width)
    throughput.set_ylabel("tokens a second")
    pace.set_ylabel("TPOT, median, ms")
    good.set_ylabel("good requests a second")
    good.set_title(
        f"TTFT <= {objective.ttft_seconds:g} s, TPOT <= {objective.tpot_seconds * 1e3:g} ms",
        fontsize=9,
    )
    for axes in (throughput, pace, good):
        axes.set_xlabel("requests a second that arrive")
        axes.set_ylim(bottom=0)
    throughput.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=140)
