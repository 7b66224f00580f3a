"""Requests of a simulation and when they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .acceptance import AcceptanceTable


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request.

    Attributes:
        arrival: seconds from the start.
        table: its lengths and its drafts' fate.
    """

    arrival: float
    table: AcceptanceTable


def poisson_arrivals(rate: float, num_requests: int, seed: int) -> list[float]:
    """Return arrival times of an open loop: independent gaps, exponential, the first included.

    Args:
        rate: requests a second on average; infinite: all at once at the start.
        num_requests: how many.
        seed: of the gaps.

    Raises:
        ValueError: the rate is not above 0.
    """
    if not rate > 0:
        raise ValueError(f"expected a rate above 0 requests a second, got {rate}")
    gaps = np.random.default_rng(seed).exponential(1.0, num_requests) / rate
    return [float(time) for time in np.cumsum(gaps)]


def open_loop(
    tables: Sequence[AcceptanceTable], rate: float, num_requests: int, seed: int
) -> list[SimulatedRequest]:
    """Return requests that arrive whether or not the engine keeps up.

    The tables are taken in their order, over and over: gaps and requests are the same at each rate
    but for the scale of time, so that rates and schedules can be compared.

    Args:
        tables: at least one.
        rate: as for :func:`poisson_arrivals`.
        num_requests: how many.
        seed: of the gaps.

    Raises:
        ValueError: no table, or a bad rate.
    """
    if not tables:
        raise ValueError("expected at least one request to simulate, got none")
    times = poisson_arrivals(rate, num_requests, seed)
    return [SimulatedRequest(time, tables[index % len(tables)]) for index, time in enumerate(times)]
