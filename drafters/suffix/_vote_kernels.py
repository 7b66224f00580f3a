"""Kernels of the suffix pool that say what may follow a place, by what followed its contexts.

The estimate backs off through the contexts of all sources (the request's own text, then the
segments of its namespace), longest first. Each context spends the share ``trust`` of the
probability that is left on the tokens that followed it, by their counts and with a bonus for the
latest, and leaves the rest to the next. ``trust`` depends on the source, on the context's length
and on how its counts look.

Nothing is hashed here: an edge names the state that it leads to, so a candidate carries the states
of its own contexts, and its children need no search.

Source: interpolated back-off as in Kneser and Ney 1995; escapes with contexts of their own as in
Bloom 1998, "Solving the problems of context modeling".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u
from ._automaton_kernels import (
    BRANCH_ROW,
    COUNT,
    DEGREE,
    EDGE_ROW,
    LAST,
    LENGTH,
    PREFIX_ROW,
    PREVIOUS,
    ROOT_STATE,
    TAIL,
)

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
DoubleArray = npt.NDArray[np.float64]
NUM_SHAPES = 8
MAX_CHILDREN = 24
"""Candidates kept below one node."""
MAX_EDGES = 16
"""Continuations looked at in one context, oldest first."""
BONUS = 1.0
"""What the latest continuation counts more than the others, in occurrences."""
FRACTION = 0.125
"""Votes below this part of the least useful probability are not cast."""
TOKEN, PARENT, STATES = 0, 1, 2
"""Columns of a candidate: its token, its parent's node, then a state and a length a source."""
SOURCES, QUEUED, USED, NODES, NODE, DEPTH, LANE_HEADER = 0, 1, 2, 3, 4, 5, 8
"""A lane's header: sources that match, candidates that wait and that were made, nodes of the tree,
the node that grows and its depth."""
BRANCHES, EDGES, PREFIXES, NUM_ROWS, KIND, AT_STATE, AT_LENGTH = 0, 1, 2, 3, 4, 5, 6
"""A lane's source: where the tables of its automaton are, rows of prefix states, 0 for the
request's own text and 1 for earlier ones, and of the node that grows the state and matched length
there. A source without a match says nothing about any node of the tree, and is left out."""
CONTEXT, RINGS, RING_ROW, MAX_RINGS = 7, 8, 3, 5
"""Behind those: the context that is looked at next, and for the longest contexts what was asked for
last of their edges, their youngest edge and the prefix state behind their latest place."""
SOURCE_ROW = RINGS + RING_ROW * MAX_RINGS


@kernel
def shorter(arena: IntArray, branches: int, prefixes: int, state: int) -> tuple[int, int]:
    """Return the state of the next shorter context in more places, and that context's length."""
    if state >= 0:
        link = int(arena[u(prefixes + PREFIX_ROW * state + 1)])
    else:
        link = int(arena[u(branches + BRANCH_ROW * (-1 - state))])
    return link, int(arena[u(branches + BRANCH_ROW * (-1 - link) + LENGTH)])


@kernel
def _settle(arena: IntArray, branches: int, prefixes: int, state: int, length: int) -> int:
    """Return the state that holds the last ``length`` tokens of a context of ``state``."""
    while state != ROOT_STATE:
        link, longest = shorter(arena, branches, prefixes, state)
        if longest < length:
            break
        state = link
    return state


@kernel
def shape_of(count: int, degree: int) -> int:
    """Return how a context's counts look, 0 to 7: how often it occurred, how many ways it went."""
    if degree <= 1:
        return 0 if count < 2 else 1 if count < 3 else 2 if count < 5 else 3
    if 2 * count <= 3 * degree:
        return 4
    return 5 if count <= 3 * degree else 6 if count <= 8 * degree else 7


