"""What a generation reports about itself, in the words of the documentation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepReport:
    """One row's part in one target step.

    Attributes:
        row: row of the caller's batch.
        token_ids: tokens emitted by the step, in order.
        num_accepted: how many of them, from the first on, had been drafted.
        num_drafted: nodes of the row's tree.
    """

    row: int
    token_ids: tuple[int, ...]
    num_accepted: int
    num_drafted: int


@dataclass(slots=True)
class GenerationStatistics:
    """Counts and times of one call, all rows together.

    A step is one forward of the target for one row, the prefill and steps without a draft included.

    Attributes:
        steps: target steps.
        emitted: tokens emitted.
        drafted: nodes verified.
        accepted: nodes accepted.
        draft_seconds: wall time inside the drafter.
        verify_seconds: wall time of forwards, walks and cache compaction, the prefill excluded.
        prefill_seconds: wall time of the prompt's forward.
        seconds: wall time of all.
        switched_off: requests whose drafter was switched off because of a fault.
    """

    steps: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    prefill_seconds: float = 0.0
    seconds: float = 0.0
    switched_off: int = 0

    def add(self, report: StepReport) -> None:
        """Count one row's step."""
        self.steps += 1
        self.emitted += len(report.token_ids)
        self.drafted += report.num_drafted
        self.accepted += report.num_accepted

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens over all target steps."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def drafted_per_step(self) -> float:
        """Verified nodes over all target steps."""
        return self.drafted / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def wasted_fraction(self) -> float:
        """Share of the drafted nodes that was not accepted; 0 when nothing was drafted."""
        return 1.0 - self.acceptance_rate if self.drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over wall time, the prefill included."""
        return self.emitted / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, float]:
        """Return all counts, times and ratios by name."""
        return {
            "tokens_per_step": self.tokens_per_step,
            "acceptance_rate": self.acceptance_rate,
            "wasted_fraction": self.wasted_fraction,
            "drafted_per_step": self.drafted_per_step,
            "tokens_per_second": self.tokens_per_second,
            "steps": self.steps,
            "emitted": self.emitted,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "seconds": self.seconds,
            "draft_seconds": self.draft_seconds,
            "verify_seconds": self.verify_seconds,
            "prefill_seconds": self.prefill_seconds,
            "switched_off": self.switched_off,
        }
