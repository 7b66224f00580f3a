"""Kernel of the n-gram drafter that compares a draft with what was committed after it.

From that the calibration learns, and the next draft how far the last ones came.

The arena's layout is that of ``_pool_kernels``.
"""

from __future__ import annotations

from .._jit import compile_once, kernel, u
from ._pool_kernels import (
    ACCEPTED,
    ACCEPTED_BEFORE,
    DRAFT_CLASS,
    DRAFT_FIELDS,
    DRAFT_SIZE,
    NONE,
    PROBABILITY_UNIT,
    FloatArray,
    IntArray,
)
from ._weights import COUNTS, KNOTS


@kernel
def settle(
    arena: IntArray, floats: FloatArray, request: int, draft: int, new: IntArray, begin: int,
    size: int,
) -> None:  # fmt: skip
    """Compare the request's last draft with the tokens that were committed after it.

    Where the draft agrees with all of them, what lies deeper is unknown and not counted.

    Args:
        arena: the pool; accepted lengths are mutated, depths of nodes not accepted negated.
        floats: as ``_weights`` lays them out; of the calibration's counts, how often a knot was
            used and the sum of the outcomes (0 or 1) less the predictions there are mutated.
        request: where the request's fields begin.
        draft: where its draft begins.
        new: int32, among others the tokens.
        begin: where in ``new`` they begin.
        size: how many they are, at least one.
    """
    stop = draft + DRAFT_FIELDS * int(arena[u(request + DRAFT_SIZE)])
    arena[u(request + DRAFT_SIZE)] = 0
    reached = 0
    for node in range(draft, stop, DRAFT_FIELDS):
        parent, depth = int(arena[u(node + 1)]), int(arena[u(node + 3)])
        above = parent == NONE or arena[u(draft + DRAFT_FIELDS * parent + 3)] > 0
        if above and depth <= size and arena[u(node)] == new[u(begin + depth - 1)]:
            reached = max(reached, depth)
        else:
            arena[u(node + 3)] = -depth
    arena[u(request + ACCEPTED_BEFORE)] = arena[u(request + ACCEPTED)]
    arena[u(request + ACCEPTED)] = reached
    first = COUNTS + 2 * (KNOTS + 1) * int(arena[u(request + DRAFT_CLASS)])
    for node in range(draft, stop, DRAFT_FIELDS):
        depth = int(arena[u(node + 3)])
        if reached == size and -depth > size:
            continue
        predicted = arena[u(node + 2)] / PROBABILITY_UNIT
        knot = min(int(predicted * KNOTS), KNOTS - 1)
        part = predicted * KNOTS - knot
        missed = (1.0 if depth > 0 else 0.0) - predicted
        at = first + 2 * knot
        floats[u(at)] += 1.0 - part
        floats[u(at + 1)] += (1.0 - part) * missed
        floats[u(at + 2)] += part
        floats[u(at + 3)] += part * missed


def compile_kernels() -> None:
    """Compile the kernel that others call, for its one signature."""
    arrays = "int32[::1], float64[::1], int64, int64, int32[::1]"
    compile_once(settle, f"void({arrays}, int64, int64)")
