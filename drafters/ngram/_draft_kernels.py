"""The kernel of a step: places are found and weighed, and a tree is grown, request by request.

It calls kernels of other files, so that a step is one call from Python: a call costs as much as a
search. Numba's cache does not see changes in other files; ``compile_once`` looks after that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, prefetch, u
from . import _place_kernels as placer
from . import _pool_kernels as pool
from . import _search_kernels as finder
from . import _tree_kernels as grower
from . import _weights as tables
from ._place_kernels import weigh_places
from ._pool_kernels import NONE, FloatArray, IntArray, floats_of
from ._search_kernels import ask_for_matches, follow_chains, keep_places
from ._tree_kernels import grow_tree

SingleArray = npt.NDArray[np.float32]
Draft = Callable[[IntArray, FloatArray, IntArray, int, int, IntArray, SingleArray], None]
DraftAlone = Callable[[IntArray, int, int, int, int, IntArray], None]

TREES_ALONE = 128
"""Trees in the room of requests that are asked for alone."""

ASKED_PLACES, ASKED_ROOM, ASKED_FLOATS = 96, 192, 24
"""How far the room for places, groups and their scores is asked for ahead: most trees need as much,
and what is not used costs time too."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int]:
    """Return where drafts, places and the room to work in begin."""
    return (
        int(arena[u(pool.DRAFTS_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.PLACES_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.ROOM_AT)]) << pool.LINE_BITS,
    )


@kernel
def _ask_ahead(arena: IntArray, floats: FloatArray, row: int, rank: int) -> None:
    """Ask for what a request's tree is made with, while the search waits for its chains.

    Args:
        arena: the pool.
        floats: as ``_weights`` lays them out.
        row: the request's row.
        rank: how many requests of the batch came before; the tables are asked for by the first.
    """
    draft, places, room = _offsets(arena)
    draft += row * pool.DRAFT_ROOM
    for line in range(0, pool.ASKED_DRAFT, 16):
        prefetch(arena, u(draft + line))
    if rank > 0:
        return
    scores = tables.PLACES + int(arena[u(pool.MAX_PLACES)])
    for line in range(0, ASKED_PLACES, 16):
        prefetch(arena, u(places + line))
    for line in range(0, ASKED_ROOM, 16):
        prefetch(arena, u(room + finder.SEARCHES + line))
    prefetch(arena, u(room))
    for line in range(0, ASKED_FLOATS, 8):
        prefetch(floats, u(tables.PLACES + line))
        prefetch(floats, u(scores + line))
    for near in range(tables.NEARS):
        prefetch(floats, u(tables.VOTE + near * tables.LENGTHS))
    for first in range(tables.RANK, tables.ESCAPE, 8):
        prefetch(floats, u(first))
    for depth in range(tables.DEPTH_CLASSES):
        prefetch(floats, u(tables.ESCAPE + depth * tables.LENGTHS))
    for first in range(tables.WIDTH, tables.NUM_WEIGHTS, 8):
        prefetch(floats, u(first))


@kernel
def _ask_for_tree(out: int, max_nodes: int, nodes: IntArray, probs: SingleArray) -> None:
    """Ask for the row that a tree is written to."""
    for node in range(0, max_nodes, 16):
        prefetch(nodes, u(out * nodes.shape[1] + node))
        prefetch(nodes, u(out * nodes.shape[1] + probs.shape[1] + node))
        prefetch(probs, u(out * probs.shape[1] + node))


@kernel
def draft(
    arena: IntArray,
    floats: FloatArray,
    asked_rows: IntArray,
    max_nodes: int,
    max_depth: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Draft a tree for each request of a batch.

    Args:
        arena: the pool, mutated. The rows keep the draft until the committed tokens come.
        floats: as ``_weights`` lays them out; the places' weights are overwritten.
        asked_rows: ``(num_asked,)`` int32, the requests' rows or -1.
        max_nodes: most nodes of a tree.
        max_depth: the deepest level of the trees.
        nodes: ``(num_rows, 1 + 2 * room)`` int32, overwritten (``TreeBatch``).
        probs: ``(num_rows, room)`` float32, overwritten: path probabilities.
    """
    room, num_asked = _offsets(arena)[2], asked_rows.size
    for start in range(0, num_asked, finder.GROUP):
        num_requests = min(finder.GROUP, num_asked - start)
        for index in range(num_requests):
            arena[u(room + index)] = asked_rows[u(start + index)]
        if start == 0 and asked_rows[0] != NONE:
            _ask_ahead(arena, floats, int(asked_rows[0]), 0)
        follow_chains(arena, num_requests)
        # Backwards: a tree is grown in the room of its search, and of those behind, which are over.
        for index in range(num_requests - 1, -1, -1):
            row, out = int(arena[u(room + index)]), start + index
            if row == NONE:
                nodes[u(out), 0] = 0
                continue
            if out > 0:
                _ask_ahead(arena, floats, row, out)
            _ask_for_tree(out, max_nodes, nodes, probs)
            if index > 0 and arena[u(room + index - 1)] != NONE:
                ask_for_matches(arena, index - 1)
            groups = keep_places(arena, index)
            weigh_places(arena, floats, row)
            grow_tree(arena, floats, row, groups, max_nodes, max_depth, out, nodes, probs)


@kernel
def draft_alone(
    arena: IntArray, row: int, max_nodes: int, max_depth: int, out: int, cells: IntArray
) -> None:
    """Draft a tree for one request, as ``draft`` does: fewer arrays come from Python.

    Args:
        arena: the pool, mutated.
        row: the request's row.
        max_nodes: most nodes of the tree.
        max_depth: its deepest level.
        out: which of the trees in ``cells`` is overwritten.
        cells: int32, room for ``TREES_ALONE`` trees (``TreeBatch.within``).
    """
    floats = floats_of(arena)
    max_room = (cells.size // TREES_ALONE - 1) // 3
    num_ints = TREES_ALONE * (1 + 2 * max_room)
    nodes = cells[:num_ints].reshape((TREES_ALONE, 1 + 2 * max_room))
    probs = cells[num_ints:].view(np.float32).reshape((TREES_ALONE, max_room))
    arena[u(_offsets(arena)[2])] = row
    _ask_ahead(arena, floats, row, 0)
    follow_chains(arena, 1)
    _ask_for_tree(out, max_nodes, nodes, probs)
    groups = keep_places(arena, 0)
    weigh_places(arena, floats, row)
    grow_tree(arena, floats, row, groups, max_nodes, max_depth, out, nodes, probs)


def compile_kernels() -> tuple[Draft, DraftAlone]:
    """Compile the kernels that Python calls, for their one signature each, and return them."""
    for module in (finder, placer, grower):
        module.compile_kernels()
    arrays, trees = "int32[::1], float64[::1], int32[::1]", "int32[:,::1], float32[:,::1]"
    callees = (follow_chains, keep_places, weigh_places, grow_tree)
    return (
        compile_once(draft, f"void({arrays}, int64, int64, {trees})", calls=callees),
        compile_once(
            draft_alone, "void(int32[::1], int64, int64, int64, int64, int32[::1])", calls=callees
        ),
    )
