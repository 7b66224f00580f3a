"""Kernels that grow the trees of the suffix pool, most probable path first.

Each step down follows links through an automaton of some megabytes, and waits for memory. So the
trees of several requests grow in turn, node by node, and what a node will read is asked for while
the others are worked on. Each has a *lane* of the room to work in: a header, the sources that say
something, the queue, the nodes' depths and the candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, prefetch, u
from . import _vote_kernels as voting
from ._automaton_kernels import (
    BRANCH_AT,
    BRANCH_ROW,
    EDGE_AT,
    EDGE_ROW,
    HEADER,
    LAST,
    NUM_PREFIX,
    PREFIX_ROW,
    ROOT_STATE,
    TAIL,
)
from ._vote_kernels import (
    AT_LENGTH,
    AT_STATE,
    BRANCHES,
    CONTEXT,
    DEPTH,
    EDGES,
    KIND,
    LANE_HEADER,
    MAX_CHILDREN,
    NODE,
    NODES,
    NUM_ROWS,
    PARENT,
    PREFIXES,
    QUEUED,
    RING_ROW,
    RINGS,
    SOURCE_ROW,
    SOURCES,
    STATES,
    TOKEN,
    USED,
    expand,
)

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
Propose = Callable[
    [
        IntArray, LongArray, LongArray, int, float, DoubleArray, LongArray, IntArray, DoubleArray,
        IntArray, FloatArray,
    ],
    None,
]  # fmt: skip

NUM_LANES = 16
MAX_STAGES = 20
"""How far what a node reads is asked for ahead, in links."""
BASE, STATE, MATCHED, CURSOR_ROW = 0, 1, 2, 3
"""Columns of a cursor: the automaton's extent (-1 when absent), the state, the matched length."""
PATH, CUT, LANE_FLOATS = 0, 1, 2
"""A lane's numbers: the probability of the node's path, and the one below which no candidate is of
use; those of the candidates follow."""


def room_for(num_sources: int, max_nodes: int) -> tuple[int, int]:
    """Return how many int32 and float64 all lanes take for trees of ``max_nodes``."""
    num_candidates = (max_nodes + 1) * MAX_CHILDREN
    num_ints = LANE_HEADER + SOURCE_ROW * num_sources + 2 * max_nodes
    num_ints += num_candidates * (STATES + 2 * num_sources)
    return NUM_LANES * num_ints, NUM_LANES * (LANE_FLOATS + num_candidates)


@kernel
def _enqueue(
    work: IntArray, queue: int, queued: int, room: int, floats: DoubleArray, probs: int,
    candidate: int,
) -> int:  # fmt: skip
    """Queue a candidate, in place of the worst when the queue is full; return how many wait.

    Args:
        work: the lanes.
        queue: where the queue is in it: candidates, the best at the end; changed.
        queued: their number.
        room: the most that may wait.
        floats: the lanes' numbers.
        probs: where the candidates' probabilities are in it.
        candidate: the new one, not the worst of a full queue; among equals the older comes first.
    """
    place, prob = queued, floats[u(probs + candidate)]
    while place > 0 and floats[u(probs + int(work[u(queue + place - 1)]))] >= prob:
        place -= 1
    if queued == room:
        for other in range(1, place):
            work[u(queue + other - 1)] = work[u(queue + other)]
        work[u(queue + max(place - 1, 0))] = candidate
        return queued
    for other in range(queued, place, -1):
        work[u(queue + other)] = work[u(queue + other - 1)]
    work[u(queue + place)] = candidate
    return queued + 1


