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

_ALIKE = 0.75  # the belief that the rows of a batch end at the same length


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


def padded_choice(
    gains: npt.ArrayLike,
    costs: npt.ArrayLike,
    num_emitted: npt.ArrayLike | None = None,
    row_costs: npt.ArrayLike | None = None,
) -> int:
    """Return how many nodes to verify of each row, where a batch is padded to its widest one.

    Without ``num_emitted`` the tokens of all rows count alike. In a batch that only shrinks, a row
    that runs ahead saves no more than what it costs beside the others; the last one holds up all.
    Were all rows to end at the same length, a step would save

        sum over j of (row_costs[j] - row_costs[j - 1]) * growth of the j-th least row,

    in plain steps of all rows. As rows may also end by themselves, and then nobody knows which is
    the last, that counts for three quarters, and the tokens of all rows alike for one.

    Args:
        gains: ``(num_rows, n + 1)`` expected accepted tokens of each row with 0 to n of its nodes.
        costs: ``(n + 1,)`` time of a step with that many nodes a row, in any unit.
        num_emitted: ``(num_rows,)`` tokens that each row has emitted before.
        row_costs: ``(num_rows,)`` time of a plain step of 1 to all rows, in any unit; alike for
            any number of rows when absent.

    Returns:
        A count from 0 to ``n``; the smallest of those that are equally good.
    """
    step = 1 + np.asarray(gains, np.float64)  # (num_rows, n + 1), the tokens emitted
    value = step.mean(0)
    if num_emitted is not None:
        emitted = np.asarray(num_emitted, np.float64)
        times = np.ones(emitted.size) if row_costs is None else np.asarray(row_costs, np.float64)
        shares = np.diff(times, prepend=0.0) / times[-1]
        grown = np.sort(emitted[:, None] + step, axis=0) - np.sort(emitted)[:, None]
        value = _ALIKE * (shares @ grown) + (1 - _ALIKE) * value
    return int(np.argmax(value / np.asarray(costs, np.float64)))


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
