"""From single step times to a table: interleaved measurements, medians, a monotone fit."""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...integrations.budget import Calibration
from ...integrations.budget.calibration_file import MEASURED
from ...integrations.budget.monotone import isotonic

FloatArray64 = npt.NDArray[np.float64]
Progress = Callable[[str, int, int | None], None]
"""Called with a stage's name, how much of it is done, and how much there is."""
Times = Mapping[tuple[int, int, int], Sequence[float]]
"""Seconds of the measured steps by (context, batch, nodes)."""

_MOST_SWEEPS = 50


class MeasurementError(Exception):
    """An engine did not do what was to be timed."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """What is measured.

    Attributes:
        contexts: tokens in each request's cache, increasing.
        batches: requests in the step, increasing.
        nodes: drafted tokens of each request, increasing, 0 first.
        rounds: measurements of each.
    """

    contexts: tuple[int, ...] = (128, 1024)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    nodes: tuple[int, ...] = (0, 1, 3, 7, 15, 31)
    rounds: int = 7

    def __post_init__(self) -> None:
        """Check the plan.

        Raises:
            ValueError: an axis does not increase, or there are no rounds.
        """
        for name, least in (("contexts", 1), ("batches", 1), ("nodes", 0)):
            axis = getattr(self, name)
            if not axis or axis[0] < least or list(axis) != sorted(set(axis)):
                raise ValueError(f"expected increasing {name} from {least} on, got {axis}")
        if self.nodes[0] != 0:
            raise ValueError(f"expected nodes to begin with 0, got {self.nodes}")
        if self.rounds < 1:
            raise ValueError(f"expected rounds >= 1, got {self.rounds}")


class StepTimer(Protocol):
    """One engine with a model in it."""

    def prepare(self, context: int, batch: int) -> Callable[[int], float]:
        """Fill a cache and return what times one step on it.

        Args:
            context: tokens of each request.
            batch: requests.

        Returns:
            A function from the drafted tokens of each request to the seconds of one step.
        """
        ...


def measure_steps(timer: StepTimer, plan: CalibrationPlan, progress: Progress) -> Times:
    """Time all entries of the plan in turn, in another order each round.

    A slow minute of the machine so hits all entries alike. The first round warms up.
    """
    cells = list(product(plan.contexts, plan.batches))
    steps = {}
    for done, (context, batch) in enumerate(cells):
        progress("prepare", done, len(cells))
        steps[context, batch] = timer.prepare(context, batch)
    progress("prepare", len(cells), len(cells))
    times: dict[tuple[int, int, int], list[float]] = {
        (context, batch, nodes): [] for context, batch in cells for nodes in plan.nodes
    }
    order = random.Random(0)
    for number in range(plan.rounds + 1):
        for cell in order.sample(cells, len(cells)):
            for nodes in order.sample(plan.nodes, len(plan.nodes)):
                seconds = steps[cell](nodes)
                if number:
                    times[*cell, nodes].append(seconds)
        progress("measure", number + 1, plan.rounds + 1)
    return times


def tabulate(
    times: Times,
    plan: CalibrationPlan,
    *,
    model: str,
    engine: str,
    device: str,
    draft_seconds: Mapping[str, FloatArray64] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Calibration:
    """Return the table of medians, made never to fall along any axis.

    Args:
        times: at least one measurement of each entry of the plan.
        plan: the axes.
        model: the model's id.
        engine: what ran it.
        device: the processor.
        draft_seconds: by drafter's name, ``(num_batches,)`` seconds a step.
        about: what else is to be kept.
    """
    medians = np.array(
        [
            [[statistics.median(times[c, b, n]) for n in plan.nodes] for b in plan.batches]
            for c in plan.contexts
        ]
    )
    fitted = monotone_table(medians)
    largest = float(np.abs(fitted / medians - 1).max())
    kept = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "rounds": plan.rounds,
        "largest_correction": round(largest, 4),
        "median_seconds": medians.tolist(),
    }
    return Calibration(
        model,
        engine,
        device,
        MEASURED,
        plan.contexts,
        plan.batches,
        plan.nodes,
        fitted,
        dict(draft_seconds or {}),
        kept | dict(about or {}),
    )


def monotone_table(values: FloatArray64) -> FloatArray64:
    """Return a table close to ``values`` that never falls along any axis.

    The isotonic fit is made along each axis in turn until nothing changes (averages of a falling
    stretch, so that one slow measurement does not lift all that is larger); what rounding leaves is
    lifted.

    Args:
        values: any number of axes.
    """
    fitted = np.array(values, np.float64)
    for _ in range(_MOST_SWEEPS):
        before = fitted.copy()
        for axis in range(fitted.ndim):
            fitted = np.apply_along_axis(isotonic, axis, fitted)
        if np.allclose(before, fitted, rtol=1e-12, atol=0):
            break
    for axis in range(fitted.ndim):
        fitted = np.maximum.accumulate(fitted, axis)
    return fitted


def processor_name() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
