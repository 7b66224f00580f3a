"""Settings of the node budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLAT = "flat"
"""The engine computes each token once: a step costs what its tokens cost in all."""
PADDED = "padded"
"""The engine pads a batch to its widest row: a step costs what its widest tree costs."""


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """Settings of :class:`PooledBudget`.

    Attributes:
        layout: :data:`FLAT` or :data:`PADDED`.
        schedule: most nodes of a request by the number of requests from which on it holds, for
            example ``{1: 16, 8: 4, 32: 0}``; with it the times decide nothing.
        memory: expected accepted tokens over which a request's correction is averaged.
        margin: how much better than plain decoding a step with drafts must look; probabilities
            and times are estimates, and of many the best is too good to be true.
        max_loss: share of the time that drafts may lose against plain decoding; with it they must
            look better the more of that is used up (:class:`RegretAccount`), in place of the
            margin.
        sleep_after: steps in a row without an accepted token after which a request is asked for
            drafts only now and then.
        sleep_period: a sleeping request is asked once in so many steps.
        test_after: steps in a row in which candidates were there and nothing was verified, after
            which one step verifies a few all the same; each further wait is twice as long, up to
            eight times.
        test_nodes: how many of each request.
    """

    layout: str = FLAT
    schedule: Mapping[int, int] | None = None
    memory: float = 30.0
    margin: float = 0.1
    max_loss: float | None = None
    sleep_after: int = 32
    sleep_period: int = 8
    test_after: int = 256
    test_nodes: int = 4

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if self.layout not in (FLAT, PADDED):
            raise ValueError(f"expected layout {FLAT!r} or {PADDED!r}, got {self.layout!r}")
        if self.memory <= 0 or self.margin < 0:
            raise ValueError(
                f"expected memory > 0 and margin >= 0, got {self.memory} and {self.margin}"
            )
        if self.max_loss is not None and not 0 < self.max_loss < 1:
            raise ValueError(f"expected max_loss in (0, 1) or None, got {self.max_loss}")
        counts = (self.sleep_after, self.sleep_period, self.test_after, self.test_nodes)
        if min(counts) < 1:
            raise ValueError(
                "expected sleep_after, sleep_period, test_after and test_nodes >= 1, got "
                f"{', '.join(map(str, counts))}"
            )
        if self.schedule is not None:
            check_schedule(self.schedule)

    def scheduled_nodes(self, num_requests: int) -> int | None:
        """Return the most nodes of a request at that load; ``None`` without a schedule."""
        if self.schedule is None:
            return None
        return self.schedule[max(load for load in self.schedule if load <= max(num_requests, 1))]


def check_schedule(schedule: Mapping[int, int]) -> None:
    """Check a schedule of nodes by the number of requests.

    Raises:
        ValueError: it does not begin at one request, or a number is negative.
    """
    if 1 not in schedule or min(schedule) < 1 or min(schedule.values()) < 0:
        raise ValueError(
            "expected a schedule that maps 1 and larger numbers of requests to nodes >= 0, got "
            f"{dict(schedule)}"
        )
