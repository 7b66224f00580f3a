"""How many nodes a step verifies: as many as the expected tokens pay for at the step's times.

A step emits one token a request plus, on average, the sum of the path probabilities of the nodes
that it verifies. Since a path probability never grows going down, the most probable nodes of a tree
are always a connected part of it, so a count is all that has to be chosen.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from . import _choice_kernels as kernels

IntArray64 = npt.NDArray[np.int64]
FlagArray = npt.NDArray[np.uint8]


@cache
def compile_kernels() -> None:
    """Compile what the choice runs on; the second call costs nothing."""
    kernels.compile_kernels()


def choose_num_nodes(gains: npt.ArrayLike, num_requests: int, costs: npt.ArrayLike) -> int:
    """Return how many of the largest gains maximise tokens per unit of time.

    Args:
        gains: ``(n,)`` path probability of each node, in any order.
        num_requests: requests in the step, at least 1.
        costs: ``(n + 1,)`` time of a step with that many of them, in any unit.

    Returns:
        A count from 0 to ``n``; the smallest of those that are equally good.

    Raises:
        ValueError: ``costs`` has not one entry more than ``gains``.
    """
    increasing = np.sort(np.asarray(gains, np.float32))
    times = np.ascontiguousarray(costs, np.float64)
    _check_costs(increasing.size, times)
    compile_kernels()
    return int(kernels.best_count(increasing, times, num_requests))


def pooled_choice(probs: npt.ArrayLike, sizes: npt.ArrayLike, costs: npt.ArrayLike) -> IntArray64:
    """Return how many nodes of each request's tree to verify, all requests weighed together.

    The total maximises (requests + sum of the probabilities of the most probable nodes) / time, the
    fewest nodes where several totals are equally good; of equally probable nodes at the border,
    those of earlier requests come first.

    Args:
        probs: ``(num_nodes,)`` path probabilities (as one believes them), one request after
            another; within a request in any order.
        sizes: ``(num_requests,)`` nodes of each request's tree, 0 included.
        costs: ``(num_nodes + 1,)`` time of a step with that many nodes in all, in any unit.

    Returns:
        ``(num_requests,)`` int64; the most probable nodes of each tree, that many, are to be kept.

    Raises:
        ValueError: ``sizes`` does not add up to the probabilities, or ``costs`` has not one entry
            more than them.
    """
    nodes = np.ascontiguousarray(probs, np.float32)
    stops = np.cumsum(sizes, dtype=np.int64)
    times = np.ascontiguousarray(costs, np.float64)
    counts = np.zeros(stops.size, np.int64)
    total = int(stops[-1]) if stops.size else 0
    if total != nodes.size:
        raise ValueError(f"expected sizes that add up to {nodes.size} nodes, got {total}")
    _check_costs(nodes.size, times)
    if nodes.size:
        compile_kernels()
        kernels.pooled_counts(np.sort(nodes), nodes, stops, times, counts)
    return counts


def most_probable_first(probs: npt.ArrayLike, sizes: npt.ArrayLike) -> FlagArray:
    """Return ``(num_requests,)`` uint8: 1 where a request's probabilities never grow.

    Args:
        probs: ``(num_nodes,)`` path probabilities, one request after another.
        sizes: ``(num_requests,)`` nodes of each request's tree.
    """
    stops = np.cumsum(sizes, dtype=np.int64)
    falling = np.empty(stops.size, np.uint8)
    compile_kernels()
    kernels.mark_falling(np.ascontiguousarray(probs, np.float32), stops, falling)
    return falling


def _check_costs(num_gains: int, costs: npt.NDArray[np.float64]) -> None:
    if costs.shape != (num_gains + 1,):
        raise ValueError(
            f"expected costs of 0 to {num_gains} nodes, shape ({num_gains + 1},), "
            f"got shape {costs.shape}"
        )
