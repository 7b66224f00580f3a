"""Kernels of the n-gram drafter's tree: what followed the places, merged best first.

Each place votes for the token that it reads, with a weight that depends on how it matched and
where it lies; one more weight stands for "none of these". A share of the votes is the probability
of a step, products of steps are those of paths, and the most probable path is extended first. The
weights are fitted (``_ngram_weights``); a calibration maps the paths' probabilities to what was
seen lately (``calibration``), without changing their order.

The arena's layout is that of ``_pool_kernels``, a place's that of ``_search_kernels``.

Sources: an escape weight beside the votes, as in prediction by partial matching (Cleary and Witten,
1984); the shares are a conditional logit over places.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel
from . import _pool_kernels as pool
from ._pool_kernels import HEADER_SIZE, NONE, PAGE_FIELDS, PLACE_FIELDS, FloatArray, IntArray
from ._search_kernels import AT, CHAIN, KIND, MATCH, PLAIN, RESTART, VOTES
from ._weights import (
    DEPTH_CLASSES,
    DEPTHS,
    ESCAPE,
    KNOTS,
    LENGTHS,
    MAPS,
    PLACES,
    RECENT,
    WIDTH,
    WIDTHS,
)

SingleArray = npt.NDArray[np.float32]

TOKEN, PARENT, DEPTH, MEMBERS, HEAP = 0, 1, 2, 3, 4
"""A group of places that read the same token: the token, parent node, depth, first place. The last
column is no part of it: the heap of the groups that are not in the tree yet."""
GROUP_FIELDS = 5

SUM, PATH, NODE_PATH = 0, 1, 2
"""A group's scores: the summed weight of its places, the probability of its path. The last column
is no part of it: the probabilities of the nodes in the tree."""
SCORE_FIELDS = 3

ROOM_NODES = 64
"""Most nodes of a tree that is grown in the room that is kept for it."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int, int, int]:
    """Return where pages, rows, drafts, places and the room to work in begin."""
    num_levels = int(arena[pool.NUM_LEVELS])
    num_pages, num_rows = int(arena[pool.NUM_PAGES]), int(arena[pool.NUM_ROWS])
    num_slots = num_pages << int(arena[pool.PAGE_BITS])
    pages = HEADER_SIZE + num_slots * (1 + num_levels)
    pages += num_levels << int(arena[pool.BUCKET_BITS])
    rows = pages + num_pages * PAGE_FIELDS
    drafts = rows + num_rows * pool.ROW_FIELDS
    places = drafts + num_rows * pool.DRAFT_ROOM
    room = places + num_rows * int(arena[pool.MAX_PLACES]) * PLACE_FIELDS
    return pages, rows, drafts, places, room


@kernel
def _push(groups: IntArray, scores: FloatArray, size: int, start: int, stop: int) -> int:
    """Put the groups from ``start`` to ``stop`` into the heap, and return its new size.

    The most probable stands on top, the older one of two that are equal.
    """
    for group in range(start, stop):
        path = scores[SCORE_FIELDS * group + PATH]
        child = size
        while child > 0:
            above = int(groups[GROUP_FIELDS * ((child - 1) >> 1) + HEAP])
            if scores[SCORE_FIELDS * above + PATH] >= path:
                break
            groups[GROUP_FIELDS * child + HEAP] = above
            child = (child - 1) >> 1
        groups[GROUP_FIELDS * child + HEAP] = group
        size += 1
    return size


@kernel
def _pop(groups: IntArray, scores: FloatArray, size: int) -> int:
    """Take the top off the heap and return it; the caller lowers the size."""
    top = int(groups[HEAP])
    moved = int(groups[GROUP_FIELDS * (size - 1) + HEAP])
    path = scores[SCORE_FIELDS * moved + PATH]
    hole = 0
    child = 1
    while child < size - 1:
        below = int(groups[GROUP_FIELDS * child + HEAP])
        best = scores[SCORE_FIELDS * below + PATH]
        if child + 1 < size - 1:
            other = int(groups[GROUP_FIELDS * (child + 1) + HEAP])
            path_of_other = scores[SCORE_FIELDS * other + PATH]
            if path_of_other > best or (path_of_other == best and other < below):
                child += 1
                below, best = other, path_of_other
        if best < path or (best == path and moved < below):
            break
        groups[GROUP_FIELDS * hole + HEAP] = below
        hole = child
        child = 2 * hole + 1
    groups[GROUP_FIELDS * hole + HEAP] = moved
    return top