@kernel
def _ask(
    arena: IntArray, work: IntArray, floats: DoubleArray, source: int, column: int, mass: float,
    least: float, trust: DoubleArray, cell: int, pool: int, columns: int, probs: int, num: int,
) -> tuple[int, float]:  # fmt: skip
    """Spend a part of ``mass`` on what followed one context.

    All is written out in one loop, because a call that passes arrays costs as much as a vote. The
    first context of a source that votes for a token is the longest: the child keeps its state.

    Args:
        arena: the automata.
        work: the lanes; the children so far are voted on.
        floats: their numbers; those of the children are changed.
        source: where the source stands in ``work``.
        column: the one of its state in a candidate.
        mass: the probability left to spend.
        least: smaller votes are not cast.
        trust: the trust table, flat.
        cell: where the entries for such a context begin in it, one a shape.
        pool: where the first child is in ``work``.
        columns: of a candidate.
        probs: where the first child's probability is in ``floats``.
        num: the number of children.

    Returns:
        The number of children and the mass spent.
    """
    branches, edges = int(work[u(source + BRANCHES)]), int(work[u(source + EDGES)])
    prefixes, num_rows = int(work[u(source + PREFIXES)]), int(work[u(source + NUM_ROWS)])
    state, below = int(work[u(source + AT_STATE)]), int(work[u(source + AT_LENGTH)]) + 1
    row, degree, count, latest = 0, 0, 1, state
    if state < 0:
        row = branches + BRANCH_ROW * (-1 - state)
        count, latest = int(arena[u(row + COUNT)]), int(arena[u(row + LAST)])
        if latest + 1 == num_rows:  # the text ends there: nothing followed yet
            count, latest = count - 1, int(arena[u(row + PREVIOUS)])
        degree = int(arena[u(row + DEGREE)])
        if degree == 0 or count <= 0:
            return num, 0.0
    token = -1
    if latest >= 0 and latest + 1 < num_rows:
        token = int(arena[u(prefixes + PREFIX_ROW * (latest + 1))])
    if state >= 0 and token < 0:
        return num, 0.0
    spent = mass * trust[u(cell + shape_of(count, degree))]
    unit = spent / (count if state >= 0 or token < 0 else count + BONUS)
    vote, target, edge = unit * BONUS, latest + 1, 0
    casts = token >= 0 and (state >= 0 or vote >= least)
    if state < 0:
        edge = int(arena[u(row + TAIL)])
        if casts:
            target = _settle(arena, branches, prefixes, target, below)
    for turn in range(min(degree, MAX_EDGES) + 1):
        if turn > 0:
            edge = int(arena[u(edges + EDGE_ROW * edge + 4)])
            token = int(arena[u(edges + EDGE_ROW * edge + 1)])
            target = int(arena[u(edges + EDGE_ROW * edge + 2)])
            vote = unit
            if target < 0:
                vote *= arena[u(branches + BRANCH_ROW * (-1 - target) + COUNT)]
            casts = vote >= least
        if not casts:
            continue
        child, place = pool, probs
        while place < probs + num and work[u(child + TOKEN)] != token:
            child += columns
            place += 1
        if place == probs + num:
            if num == MAX_CHILDREN:
                continue
            work[u(child + TOKEN)] = token
            for length_of in range(STATES + 1, columns, 2):
                work[u(child + length_of)] = 0
            floats[u(place)] = 0.0
            num += 1
        floats[u(place)] += vote
        if work[u(child + column + 1)] == 0:
            work[u(child + column)] = target
            work[u(child + column + 1)] = below
    return num, spent


@kernel
def expand(
    arena: IntArray, work: IntArray, floats: DoubleArray, lane: int, floor: float,
    trust: DoubleArray, groups: LongArray, pool: int, columns: int, probs: int,
) -> int:  # fmt: skip
    """Write what may follow a lane's node, with probabilities given the node; return how many.

    Args:
        arena: the automata.
        work: the lanes; the states of this one's sources are overwritten.
        floats: their numbers.
        lane: where the lane begins.
        floor: contexts are asked while more than this probability is left.
        trust: ``(2, 2, num_groups, NUM_SHAPES)`` float64, flat: own text or earlier ones, first
            context asked or a later one, group of lengths, shape.
        groups: ``(max_context + 1,)`` int64, the group of each length.
        pool: where candidates are overwritten from in ``work``.
        columns: of a candidate.
        probs: where their probabilities are overwritten from in ``floats``.
    """
    first = lane + LANE_HEADER
    stop = first + SOURCE_ROW * int(work[u(lane + SOURCES)])
    for source in range(first, stop, SOURCE_ROW):
        length = min(int(work[u(source + AT_LENGTH)]), groups.size - 1)
        if length > 0:
            branches, prefixes = int(work[u(source + BRANCHES)]), int(work[u(source + PREFIXES)])
            state = int(work[u(source + AT_STATE)])
            work[u(source + AT_STATE)] = _settle(arena, branches, prefixes, state, length)
            work[u(source + AT_LENGTH)] = length
    table_size = trust.size // 4
    num, later, mass = 0, 0, 1.0
    while mass > floor:
        asked, length = first, 0
        for source in range(first, stop, SOURCE_ROW):
            if work[u(source + AT_LENGTH)] > length:
                asked, length = source, int(work[u(source + AT_LENGTH)])
        if length == 0:
            break
        cell = (2 * int(work[u(asked + KIND)]) + later) * table_size
        cell += int(groups[u(length)]) * NUM_SHAPES
        column = STATES + 2 * ((asked - first) // SOURCE_ROW)
        num, spent = _ask(
            arena, work, floats, asked, column, mass, floor * FRACTION, trust, cell, pool, columns,
            probs, num,
        )  # fmt: skip
        if spent > 0.0:
            mass -= spent
            later = 1
        branches, prefixes = int(work[u(asked + BRANCHES)]), int(work[u(asked + PREFIXES)])
        link, longest = shorter(arena, branches, prefixes, int(work[u(asked + AT_STATE)]))
        work[u(asked + AT_STATE)] = link
        work[u(asked + AT_LENGTH)] = longest
    return num


def compile_kernels() -> None:
    """Compile each kernel for its one signature; a process does so once."""
    compile_once(shorter, "UniTuple(int64, 2)(int32[::1], int64, int64, int64)")
    compile_once(_settle, "int64(int32[::1], int64, int64, int64, int64)")
    compile_once(shape_of, "int64(int64, int64)")
    arrays = "int32[::1], int32[::1], float64[::1]"
    compile_once(
        _ask,
        f"Tuple((int64, float64))({arrays}, int64, int64, float64, float64, float64[::1], int64, "
        "int64, int64, int64, int64)",
    )
    compile_once(
        expand,
        f"int64({arrays}, int64, float64, float64[::1], int64[::1], int64, int64, int64)",
    )
