"""What a simulation tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..request_times import Objective, RequestTimes, ServiceLevel, service_level
from .step_times import StepLoad


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
class SimulationResult:
    """One policy at one rate.

    Attributes:
        policy: its name.
        rate: requests a second that were offered.
        level: how the requests fared.
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
    level: ServiceLevel
    mean_decoding: float
    tokens_per_step: float
    drafted_per_step: float
    acceptance_rate: float
    busy_share: float
    preemptions: int
    peak_waiting: int

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them, those of the level among them."""
        fields = asdict(self)
        level: dict[str, object] = fields.pop("level")
        return fields | level


def summarize_simulation(
    policy: str,
    rate: float,
    outcomes: Sequence[RequestTimes],
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
    return SimulationResult(
        policy=policy,
        rate=rate,
        level=service_level(outcomes, objective),
        mean_decoding=totals.weighted_decoding / totals.busy_seconds,
        tokens_per_step=totals.emitted / totals.target_steps,
        drafted_per_step=totals.drafted / totals.target_steps,
        acceptance_rate=totals.accepted / totals.drafted if totals.drafted else 0.0,
        busy_share=totals.busy_seconds / span,
        preemptions=totals.preemptions,
        peak_waiting=totals.peak_waiting,
    )