@kernel
def _grow(
    arena: IntArray,
    model: FloatArray,
    pages: int,
    recent: float,
    places: int,
    num_places: int,
    weights: int,
    groups: IntArray,
    scores: FloatArray,
    max_depth: int,
    nodes: IntArray,
) -> int:
    """Merge the places' continuations into a tree, the most probable node first.

    All is written out in one loop, because a call that passes arrays costs as much as a place.

    Args:
        arena: the pool; the places are mutated: each reads on with its group.
        model: the tables of weights, and behind them the places' weights.
        pages: where the pages' fields begin.
        recent: the factor of "none of these" that the last drafts give.
        places: where the places begin.
        num_places: how many there are, at least one.
        weights: where their weights begin.
        groups: ``(max_groups * GROUP_FIELDS,)`` int32 to work in.
        scores: ``(max_groups * SCORE_FIELDS,)`` float64 to work in; the nodes' path probabilities
            are left in its last column.
        max_depth: the deepest level.
        nodes: ``(1 + 2 * max_nodes,)`` int32, overwritten: token ids from 1 on, then parents.

    Returns:
        The number of nodes.
    """
    page_bits = int(arena[pool.PAGE_BITS])
    mask = (1 << page_bits) - 1
    max_nodes = nodes.size >> 1
    for place in range(num_places):
        arena[places + PLACE_FIELDS * place + CHAIN] = place + 1
    arena[places + PLACE_FIELDS * (num_places - 1) + CHAIN] = NONE
    size, stop, count, depth = 0, 0, 0, 0
    node, path, member = NONE, 1.0, 0
    while True:
        start = stop
        longest = 0
        depth_class = min(depth, 1) + (depth > 1) + (depth > 3) + (depth > 7)
        while member != NONE and depth < max_depth:
            place = places + PLACE_FIELDS * member
            following = int(arena[place + CHAIN])
            at = int(arena[place + AT])
            if at != NONE and arena[HEADER_SIZE + at] >= 0:
                token = arena[HEADER_SIZE + at]
                group = start
                while group < stop and groups[GROUP_FIELDS * group + TOKEN] != token:
                    group += 1
                if group == stop:
                    groups[GROUP_FIELDS * group + TOKEN] = token
                    groups[GROUP_FIELDS * group + PARENT] = node
                    groups[GROUP_FIELDS * group + DEPTH] = depth + 1
                    groups[GROUP_FIELDS * group + MEMBERS] = NONE
                    scores[SCORE_FIELDS * group + SUM] = 0.0
                    stop += 1
                kind = int(arena[place + KIND])
                match = min(int(arena[place + MATCH]) + depth, LENGTHS - 1)
                if kind == PLAIN and match > longest:
                    longest = match
                vote = model[int(arena[place + VOTES]) + match]
                vote *= model[DEPTHS + kind * DEPTH_CLASSES + depth_class]
                scores[SCORE_FIELDS * group + SUM] += model[weights + member] * vote
                arena[place + CHAIN] = groups[GROUP_FIELDS * group + MEMBERS]
                groups[GROUP_FIELDS * group + MEMBERS] = member
                fields = pages + (at >> page_bits) * PAGE_FIELDS
                if (at & mask) + 1 < arena[fields + pool.USED]:
                    arena[place + AT] = at + 1
                elif arena[fields + pool.NEXT] != NONE:
                    arena[place + AT] = int(arena[fields + pool.NEXT]) << page_bits
                else:
                    arena[place + AT] = arena[place + RESTART]
            member = following
        total = recent * model[ESCAPE + depth_class * LENGTHS + longest]
        total *= model[WIDTH + min(stop - start, WIDTHS - 1)]
        for group in range(start, stop):
            total += scores[SCORE_FIELDS * group + SUM]
        for group in range(start, stop):
            share = scores[SCORE_FIELDS * group + SUM] / total
            scores[SCORE_FIELDS * group + PATH] = path * share
        size = _push(groups, scores, size, start, stop)
        if size == 0 or count == max_nodes:
            return count
        top = _pop(groups, scores, size)
        size -= 1
        node, path = count, scores[SCORE_FIELDS * top + PATH]
        depth = int(groups[GROUP_FIELDS * top + DEPTH])
        member = int(groups[GROUP_FIELDS * top + MEMBERS])
        count += 1
        nodes[count] = groups[GROUP_FIELDS * top + TOKEN]
        nodes[max_nodes + count] = groups[GROUP_FIELDS * top + PARENT]
        scores[SCORE_FIELDS * node + NODE_PATH] = path


@kernel
def _recent_class(accepted: int) -> int:
    """Sort an accepted length into five classes."""
    return min(accepted, 1) + (accepted > 1) + (accepted > 4) + (accepted > 15)