@kernel
def _open_lane(
    arena: IntArray, cursors: LongArray, first: int, stop: int, work: IntArray, lane: int
) -> None:
    """Bring a request's place in each source to its lane; the tree has no node yet.

    Args:
        arena: the automata.
        cursors: flat.
        first: where the request's begin in it.
        stop: behind them.
        work: the lanes.
        lane: where this one begins.
    """
    active, kind = lane + LANE_HEADER, 0
    for at in range(first, stop, CURSOR_ROW):
        base = int(cursors[u(at + BASE)])
        if base >= 0 and cursors[u(at + MATCHED)] > 0:
            work[u(active + BRANCHES)] = base + int(arena[u(base + BRANCH_AT)])
            work[u(active + EDGES)] = base + int(arena[u(base + EDGE_AT)])
            work[u(active + PREFIXES)] = base + HEADER
            work[u(active + NUM_ROWS)] = arena[u(base + NUM_PREFIX)]
            work[u(active + KIND)] = kind
            work[u(active + AT_STATE)] = cursors[u(at + STATE)]
            work[u(active + AT_LENGTH)] = cursors[u(at + MATCHED)]
            active += SOURCE_ROW
        kind = 1
    for field in range(LANE_HEADER):
        work[u(lane + field)] = 0
    work[u(lane + SOURCES)] = (active - lane - LANE_HEADER) // SOURCE_ROW
    work[u(lane + NODE)] = -1


@kernel
def _look_ahead(arena: IntArray, work: IntArray, lane: int) -> None:
    """Ask for the states of a lane's node, from which ``_ask_ahead`` goes on."""
    first = lane + LANE_HEADER
    stop = first + SOURCE_ROW * int(work[u(lane + SOURCES)])
    for source in range(first, stop, SOURCE_ROW):
        state = int(work[u(source + AT_STATE)])
        work[u(source + CONTEXT)] = state if work[u(source + AT_LENGTH)] > 0 else ROOT_STATE
        for ring in range(source + RINGS, source + SOURCE_ROW, RING_ROW):
            work[u(ring)] = -1
        if state >= 0:
            prefetch(arena, u(int(work[u(source + PREFIXES)]) + PREFIX_ROW * state))
        else:
            prefetch(arena, u(int(work[u(source + BRANCHES)]) + BRANCH_ROW * (-1 - state)))


@kernel
def _ask_ahead(arena: IntArray, work: IntArray, lane: int) -> bool:
    """Look at what was asked for last, and ask for what it leads to.

    Each call goes one link further, from a context to the next shorter one, and round the ring of
    each one's edges. Returns whether there was anything to ask for.
    """
    first = lane + LANE_HEADER
    stop = first + SOURCE_ROW * int(work[u(lane + SOURCES)])
    asked = False
    for source in range(first, stop, SOURCE_ROW):
        branches, edges = int(work[u(source + BRANCHES)]), int(work[u(source + EDGES)])
        prefixes, state = int(work[u(source + PREFIXES)]), int(work[u(source + CONTEXT)])
        free = -1
        for ring in range(source + RINGS, source + SOURCE_ROW, RING_ROW):
            edge = int(work[u(ring)])
            if edge < 0:
                if edge == -1 and free < 0:
                    free = ring
                continue
            asked = True
            at = edges + EDGE_ROW * edge
            if work[u(ring + 2)] >= 0:
                latest = prefixes + PREFIX_ROW * int(work[u(ring + 2)])
                link = min(int(arena[u(latest + 1)]), ROOT_STATE)
                prefetch(arena, u(branches + BRANCH_ROW * (-1 - link)))
                work[u(ring + 2)] = -1
            target, sibling = int(arena[u(at + 2)]), int(arena[u(at + 4)])
            if target < 0:
                prefetch(arena, u(branches + BRANCH_ROW * (-1 - target)))
            if sibling == work[u(ring + 1)]:
                work[u(ring)] = -2
            else:
                work[u(ring)] = sibling
                prefetch(arena, u(edges + EDGE_ROW * sibling))
        if state == ROOT_STATE or free < 0:
            continue
        asked = True
        if state >= 0:
            link = int(arena[u(prefixes + PREFIX_ROW * state + 1)])
        else:
            row = branches + BRANCH_ROW * (-1 - state)
            link = int(arena[u(row)])
            tail, latest = int(arena[u(row + TAIL)]), int(arena[u(row + LAST)]) + 1
            if tail >= 0:
                prefetch(arena, u(edges + EDGE_ROW * tail))
                prefetch(arena, u(prefixes + PREFIX_ROW * latest))
                work[u(free)], work[u(free + 1)] = tail, tail
                work[u(free + 2)] = latest
        work[u(source + CONTEXT)] = link
        prefetch(arena, u(branches + BRANCH_ROW * (-1 - link)))
    return asked


