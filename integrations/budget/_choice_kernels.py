"""The pooled choice on sorted probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...drafters._jit import compile_once, kernel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]


@kernel
def best_count(increasing: Floats, costs: Doubles, num_requests: int) -> int:
    """Return how many of the largest gains maximise tokens over time; the fewest of equals.

    Args:
        increasing: ``(num_gains,)`` expected tokens of each further step of the count, sorted.
        costs: ``(num_gains + 1,)`` time of a step with that many of them.
        num_requests: tokens that a step emits without any.
    """
    num_gains = increasing.size
    tokens = float(num_requests)
    best_rate, best = tokens / costs[0], 0
    for count in range(1, num_gains + 1):
        tokens += increasing[num_gains - count]
        rate = tokens / costs[count]
        if rate > best_rate:
            best_rate, best = rate, count
    return best


@kernel
def pooled_counts(
    increasing: Floats, probs: Floats, stops: Ints, costs: Doubles, counts: Ints
) -> None:
    """Share out the best number of nodes: each request gets those of its own among the best.

    Of equally probable nodes at the border, those of earlier requests come first.

    Args:
        increasing: ``(num_nodes,)`` all requests' path probabilities, sorted.
        probs: ``(num_nodes,)`` the same, one request after another.
        stops: ``(num_requests,)`` where each request's nodes end.
        costs: ``(num_nodes + 1,)`` time of a step with that many nodes.
        counts: ``(num_requests,)`` overwritten.
    """
    total = best_count(increasing, costs, stops.size)
    counts[:] = 0
    if total == 0:
        return
    border = increasing[increasing.size - total]
    above = 0
    while above < total and increasing[increasing.size - 1 - above] > border:
        above += 1
    num_equal = total - above  # nodes at the border that still find room
    start = 0
    for request in range(stops.size):
        for node in range(start, stops[request]):
            if probs[node] > border:
                counts[request] += 1
            elif probs[node] == border and num_equal > 0:
                counts[request] += 1
                num_equal -= 1
        start = stops[request]


@kernel
def mark_falling(probs: Floats, stops: Ints, falling: Flags) -> None:
    """Mark the requests whose most probable nodes stand first.

    Args:
        probs: ``(num_nodes,)`` path probabilities, one request after another.
        stops: ``(num_requests,)`` where each request's nodes end.
        falling: ``(num_requests,)`` overwritten with 1 or 0.
    """
    start = 0
    for request in range(stops.size):
        falling[request] = 1
        for node in range(start + 1, stops[request]):
            if probs[node] > probs[node - 1]:
                falling[request] = 0
                break
        start = stops[request]


def compile_kernels() -> None:
    """Compile each kernel for its one signature."""
    compile_once(best_count, "int64(float32[::1], float64[::1], int64)")
    compile_once(
        pooled_counts, "void(float32[::1], float32[::1], int64[::1], float64[::1], int64[::1])"
    )
    compile_once(mark_falling, "void(float32[::1], int64[::1], uint8[::1])")
