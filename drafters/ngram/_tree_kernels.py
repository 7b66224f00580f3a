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

from collections.abc import Callable

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
Grow = Callable[[IntArray, FloatArray, IntArray, int, int, int, IntArray, SingleArray], None]

TOKEN, PARENT, DEPTH, MEMBERS, ORDER = 0, 1, 2, 3, 4
"""A group of places that read the same token: the token, parent node, depth, first place. The last
column is no part of it: the groups that are not in the tree yet, the most probable first."""
GROUP_FIELDS = 5

SUM, PATH, KEY = 0, 1, 2
"""A group's scores: the summed weight of its places, the probability of its path. The last column
is no part of it: the probabilities of the groups in order."""
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
def _enter(
    groups: IntArray, scores: FloatArray, head: int, tail: int, group: int, path: float
) -> int:
    """Enter a group in the order from ``head`` to ``tail``, behind those as probable as it.

    The last place of the order, at ``tail``, is free. Returns the place that the group got.
    """
    at = tail
    while at > head and scores[SCORE_FIELDS * (at - 1) + KEY] < path:
        scores[SCORE_FIELDS * at + KEY] = scores[SCORE_FIELDS * (at - 1) + KEY]
        groups[GROUP_FIELDS * at + ORDER] = groups[GROUP_FIELDS * (at - 1) + ORDER]
        at -= 1
    scores[SCORE_FIELDS * at + KEY] = path
    groups[GROUP_FIELDS * at + ORDER] = group
    return at