@kernel
def _grow(
    arena: IntArray, work: IntArray, floats: DoubleArray, lane: int, numbers: int, max_depth: int,
    trust: DoubleArray, groups: LongArray, num_sources: int, out: int, nodes: IntArray,
    node_probs: FloatArray,
) -> bool:  # fmt: skip
    """Find what may follow a lane's node, and take the most probable candidate into the tree.

    Args:
        arena: the automata.
        work: the lanes.
        floats: their numbers.
        lane: where the lane begins in ``work``.
        numbers: where it does in ``floats``.
        max_depth: the deepest node's depth.
        trust: see ``expand``.
        groups: see ``expand``.
        num_sources: for which the lane has room.
        out: which row of ``nodes`` and ``node_probs`` is the tree's.
        nodes: tokens and parents, overwritten; the number of nodes once it is known.
        node_probs: path probabilities, overwritten.

    Returns:
        Whether the tree may grow further.
    """
    max_nodes = node_probs.shape[1]
    queue = lane + LANE_HEADER + SOURCE_ROW * num_sources
    depths, pool, probs = queue + max_nodes, queue + 2 * max_nodes, numbers + LANE_FLOATS
    columns = STATES + 2 * int(work[u(lane + SOURCES)])
    queued, used = int(work[u(lane + QUEUED)]), int(work[u(lane + USED)])
    num, node = int(work[u(lane + NODES)]), int(work[u(lane + NODE)])
    path, cut = floats[u(numbers + PATH)], floats[u(numbers + CUT)]
    if work[u(lane + DEPTH)] < max_depth and path > cut:
        fresh = expand(
            arena, work, floats, lane, cut / path, trust, groups, pool + used * columns, columns,
            probs + used,
        )  # fmt: skip
        for child in range(used, used + fresh):
            row, kept = pool + child * columns, pool + used * columns
            prob = floats[u(probs + child)] * path
            if prob < cut or work[u(row + TOKEN)] < 0:
                continue
            floats[u(probs + used)] = prob
            if kept < row:
                for column in range(columns):
                    work[u(kept + column)] = work[u(row + column)]
            work[u(kept + PARENT)] = node
            queued = _enqueue(work, queue, queued, max_nodes, floats, probs, used)
            used += 1
            if queued >= max_nodes - num:  # the tree has no room for anything worse
                last = int(work[u(queue + queued - (max_nodes - num))])
                cut = max(cut, floats[u(probs + last)])
    if queued == 0:
        nodes[u(out), 0] = num
        return False
    queued -= 1
    best = int(work[u(queue + queued)])
    row = pool + best * columns
    node = int(work[u(row + PARENT)])
    depth = 1 if node < 0 else int(work[u(depths + node)]) + 1
    nodes[u(out), u(1 + num)] = work[u(row + TOKEN)]
    nodes[u(out), u(1 + max_nodes + num)] = node
    node_probs[u(out), u(num)] = floats[u(probs + best)]
    work[u(depths + num)] = depth
    num += 1
    if num == max_nodes:
        nodes[u(out), 0] = num
        return False
    if queued >= max_nodes - num:
        last = int(work[u(queue + queued - (max_nodes - num))])
        cut = max(cut, floats[u(probs + last)])
    source = lane + LANE_HEADER
    for column in range(STATES, columns, 2):
        work[u(source + AT_STATE)] = work[u(row + column)]
        work[u(source + AT_LENGTH)] = work[u(row + column + 1)]
        source += SOURCE_ROW
    work[u(lane + QUEUED)] = queued
    work[u(lane + USED)] = used
    work[u(lane + NODES)] = num
    work[u(lane + NODE)] = num - 1
    work[u(lane + DEPTH)] = depth
    floats[u(numbers + PATH)], floats[u(numbers + CUT)] = floats[u(probs + best)], cut
    return True


