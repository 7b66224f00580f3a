"""Kernel of the n-gram drafter that compares a draft with what was committed after it.

From that the calibration learns, and the next draft how far the last ones came.

The arena's layout is that of ``_pool_kernels``.
"""

from __future__ import annotations

from .._jit import compile_once, kernel, u
from ._pool_kernels import (
    ACCEPTED,
    ACCEPTED_BEFORE,
    DEPTH_BITS,
    DRAFT_CLASS,
    DRAFT_FIELDS,
    DRAFT_SIZE,
    NONE,
    PARENT_BITS,
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
        arena: the pool; accepted lengths are mutated.
        floats: as ``_weights`` lays them out; of the calibration's counts, how often a knot was
            used and the sum of the outcomes (0 or 1) less the predictions there are mutated.
        request: where the request's fields begin.
        draft: where its draft begins.
        new: int32, among others the tokens.
        begin: where in ``new`` they begin.
        size: how many they are, at least one.
    """
    num_nodes = int(arena[u(request + DRAFT_SIZE)])
    arena[u(request + DRAFT_SIZE)] = 0
    reached = accepted = 0  # of the second number, bit by bit, the nodes
    for node in range(num_nodes):
        fields = int(arena[u(draft + DRAFT_FIELDS * node + 1)])
        depth = fields & (1 << DEPTH_BITS) - 1
        parent = (fields >> DEPTH_BITS & (1 << PARENT_BITS) - 1) - 1
        if depth > size or (parent != NONE and not accepted >> parent & 1):
            continue
        if arena[u(draft + DRAFT_FIELDS * node)] == new[u(begin + depth - 1)]:
            accepted |= 1 << node
            reached = max(reached, depth)
    arena[u(request + ACCEPTED_BEFORE)] = arena[u(request + ACCEPTED)]
    arena[u(request + ACCEPTED)] = reached
    first = COUNTS + 2 * (KNOTS + 1) * int(arena[u(request + DRAFT_CLASS)])
    for node in range(num_nodes):
        fields = int(arena[u(draft + DRAFT_FIELDS * node + 1)])
        if reached == size and fields & (1 << DEPTH_BITS) - 1 > size:
            continue
        predicted = (fields >> DEPTH_BITS + PARENT_BITS) / PROBABILITY_UNIT
        knot = min(int(predicted * KNOTS), KNOTS - 1)
        part = predicted * KNOTS - knot
        missed = (accepted >> node & 1) - predicted
        at = first + 2 * knot
        floats[u(at)] += 1.0 - part
        floats[u(at + 1)] += (1.0 - part) * missed
        floats[u(at + 2)] += part
        floats[u(at + 3)] += part * missed


def compile_kernels() -> None:
    """Compile the kernel that others call, for its one signature."""
    arrays = "int32[::1], float64[::1], int64, int64, int32[::1]"
    compile_once(settle, f"void({arrays}, int64, int64)")