@kernel
def _draft_class(arena: IntArray, places: int, num_places: int) -> int:
    """Sort a draft by its longest plain match into the five classes of the calibration."""
    longest = 0
    for place in range(places, places + num_places * PLACE_FIELDS, PLACE_FIELDS):
        if arena[place + KIND] == PLAIN and arena[place + AT] != NONE:
            longest = max(longest, int(arena[place + MATCH]))
    return (longest > 1) + (longest > 3) + (longest > 7) + (longest > 15)


@kernel
def _keep(
    arena: IntArray, draft: int, floats: FloatArray, maps: int, scores: FloatArray,
    nodes: IntArray, count: int, probs: SingleArray,
) -> None:  # fmt: skip
    """Calibrate a tree's probabilities, and keep its first nodes until the tokens come.

    Args:
        arena: the pool; the request's draft is overwritten.
        draft: where it begins.
        floats: as ``_weights`` lays them out.
        maps: where the calibration's map for the draft's class begins.
        scores: the nodes' path probabilities, as ``_grow`` left them.
        nodes: the tree.
        count: its nodes.
        probs: ``(max_nodes,)`` float32, overwritten.
    """
    max_nodes = probs.size
    for node in range(count):
        path = scores[SCORE_FIELDS * node + NODE_PATH]
        knot = min(int(path * KNOTS), KNOTS - 1)
        low = floats[maps + knot]
        value = np.float32(low + (path * KNOTS - knot) * (floats[maps + knot + 1] - low))
        parent = int(nodes[1 + max_nodes + node])
        # Rounding must not lift a child above its parent.
        probs[node] = value if parent == NONE else min(value, probs[parent])
        if node < pool.MAX_DRAFT:
            kept = draft + pool.DRAFT_FIELDS * node
            arena[kept] = nodes[1 + node]
            arena[kept + 1] = parent
            arena[kept + 2] = int(path * pool.PROBABILITY_UNIT)
            above = 0 if parent == NONE else arena[draft + pool.DRAFT_FIELDS * parent + 3]
            arena[kept + 3] = above + 1


@kernel
def grow(
    arena: IntArray,
    floats: FloatArray,
    batch: IntArray,
    max_depth: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Draft a tree for each request of a batch from the places found.

    Args:
        arena: the pool; the rows keep the draft, until the committed tokens come.
        floats: as ``_weights`` lays them out.
        batch: ``(num_requests,)`` int32, the requests' rows, or -1.
        max_depth: the deepest level of the trees.
        nodes: ``(num_requests, 1 + 2 * max_nodes)`` int32, overwritten (``TreeBatch``).
        probs: ``(num_requests, max_nodes)`` float32, overwritten: path probabilities.
    """
    pages, rows, drafts, all_places, room = _offsets(arena)
    max_places, max_nodes = int(arena[pool.MAX_PLACES]), probs.shape[1]
    groups = arena[room:]
    scores = floats[PLACES + int(arena[pool.NUM_ROWS]) * max_places :]
    if max_nodes > ROOM_NODES:
        groups = np.empty((max_places + max_nodes + 1) * GROUP_FIELDS, np.int32)
        scores = np.empty((max_places + max_nodes + 1) * SCORE_FIELDS, np.float64)
    for i in range(batch.size):
        nodes[i, 0] = 0
        row = int(batch[i])
        if row == NONE:
            continue
        request = rows + row * pool.ROW_FIELDS
        found = int(arena[request + pool.FOUND])
        if found == 0:
            continue
        recent = 5 * _recent_class(int(arena[request + pool.ACCEPTED]))
        recent += _recent_class(int(arena[request + pool.ACCEPTED_BEFORE]))
        places = all_places + row * max_places * PLACE_FIELDS
        draft_class = _draft_class(arena, places, found)
        count = _grow(
            arena, floats, pages, floats[RECENT + recent], places, found,
            PLACES + row * max_places, groups, scores, max_depth, nodes[i],
        )  # fmt: skip
        draft, maps = drafts + row * pool.DRAFT_ROOM, MAPS + draft_class * (KNOTS + 1)
        _keep(arena, draft, floats, maps, scores, nodes[i], count, probs[i])
        nodes[i, 0] = count
        arena[request + pool.DRAFT_CLASS] = draft_class
        arena[request + pool.DRAFT_SIZE] = min(count, pool.MAX_DRAFT)


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(
        grow,
        "void(int32[::1], float64[::1], int32[::1], int64, int32[:,::1], float32[:,::1])",
    )
