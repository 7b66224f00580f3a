"""Kernels that turn suffix automata into a tree of candidates, most probable path first.

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

from .._jit import compile_once, kernel
from ._automaton_kernels import (
    BRANCH_AT,
    BRANCH_ROW,
    COUNT,
    DEGREE,
    EDGE_AT,
    EDGE_ROW,
    HEADER,
    LAST,
    LENGTH,
    NUM_PREFIX,
    PREFIX_ROW,
    PREVIOUS,
    ROOT_STATE,
    TAIL,
)

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
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
BASE, STATE, MATCHED = 0, 1, 2
"""Columns of a cursor: the automaton's extent (-1 when absent), the state, the matched length."""


@kernel
def _shorter(arena: IntArray, base: int, state: int) -> tuple[int, int]:
    """Return the state of the next shorter context in more places, and that context's length."""
    branches = base + arena[base + BRANCH_AT]
    if state >= 0:
        link = int(arena[base + HEADER + PREFIX_ROW * state + 1])
    else:
        link = int(arena[branches + BRANCH_ROW * (-1 - state)])
    return link, int(arena[branches + BRANCH_ROW * (-1 - link) + LENGTH])


@kernel
def _settle(arena: IntArray, base: int, state: int, length: int) -> int:
    """Return the state that holds the last ``length`` tokens of a context of ``state``."""
    while state != ROOT_STATE:
        link, longest = _shorter(arena, base, state)
        if longest < length:
            break
        state = link
    return state


@kernel
def _token_after(arena: IntArray, base: int, position: int) -> int:
    """Return the token behind a prefix state, or -1 at the end, at a barrier and for -1."""
    if position < 0 or position + 1 >= arena[base + NUM_PREFIX]:
        return -1
    return int(arena[base + HEADER + PREFIX_ROW * (position + 1)])


@kernel
def _shape_of(count: int, degree: int) -> int:
    """Return how a context's counts look, 0 to 7: how often it occurred, how many ways it went."""
    if degree <= 1:
        return 0 if count < 2 else 1 if count < 3 else 2 if count < 5 else 3
    if 2 * count <= 3 * degree:
        return 4
    return 5 if count <= 3 * degree else 6 if count <= 8 * degree else 7


@kernel
def _vote(
    pool: LongArray, probs: DoubleArray, first: int, num: int, token: int, prob: float,
    source: int, state: int, length: int,
) -> int:  # fmt: skip
    """Add ``prob`` to the child that holds ``token``; return the number of children.

    The first context of a source that votes for a token is the longest: the child keeps its state.
    """
    child = first
    while child < first + num and pool[child, TOKEN] != token:
        child += 1
    if child == first + num:
        if num == MAX_CHILDREN:
            return num
        pool[child, TOKEN] = token
        for column in range(STATES + 1, pool.shape[1], 2):
            pool[child, column] = 0
        probs[child] = 0.0
        num += 1
    probs[child] += prob
    if pool[child, STATES + 2 * source + 1] == 0:
        pool[child, STATES + 2 * source] = state
        pool[child, STATES + 2 * source + 1] = length
    return num


@kernel
def _ask(
    arena: IntArray, base: int, source: int, state: int, length: int, mass: float, least: float,
    trust: DoubleArray, cell: int, pool: LongArray, probs: DoubleArray, first: int, num: int,
) -> tuple[int, float]:  # fmt: skip
    """Spend a part of ``mass`` on what followed one context.

    Args:
        arena: int32, the automata.
        base: the extent of the source's automaton.
        source: the source's column.
        state: the context's state there, not the root.
        length: the context's length.
        mass: the probability left to spend.
        least: smaller votes are not cast.
        trust: float64, the trust table, flat.
        cell: where the entries for such a context begin in it, one a shape.
        pool: int64, candidates; the children so far are voted on.
        probs: float64, their probabilities.
        first: the first child.
        num: the number of children.

    Returns:
        The number of children and the mass spent.
    """
    below = length + 1
    if state >= 0:
        token = _token_after(arena, base, state)
        if token < 0:
            return num, 0.0
        spent = mass * trust[cell]
        return _vote(pool, probs, first, num, token, spent, source, state + 1, below), spent
    branches = base + arena[base + BRANCH_AT]
    row = branches + BRANCH_ROW * (-1 - state)
    count, latest = int(arena[row + COUNT]), int(arena[row + LAST])
    if latest + 1 == arena[base + NUM_PREFIX]:  # the text ends there: nothing followed yet
        count, latest = count - 1, int(arena[row + PREVIOUS])
    degree = int(arena[row + DEGREE])
    if degree == 0 or count <= 0:
        return num, 0.0
    spent = mass * trust[cell + _shape_of(count, degree)]
    unit = spent / count
    token = _token_after(arena, base, latest)
    if token >= 0:
        unit = spent / (count + BONUS)
        if unit * BONUS >= least:
            target = _settle(arena, base, latest + 1, below)
            num = _vote(pool, probs, first, num, token, unit * BONUS, source, target, below)
    edges = base + arena[base + EDGE_AT]
    edge = int(arena[row + TAIL])
    for _ in range(min(degree, MAX_EDGES)):
        edge = int(arena[edges + EDGE_ROW * edge + 4])
        at = edges + EDGE_ROW * edge
        target = int(arena[at + 2])
        vote = unit
        if target < 0:
            vote *= arena[branches + BRANCH_ROW * (-1 - target) + COUNT]
        if vote >= least:
            num = _vote(pool, probs, first, num, int(arena[at + 1]), vote, source, target, below)
    return num, spent