@kernel
def propose(
    arena: IntArray, cursors: LongArray, rows: LongArray, max_depth: int, min_prob: float,
    trust: DoubleArray, groups: LongArray, work: IntArray, floats: DoubleArray, nodes: IntArray,
    node_probs: FloatArray,
) -> None:  # fmt: skip
    """Write one tree a request; a row of -1 gets none.

    Args:
        arena: int32, the automata.
        cursors: ``(num_rows, num_sources, 3)`` int64, where each request stands.
        rows: ``(batch,)`` int64, the requests' rows.
        max_depth: the deepest node's depth.
        min_prob: path probability below which nothing is proposed.
        trust: the trust table, flat; see ``expand``.
        groups: the group of each length.
        work: int32, room to work in; see ``room_for``.
        floats: float64, room to work in.
        nodes: ``(batch, 1 + 2 * max_nodes)`` int32, overwritten (``TreeBatch``).
        node_probs: ``(batch, max_nodes)`` float32, overwritten.
    """
    num_sources, flat = cursors.shape[1], cursors.reshape(cursors.size)
    width = num_sources * CURSOR_ROW
    lane_size, numbers_size = work.size // NUM_LANES, floats.size // NUM_LANES
    running = np.empty(NUM_LANES, np.int64)
    for begin in range(0, rows.size, NUM_LANES):
        num_running = 0
        for index in range(begin, min(begin + NUM_LANES, rows.size)):
            nodes[u(index), 0] = 0
            if rows[u(index)] >= 0:
                running[u(num_running)] = index
                num_running += 1
                prefetch(arena, u(max(int(flat[u(int(rows[u(index)]) * width)]), 0)))
        for rank in range(num_running):
            index = int(running[u(rank)])
            lane, numbers = (index - begin) * lane_size, (index - begin) * numbers_size
            first = int(rows[u(index)]) * width
            _open_lane(arena, flat, first, first + width, work, lane)
            floats[u(numbers + PATH)], floats[u(numbers + CUT)] = 1.0, min_prob
        while num_running > 0:
            if num_running > 1:
                for rank in range(num_running):
                    _look_ahead(arena, work, (int(running[u(rank)]) - begin) * lane_size)
                for _ in range(MAX_STAGES):
                    asked = False
                    for rank in range(num_running):
                        lane = (int(running[u(rank)]) - begin) * lane_size
                        asked = _ask_ahead(arena, work, lane) or asked
                    if not asked:
                        break
            still = 0
            for rank in range(num_running):
                index = int(running[u(rank)])
                lane, numbers = (index - begin) * lane_size, (index - begin) * numbers_size
                if _grow(
                    arena, work, floats, lane, numbers, max_depth, trust, groups, num_sources,
                    index, nodes, node_probs,
                ):  # fmt: skip
                    running[u(still)] = index
                    still += 1
            num_running = still


def compile_kernels() -> Propose:
    """Compile each kernel for its one signature, and return the one that Python calls."""
    voting.compile_kernels()
    ints, floats = "int32[::1]", "float64[::1]"
    compile_once(_enqueue, f"int64({ints}, int64, int64, int64, {floats}, int64, int64)")
    compile_once(_open_lane, f"void({ints}, int64[::1], int64, int64, {ints}, int64)")
    compile_once(_look_ahead, f"void({ints}, {ints}, int64)")
    compile_once(_ask_ahead, f"boolean({ints}, {ints}, int64)")
    compile_once(
        _grow,
        f"boolean({ints}, {ints}, {floats}, int64, int64, int64, {floats}, int64[::1], int64, "
        "int64, int32[:,::1], float32[:,::1])",
        calls=(expand,),
    )
    return compile_once(
        propose,
        f"void({ints}, int64[:,:,::1], int64[::1], int64, float64, {floats}, int64[::1], {ints}, "
        f"{floats}, int32[:,::1], float32[:,::1])",
        calls=(_grow,),
    )
