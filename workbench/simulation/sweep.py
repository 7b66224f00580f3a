"""Policies over rates of arrival: which schedule is best at which load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..request_times import Objective
from .acceptance import AcceptanceTable
from .policy import Policy, Schedule
from .result import SimulationResult, summarize_simulation
from .server import Server, ServerConfig
from .step_times import StepTimes
from .workload import open_loop

OFF = Schedule({1: 0})
LOADS = (0.1, 0.3, 0.6, 0.9, 1.2, 1.6)
"""Rates that are tried, as shares of what the server can do without drafts."""
_LATENCY_TIE = 0.01


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """What every simulation of a sweep shares.

    Attributes:
        num_requests: of each simulation.
        seed: of the arrivals.
        objective: what counts as good.
        server: the limits.
    """

    num_requests: int = 500
    seed: int = 0
    objective: Objective = field(default_factory=Objective)
    server: ServerConfig = field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: no request.
        """
        if self.num_requests < 1:
            raise ValueError(f"expected num_requests >= 1, got {self.num_requests}")


def plain_capacity(
    tables: Sequence[AcceptanceTable], times: StepTimes, config: SweepConfig
) -> float:
    """Return how many requests a second the server ends without drafts when it is full.

    Many wait from the start; the rate is that of the middle half of the ends, when neither the
    first prompts nor the last few requests count.
    """
    num_requests = max(config.num_requests, 4 * config.server.max_requests)
    requests = open_loop(tables, math.inf, num_requests, config.seed)
    outcomes, _ = Server(times, OFF, config.server).run(requests)
    ends = sorted(outcome.end for outcome in outcomes)
    first, last = ends[len(ends) // 4], ends[3 * len(ends) // 4]
    if last <= first:  # so few or so alike that they end together
        return len(ends) / ends[-1]
    return (3 * len(ends) // 4 - len(ends) // 4) / (last - first)


def sweep(
    tables: Sequence[AcceptanceTable],
    times: StepTimes,
    policies: Sequence[Policy],
    rates: Sequence[float],
    config: SweepConfig,
    on_run: Callable[[], None] | None = None,
) -> list[SimulationResult]:
    """Simulate each policy at each rate, with the same arrivals for all policies.

    Args:
        tables: the requests, taken over and over.
        times: what steps take.
        policies: with names of their own.
        rates: requests a second.
        config: the rest.
        on_run: called after each simulation, for a progress bar.

    Raises:
        ValueError: two policies of one name, or a workload that does not fit the server.
    """
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        raise ValueError(f"expected policies of different names, got {names}")
    results = []
    for rate in rates:
        requests = open_loop(tables, rate, config.num_requests, config.seed)
        for policy in policies:
            outcomes, totals = Server(times, policy, config.server).run(requests)
            results.append(
                summarize_simulation(policy.name, rate, outcomes, totals, config.objective)
            )
            if on_run is not None:
                on_run()
    return results


def best_by_rate(results: Sequence[SimulationResult]) -> dict[float, SimulationResult]:
    """Return at each rate the policy with the least mean latency of a request.

    Latency counts waiting, so it tells at low load how fast a request is served and at high load
    how many are. Of policies within one per cent the one that drafts least wins.
    """
    best: dict[float, SimulationResult] = {}
    for rate in dict.fromkeys(result.rate for result in results):
        at_rate = [result for result in results if result.rate == rate]
        least = min(result.level.latency_mean for result in at_rate)
        ties = [r for r in at_rate if r.level.latency_mean <= least * (1 + _LATENCY_TIE)]
        best[rate] = min(ties, key=lambda result: result.drafted_per_step)
    return best