@kernel
def _expand(
    arena: IntArray, bases: LongArray, kinds: LongArray, states: LongArray, floor: float,
    trust: DoubleArray, groups: LongArray, pool: LongArray, probs: DoubleArray, first: int,
) -> int:  # fmt: skip
    """Write what may follow one node, with probabilities given the node; return how many.

    Args:
        arena: int32, the automata.
        bases: ``(num_sources,)`` int64, the extents.
        kinds: ``(num_sources,)`` int64, 0 for the request's own text, 1 for earlier texts.
        states: ``(2 * num_sources,)`` int64, the node's state and matched length in each source;
            overwritten.
        floor: contexts are asked while more than this probability is left.
        trust: ``(2, 2, num_groups, NUM_SHAPES)`` float64, flat: own text or earlier ones, first
            context asked or a later one, group of lengths, shape.
        groups: ``(max_context + 1,)`` int64, the group of each length.
        pool: int64, candidates; overwritten from ``first`` on.
        probs: float64, their probabilities; overwritten from ``first`` on.
        first: the first child's place.
    """
    for source in range(bases.size):
        if states[2 * source + 1] > 0:
            length = min(states[2 * source + 1], groups.size - 1)
            states[2 * source] = _settle(arena, bases[source], states[2 * source], length)
            states[2 * source + 1] = length
    table_size = trust.size // 4
    num, later, mass = 0, 0, 1.0
    while mass > floor:
        source, length = 0, 0
        for other in range(bases.size):
            if states[2 * other + 1] > length:
                source, length = other, states[2 * other + 1]
        if length == 0:
            break
        state, kind, base = states[2 * source], kinds[source], bases[source]
        cell = (2 * kind + later) * table_size + groups[length] * NUM_SHAPES
        num, spent = _ask(
            arena, base, source, state, length, mass, floor * FRACTION, trust, cell, pool, probs,
            first, num,
        )  # fmt: skip
        if spent > 0.0:
            mass -= spent
            later = 1
        states[2 * source], states[2 * source + 1] = _shorter(arena, base, state)
    return num


@kernel
def _enqueue(queue: LongArray, queued: int, probs: DoubleArray, candidate: int) -> int:
    """Queue a candidate, in place of the worst when the queue is full; return how many wait.

    Args:
        queue: int64, candidates, the best at the end; changed.
        queued: their number.
        probs: float64, the candidates' probabilities.
        candidate: the new one, not the worst of a full queue; among equals the older comes first.
    """
    place = queued
    while place > 0 and probs[queue[place - 1]] >= probs[candidate]:
        place -= 1
    if queued == queue.size:
        for other in range(1, place):
            queue[other - 1] = queue[other]
        queue[max(place - 1, 0)] = candidate
        return queued
    for other in range(queued, place, -1):
        queue[other] = queue[other - 1]
    queue[place] = candidate
    return queued + 1


