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
from ._pool_kernels import HEADER_SIZE, NONE, PAGE_FIELDS, PLACE_FIELDS, FloatArray, IntArray
from ._search_kernels import find_places
from ._tree_kernels import grow_tree

SingleArray = npt.NDArray[np.float32]
Draft = Callable[[IntArray, FloatArray, IntArray, int, int, int, IntArray, SingleArray], None]

ASKED_INTS, ASKED_FLOATS = 96, 24
"""How far the room for places, groups and their scores is asked for ahead: most trees need as much,
and what is not used costs time too."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int, int, int]:
    """Return where pages, rows, drafts, places and the room to work in begin."""
    num_levels = int(arena[u(pool.NUM_LEVELS)])
    num_pages, num_rows = int(arena[u(pool.NUM_PAGES)]), int(arena[u(pool.NUM_ROWS)])
    num_slots = num_pages << int(arena[u(pool.PAGE_BITS)])
    pages = HEADER_SIZE + num_slots * (1 + num_levels)
    pages += num_levels << int(arena[u(pool.BUCKET_BITS)])
    rows = pages + num_pages * PAGE_FIELDS
    drafts = rows + num_rows * pool.ROW_FIELDS
    places = drafts + num_rows * pool.DRAFT_ROOM
    room = places + num_rows * int(arena[u(pool.MAX_PLACES)]) * PLACE_FIELDS
    return pages, rows, drafts, places, room


@kernel
def _ask_ahead(arena: IntArray, floats: FloatArray, row: int, rank: int) -> None:
    """Ask for what a request's tree is made with, while the search waits for its chains.

    Args:
        arena: the pool.
        floats: as ``_weights`` lays them out.
        row: the request's row.
        rank: how many requests of the batch came before; the tables are asked for by the first.
    """
    _, _, draft, places, groups = _offsets(arena)
    num_rows, max_places = int(arena[u(pool.NUM_ROWS)]), int(arena[u(pool.MAX_PLACES)])
    draft += row * pool.DRAFT_ROOM
    places += row * max_places * PLACE_FIELDS
    weights, scores = tables.PLACES + row * max_places, tables.PLACES + num_rows * max_places
    for line in range(0, ASKED_INTS, 16):
        prefetch(arena, u(draft + line))
        prefetch(arena, u(places + line))
    for line in range(0, ASKED_FLOATS, 8):
        prefetch(floats, u(weights + line))
    if rank > 0:
        return
    for line in range(0, ASKED_INTS, 16):
        prefetch(arena, u(groups + line))
    for line in range(0, ASKED_FLOATS, 8):
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
def _ask_for_end(arena: IntArray, row: int) -> None:
    """Ask for a request's last token and its links, where its chains begin."""
    num_levels, page_bits = int(arena[u(pool.NUM_LEVELS)]), int(arena[u(pool.PAGE_BITS)])
    pages, rows, _, _, _ = _offsets(arena)
    page = int(arena[u(rows + row * pool.ROW_FIELDS + pool.LAST_PAGE)])
    if page != NONE:
        slot = (page << page_bits) + int(arena[u(pages + page * PAGE_FIELDS + pool.USED)]) - 1
        links = HEADER_SIZE + (int(arena[u(pool.NUM_PAGES)]) << page_bits)
        prefetch(arena, u(HEADER_SIZE + slot))
        prefetch(arena, u(links + slot * num_levels))


@kernel
def draft(
    arena: IntArray,
    floats: FloatArray,
    batch: IntArray,
    max_nodes: int,
    max_depth: int,
    first: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Draft a tree for each request of a batch.

    Args:
        arena: the pool; the rows' places and pointers are overwritten. The rows keep the draft
            until the committed tokens come.
        floats: as ``_weights`` lays them out; the places' weights are overwritten.
        batch: ``(num_requests,)`` int32, the requests' rows, or -1.
        max_nodes: most nodes of a tree.
        max_depth: the deepest level of the trees.
        first: which row of ``nodes`` and ``probs`` the first tree gets.
        nodes: ``(num_rows, 1 + 2 * room)`` int32, overwritten (``TreeBatch``).
        probs: ``(num_rows, room)`` float32, overwritten: path probabilities.
    """
    for i in range(batch.size):
        row = int(batch[u(i)])
        if row == NONE:
            nodes[u(first + i), 0] = 0
            continue
        _ask_ahead(arena, floats, row, i)
        for node in range(0, max_nodes, 16):
            prefetch(nodes, u((first + i) * nodes.shape[1] + node))
            prefetch(nodes, u((first + i) * nodes.shape[1] + probs.shape[1] + node))
            prefetch(probs, u((first + i) * probs.shape[1] + node))
        if i + 1 < batch.size and batch[u(i + 1)] != NONE:
            _ask_for_end(arena, int(batch[u(i + 1)]))
        find_places(arena, row)
        weigh_places(arena, floats, row)
        grow_tree(arena, floats, row, max_nodes, max_depth, first + i, nodes, probs)


def compile_kernels() -> Draft:
    """Compile the kernel that Python calls, for its one signature, and return it."""
    for module in (finder, placer, grower):
        module.compile_kernels()
    arrays, ints = "int32[::1], float64[::1], int32[::1]", "int64, int64, int64"
    return compile_once(
        draft,
        f"void({arrays}, {ints}, int32[:,::1], float32[:,::1])",
        calls=(find_places, weigh_places, grow_tree),
    )