@kernel
def _grow(
    arena: IntArray,
    floats: FloatArray,
    pages: int,
    request: int,
    draft: int,
    places: int,
    weights: int,
    groups: IntArray,
    scores: FloatArray,
    max_nodes: int,
    max_depth: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Merge the places' continuations into a tree, the most probable node first.

    All is written out in one loop, because a call that passes arrays costs as much as a place.

    Args:
        arena: the pool; the places are mutated: each reads on with its group. The request's draft
            is overwritten with the tree's first nodes.
        floats: as ``_weights`` lays them out, with the places' weights.
        pages: where the pages' fields begin.
        request: where the request's fields begin; it has at least one place.
        draft: where its draft begins.
        places: where its places begin.
        weights: where their weights begin.
        groups: ``(max_groups * GROUP_FIELDS,)`` int32 to work in.
        scores: ``(max_groups * SCORE_FIELDS,)`` float64 to work in.
        max_nodes: most nodes.
        max_depth: the deepest level.
        nodes: ``(1 + 2 * room,)`` int32, overwritten: their number, token ids, parents.
        probs: ``(room,)`` float32, overwritten: calibrated path probabilities.
    """
    page_bits = int(arena[pool.PAGE_BITS])
    mask = (1 << page_bits) - 1
    num_places, parents_at = int(arena[request + pool.FOUND]), probs.size
    recent = 5 * _recent_class(int(arena[request + pool.ACCEPTED]))
    recent += _recent_class(int(arena[request + pool.ACCEPTED_BEFORE]))
    for place in range(num_places):
        arena[places + PLACE_FIELDS * place + CHAIN] = place + 1
    arena[places + PLACE_FIELDS * (num_places - 1) + CHAIN] = NONE
    stop, count, depth, head, tail, maps = 0, 0, 0, 0, 0, 0
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
                vote = floats[int(arena[place + VOTES]) + match]
                vote *= floats[DEPTHS + kind * DEPTH_CLASSES + depth_class]
                scores[SCORE_FIELDS * group + SUM] += floats[weights + member] * vote
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
        total = floats[RECENT + recent] * floats[ESCAPE + depth_class * LENGTHS + longest]
        total *= floats[WIDTH + min(stop - start, WIDTHS - 1)]
        for group in range(start, stop):
            total += scores[SCORE_FIELDS * group + SUM]
        for group in range(start, stop):
            share = path * (scores[SCORE_FIELDS * group + SUM] / total)
            if tail - head == max_nodes - count:
                if share <= scores[SCORE_FIELDS * (tail - 1) + KEY]:
                    continue
                tail -= 1
            if head > 0 and (tail == head or share > scores[SCORE_FIELDS * head + KEY]):
                head -= 1
                scores[SCORE_FIELDS * head + KEY] = share
                groups[GROUP_FIELDS * head + ORDER] = group
            else:
                _enter(groups, scores, head, tail, group, share)
                tail += 1
        if count == 0:
            draft_class = (longest > 1) + (longest > 3) + (longest > 7) + (longest > 15)
            arena[request + pool.DRAFT_CLASS] = draft_class
            maps = MAPS + draft_class * (KNOTS + 1)
        if head == tail:
            break
        path = scores[SCORE_FIELDS * head + KEY]
        top = GROUP_FIELDS * int(groups[GROUP_FIELDS * head + ORDER])
        head += 1
        parent, depth = int(groups[top + PARENT]), int(groups[top + DEPTH])
        token = groups[top + TOKEN]
        member = int(groups[top + MEMBERS])
        node = count
        knot = min(int(path * KNOTS), KNOTS - 1)
        low = floats[maps + knot]
        value = np.float32(low + (path * KNOTS - knot) * (floats[maps + knot + 1] - low))
        # Rounding must not lift a child above its parent.
        probs[node] = value if parent == NONE else min(value, probs[parent])
        if node < pool.MAX_DRAFT:
            kept = draft + pool.DRAFT_FIELDS * node
            arena[kept] = token
            arena[kept + 1] = parent
            arena[kept + 2] = int(path * pool.PROBABILITY_UNIT)
            arena[kept + 3] = depth
        count += 1
        nodes[count] = token
        nodes[parents_at + count] = parent
        if count == max_nodes:
            break
    nodes[0] = count
    arena[request + pool.DRAFT_SIZE] = min(count, pool.MAX_DRAFT)


@kernel
def _recent_class(accepted: int) -> int:
    """Sort an accepted length into five classes."""
    return min(accepted, 1) + (accepted > 1) + (accepted > 4) + (accepted > 15)


@kernel
def grow(
    arena: IntArray,
    floats: FloatArray,
    batch: IntArray,
    max_nodes: int,
    max_depth: int,
    first: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Draft a tree for each request of a batch from the places found.

    Args:
        arena: the pool; the rows keep the draft, until the committed tokens come.
        floats: as ``_weights`` lays them out.
        batch: ``(num_requests,)`` int32, the requests' rows, or -1.
        max_nodes: most nodes of a tree.
        max_depth: the deepest level of the trees.
        first: which row of ``nodes`` and ``probs`` the first tree gets.
        nodes: ``(num_rows, 1 + 2 * room)`` int32, overwritten (``TreeBatch``).
        probs: ``(num_rows, room)`` float32, overwritten: path probabilities.
    """
    pages, rows, drafts, all_places, room = _offsets(arena)
    max_places = int(arena[pool.MAX_PLACES])
    groups = arena[room:]
    scores = floats[PLACES + int(arena[pool.NUM_ROWS]) * max_places :]
    if max_nodes > ROOM_NODES:
        groups = np.empty((max_places + max_nodes + 1) * GROUP_FIELDS, np.int32)
        scores = np.empty((max_places + max_nodes + 1) * SCORE_FIELDS, np.float64)
    for i in range(batch.size):
        nodes[first + i, 0] = 0
        row = int(batch[i])
        if row == NONE or arena[rows + row * pool.ROW_FIELDS + pool.FOUND] == 0:
            continue
        _grow(
            arena, floats, pages, rows + row * pool.ROW_FIELDS, drafts + row * pool.DRAFT_ROOM,
            all_places + row * max_places * PLACE_FIELDS, PLACES + row * max_places,
            groups, scores, max_nodes, max_depth, nodes[first + i], probs[first + i],
        )  # fmt: skip


def compile_kernels() -> Grow:
    """Compile the kernel that Python calls, for its one signature, and return it."""
    ints = "int64, int64, int64"
    arrays = "int32[::1], float64[::1], int32[::1]"
    return compile_once(grow, f"void({arrays}, {ints}, int32[:,::1], float32[:,::1])")