@kernel
def _draft(
    arena: IntArray, cursor: LongArray, max_depth: int, min_prob: float, trust: DoubleArray,
    groups: LongArray, pool: LongArray, probs: DoubleArray, nodes: IntArray,
    node_probs: FloatArray,
) -> int:  # fmt: skip
    """Write one request's tree and return its number of nodes.

    Args:
        arena: int32, the automata.
        cursor: ``(num_sources, 3)`` int64, where the request stands in each source.
        max_depth: the deepest node's depth.
        min_prob: path probability below which nothing is proposed.
        trust: see ``_expand``.
        groups: see ``_expand``.
        pool: ``((max_nodes + 1) * MAX_CHILDREN, columns)`` int64, scratch: candidates.
        probs: float64 of the same length, scratch: their path probabilities.
        nodes: ``(2, max_nodes)`` int32, tokens and parents, overwritten.
        node_probs: ``(max_nodes,)`` float32, path probabilities, overwritten.
    """
    max_nodes = nodes.shape[1]
    active = 0  # a source without a match says nothing about any node of the tree
    bases = np.empty(cursor.shape[0], np.int64)
    kinds = np.empty(cursor.shape[0], np.int64)
    states = np.empty(2 * cursor.shape[0], np.int64)
    for source in range(cursor.shape[0]):
        if cursor[source, BASE] >= 0 and cursor[source, MATCHED] > 0:
            bases[active] = cursor[source, BASE]
            kinds[active] = min(source, 1)
            states[2 * active] = cursor[source, STATE]
            states[2 * active + 1] = cursor[source, MATCHED]
            active += 1
    bases, kinds, states = bases[:active], kinds[:active], states[: 2 * active]
    rows = pool[:, : STATES + 2 * active]
    queue = np.empty(max_nodes, np.int64)  # candidates, the best at the end
    depths = np.empty(max_nodes, np.int64)
    queued, used, num = 0, 0, 0
    node, depth, path, cut = -1, 0, 1.0, min_prob
    while True:
        if depth < max_depth and path > cut:
            fresh = _expand(
                arena, bases, kinds, states, cut / path, trust, groups, rows, probs, used
            )
            for child in range(used, used + fresh):
                if probs[child] * path < cut or rows[child, TOKEN] < 0:
                    continue
                probs[used] = probs[child] * path
                for column in range(rows.shape[1]):
                    rows[used, column] = rows[child, column]
                rows[used, PARENT] = node
                queued = _enqueue(queue, queued, probs, used)
                used += 1
                if queued >= max_nodes - num:  # the tree has no room for anything worse
                    cut = max(cut, probs[queue[queued - (max_nodes - num)]])
        if queued == 0:
            return num
        queued -= 1
        best = queue[queued]
        path, node = probs[best], rows[best, PARENT]
        depth = 1 if node < 0 else depths[node] + 1
        nodes[0, num] = rows[best, TOKEN]
        nodes[1, num] = node
        node_probs[num] = path
        depths[num] = depth
        for column in range(2 * active):
            states[column] = rows[best, STATES + column]
        node = num
        num += 1
        if num == max_nodes:
            return num
        if queued >= max_nodes - num:
            cut = max(cut, probs[queue[queued - (max_nodes - num)]])


@kernel
def propose(
    arena: IntArray, cursors: LongArray, rows: LongArray, max_depth: int, min_prob: float,
    trust: DoubleArray, groups: LongArray, pool: LongArray, probs: DoubleArray,
    nodes: IntArray, node_probs: FloatArray,
) -> None:  # fmt: skip
    """Write one tree a request; a row of -1 gets none.

    Args:
        arena: int32, the automata.
        cursors: ``(num_rows, num_sources, 3)`` int64, where each request stands.
        rows: ``(batch,)`` int64, the requests' rows.
        max_depth: see ``_draft``, as for those not named here.
        min_prob: path probability below which nothing is proposed.
        trust: the trust table, not flat.
        groups: the group of each length.
        pool: scratch.
        probs: scratch.
        nodes: ``(batch, 1 + 2 * max_nodes)`` int32, overwritten (``TreeBatch``).
        node_probs: ``(batch, max_nodes)`` float32, overwritten.
    """
    flat = trust.reshape(trust.size)
    for index in range(rows.size):
        nodes[index, 0] = 0
        if rows[index] >= 0:
            tree = nodes[index, 1:].reshape((2, node_probs.shape[1]))
            nodes[index, 0] = _draft(
                arena, cursors[rows[index]], max_depth, min_prob, flat, groups, pool, probs,
                tree, node_probs[index],
            )  # fmt: skip


def compile_kernels() -> None:
    """Compile each kernel for its one signature; a process does so once."""
    compile_once(_shorter, "UniTuple(int64, 2)(int32[::1], int64, int64)")
    compile_once(_settle, "int64(int32[::1], int64, int64, int64)")
    compile_once(_token_after, "int64(int32[::1], int64, int64)")
    compile_once(_shape_of, "int64(int64, int64)")
    compile_once(
        _vote,
        "int64(int64[:,:], float64[::1], int64, int64, int64, float64, int64, int64, int64)",
    )
    compile_once(
        _ask,
        "Tuple((int64, float64))(int32[::1], int64, int64, int64, int64, float64, "
        "float64, float64[::1], int64, int64[:,:], float64[::1], int64, int64)",
    )
    compile_once(
        _expand,
        "int64(int32[::1], int64[::1], int64[::1], int64[::1], float64, float64[::1], "
        "int64[::1], int64[:,:], float64[::1], int64)",
    )
    compile_once(_enqueue, "int64(int64[::1], int64, float64[::1], int64)")
    compile_once(
        _draft,
        "int64(int32[::1], int64[:,::1], int64, float64, float64[::1], int64[::1], "
        "int64[:,::1], float64[::1], int32[:,::1], float32[::1])",
    )
    compile_once(
        propose,
        "void(int32[::1], int64[:,:,::1], int64[::1], int64, float64, float64[:,:,:,::1], "
        "int64[::1], int64[:,::1], float64[::1], int32[:,::1], float32[:,::1])",
    )
