"""When served requests came, began and ended, and what that makes of a server, real or not."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .bench.run import percentile


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request; all times are seconds from the start.

    Attributes:
        arrival: when it came, whether or not the server was free.
        first_token: when its first token was out.
        end: when its last one was.
        num_tokens: of the response, at least 1.
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


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must meet to count as good.

    Attributes:
        ttft_seconds: most time to the first token.
        tpot_seconds: most time a token after it.
    """

    ttft_seconds: float = 1.0
    tpot_seconds: float = 0.05

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: one is not above 0.
        """
        if not (self.ttft_seconds > 0 and self.tpot_seconds > 0):
            raise ValueError(
                f"expected limits above 0 seconds, got {self.ttft_seconds} and {self.tpot_seconds}"
            )

    def is_met(self, times: RequestTimes) -> bool:
        """Return whether a request meets both limits."""
        return times.ttft <= self.ttft_seconds and times.tpot <= self.tpot_seconds


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Many requests of one server.

    Attributes:
        requests: that ended.
        throughput: tokens a second from the first arrival to the last token.
        goodput: requests a second that met the objective.
        good_share: of the requests.
        ttft_p50: seconds to the first token, median.
        ttft_p99: 99th percentile.
        tpot_p50: seconds a token after it, median.
        tpot_p99: 99th percentile.
        latency_mean: seconds from the arrival to the last token.
    """

    requests: int
    throughput: float
    goodput: float
    good_share: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    latency_mean: float


def service_level(requests: Sequence[RequestTimes], objective: Objective) -> ServiceLevel:
    """Put many requests together.

    Args:
        requests: at least one.
        objective: what counts as good.
    """
    span = max(times.end for times in requests) - min(times.arrival for times in requests)
    good = sum(map(objective.is_met, requests))
    ttft = [times.ttft for times in requests]
    tpot = [times.tpot for times in requests]
    return ServiceLevel(
        requests=len(requests),
        throughput=sum(times.num_tokens for times in requests) / span,
        goodput=good / span,
        good_share=good / len(requests),
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        tpot_p50=percentile(tpot, 50),
        tpot_p99=percentile(tpot, 99),
        latency_mean=statistics.fmean(times.latency for times in requests),
    )
