"""What a simulation tells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..bench.run import percentile
from .step_times import StepLoad


@dataclass(frozen=True, slots=True)
class SimulatedOutcome:
    """What became of one request; all times are seconds from the start.

    Attributes:
        arrival: when it came.
        first_token: when its first token was out.
        end: when its last one was.
        num_tokens: of the response.
    """

    arrival: float
    first_token: float
    end: float
    num_tokens: int

    @property
    def ttft(self) -> float:
        """Seconds from the arrival to the first token, waiting included."""
        return self.first_token - self.arrival

    @property
    def latency(self) -> float:
        """Seconds from the arrival to the last token."""
        return self.end - self.arrival

    @property
    def tpot(self) -> float:
        """Seconds a token after the first; 0 for one token."""
        return (self.end - self.first_token) / max(self.num_tokens - 1, 1)


@dataclass(slots=True)
class SimulationTotals:
    """Sums over all steps.

    Attributes:
        seconds: when the last request ended.
        busy_seconds: in which a step ran.
        steps: of the engine, each for all running requests.
        target_steps: emissions of one request: a prefill's end or a decoding step.
        emitted: tokens.
        drafted: nodes verified.
        accepted: of them.
        preemptions: requests sent back.
        weighted_decoding: decoding requests times seconds.
        peak_waiting: longest queue.
    """

    seconds: float = 0.0
    busy_seconds: float = 0.0
    steps: int = 0
    target_steps: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    weighted_decoding: float = 0.0
    peak_waiting: int = 0

    def add_step(self, load: StepLoad, seconds: float, num_waiting: int) -> None:
        """Count a step of the engine."""
        self.steps += 1
        self.busy_seconds += seconds
        self.weighted_decoding += load.num_decoding * seconds
        self.peak_waiting = max(self.peak_waiting, num_waiting)

    def add_emission(self, emitted: int, drafted: int, accepted: int) -> None:
        """Count one request's tokens of a step."""
        self.target_steps += 1
        self.emitted += emitted
        self.drafted += drafted
        self.accepted += accepted


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must meet to count as good.

    Attributes:
        ttft_seconds: most time to the first token.
        tpot_seconds: most time a token after it.
    """

    ttft_seconds: float = 1.0
    tpot_seconds: float = 0.05

    def is_met(self, ttft: float, tpot: float) -> bool:
        """Return whether a request's times meet it."""
        return ttft <= self.ttft_seconds and tpot <= self.tpot_seconds


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One policy at one rate.

    Attributes:
        policy: its name.
        rate: requests a second that were offered.
        requests: how many were served.
        throughput: tokens a second from the first arrival to the last token.
        goodput: requests a second that met the objective.
        good_share: of the requests.
        ttft_p50: seconds to the first token, median.
        ttft_p99: 99th percentile.
        tpot_p50: seconds a token after it, median.
        tpot_p99: 99th percentile.
        latency_mean: seconds from the arrival to the last token.
        mean_decoding: decoding requests, averaged over the time in which a step ran.
        tokens_per_step: emitted tokens over all target steps, prefills included.
        drafted_per_step: verified nodes over all target steps.
        acceptance_rate: accepted over drafted; 0 when nothing was drafted.
        busy_share: of the time in which a step ran.
        preemptions: requests that lost their cache.
        peak_waiting: longest queue.
    """

    policy: str
    rate: float
    requests: int
    throughput: float
    goodput: float
    good_share: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    latency_mean: float
    mean_decoding: float
    tokens_per_step: float
    drafted_per_step: float
    acceptance_rate: float
    busy_share: float
    preemptions: int
    peak_waiting: int

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return asdict(self)


def summarize_simulation(
    policy: str,
    rate: float,
    outcomes: Sequence[SimulatedOutcome],
    totals: SimulationTotals,
    objective: Objective,
) -> SimulationResult:
    """Put a simulation's outcomes and sums together.

    Args:
        policy: its name.
        rate: requests a second that were offered.
        outcomes: at least one.
        totals: of all steps.
        objective: what counts as good.
    """
    span = totals.seconds - min(outcome.arrival for outcome in outcomes)
    ttft = [outcome.ttft for outcome in outcomes]
    tpot = [outcome.tpot for outcome in outcomes]
    good = sum(objective.is_met(*pair) for pair in zip(ttft, tpot, strict=True))
    return SimulationResult(
        policy=policy,
        rate=rate,
        requests=len(outcomes),
        throughput=totals.emitted / span,
        goodput=good / span,
        good_share=good / len(outcomes),
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        tpot_p50=percentile(tpot, 50),
        tpot_p99=percentile(tpot, 99),
        latency_mean=statistics.fmean(outcome.latency for outcome in outcomes),
        mean_decoding=totals.weighted_decoding / totals.busy_seconds,
        tokens_per_step=totals.emitted / totals.target_steps,
        drafted_per_step=totals.drafted / totals.target_steps,
        acceptance_rate=totals.accepted / totals.drafted if totals.drafted else 0.0,
        busy_share=totals.busy_seconds / span,
        preemptions=totals.preemptions,
        peak_waiting=totals.peak_waiting,
    )
