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

from .._jit import compile_once, kernel, u
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

TOKEN, PARENT, DEPTH, MEMBERS, ORDER = 0, 1, 2, 3, 4
"""A group of places that read the same token: the token, parent node, depth, first place. The last
column is no part of it: the groups that are not in the tree yet, the most probable first."""
GROUP_FIELDS = 5

SUM, KEY = 0, 1
"""A group's score, the summed weight of its places. The other column is no part of it: the
probabilities of the paths of the groups in order."""
SCORE_FIELDS = 2

MAX_NODES = 1024
"""Most nodes of a tree: the room to work in is for so many."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int, int]:
    """Return where pages, rows, drafts and places begin."""
    return (
        int(arena[u(pool.PAGES_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.ROWS_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.DRAFTS_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.PLACES_AT)]) << pool.LINE_BITS,
    )


@kernel
def _enter(
    arena: IntArray, groups: int, floats: FloatArray, scores: int, head: int, tail: int, group: int,
    path: float,
) -> int:  # fmt: skip
    """Enter a group in the order from ``head`` to ``tail``, behind those as probable as it.

    The last place of the order, at ``tail``, is free. Returns the place that the group got.
    """
    at = tail
    while at > head and floats[u(scores + SCORE_FIELDS * (at - 1) + KEY)] < path:
        floats[u(scores + SCORE_FIELDS * at + KEY)] = floats[
            u(scores + SCORE_FIELDS * (at - 1) + KEY)
        ]
        arena[u(groups + GROUP_FIELDS * at + ORDER)] = arena[
            u(groups + GROUP_FIELDS * (at - 1) + ORDER)
        ]
        at -= 1
    floats[u(scores + SCORE_FIELDS * at + KEY)] = path
    arena[u(groups + GROUP_FIELDS * at + ORDER)] = group
    return at


@kernel
def _recent_class(accepted: int) -> int:
    """Sort an accepted length into five classes."""
    return min(accepted, 1) + (accepted > 1) + (accepted > 4) + (accepted > 15)


@kernel
def grow_tree(
    arena: IntArray,
    floats: FloatArray,
    row: int,
    groups: int,
    max_nodes: int,
    max_depth: int,
    out: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Merge the continuations of a request's places into a tree, the most probable node first.

    All is written out in one loop, because a call that passes arrays costs as much as a place.

    Args:
        arena: the pool; the places are mutated: each reads on with its group. The row keeps
            the draft until the committed tokens come.
        floats: as ``_weights`` lays them out, with the places' weights.
        row: the request's row.
        groups: where in the arena there is room to work in.
        max_nodes: most nodes.
        max_depth: the deepest level.
        out: which row of ``nodes`` and ``probs`` is overwritten.
        nodes: ``(num_rows, 1 + 2 * room)`` int32: the number of nodes, token ids, parents.
        probs: ``(num_rows, room)`` float32: calibrated path probabilities.
    """
    pages, rows, draft, places = _offsets(arena)
    scores = PLACES + int(arena[u(pool.MAX_PLACES)])
    max_nodes = min(max_nodes, MAX_NODES)
    request, draft = rows + row * pool.ROW_FIELDS, draft + row * pool.DRAFT_ROOM
    nodes[u(out), 0] = 0
    if arena[u(pool.FOUND)] == 0:
        return
    page_bits = int(arena[u(pool.PAGE_BITS)])
    mask = (1 << page_bits) - 1
    num_places, parents_at = int(arena[u(pool.FOUND)]), probs.shape[1]
    recent = 5 * _recent_class(int(arena[u(request + pool.ACCEPTED)]))
    recent += _recent_class(int(arena[u(request + pool.ACCEPTED_BEFORE)]))
    arena[u(places + PLACE_FIELDS * (num_places - 1) + CHAIN)] = NONE
    stop, spare, count, depth, head, tail, maps = 0, 0, 0, 0, 0, 0, 0
    node, path, member = NONE, 1.0, 0
    while True:
        # A place that is alone takes over the group that was its own.
        alone = arena[u(places + PLACE_FIELDS * member + CHAIN)] == NONE
        start = end = spare if alone else stop
        longest = 0
        depth_class = min(depth, 1) + (depth > 1) + (depth > 3) + (depth > 7)
        while member != NONE and depth < max_depth:
            place = places + PLACE_FIELDS * member
            following, at = int(arena[u(place + CHAIN)]), int(arena[u(place + AT)])
            if at != NONE and arena[u(HEADER_SIZE + at)] >= 0:
                token, kind = arena[u(HEADER_SIZE + at)], int(arena[u(place + KIND)])
                match = min(int(arena[u(place + MATCH)]) + depth, LENGTHS - 1)
                if kind == PLAIN and match > longest:
                    longest = match
                vote = floats[u(int(arena[u(place + VOTES)]) + match)]
                vote *= floats[u(DEPTHS + kind * DEPTH_CLASSES + depth_class)]
                vote *= floats[u(PLACES + member)]
                group, score = groups + GROUP_FIELDS * start, scores + SCORE_FIELDS * start
                new = groups + GROUP_FIELDS * end
                while group < new and arena[u(group + TOKEN)] != token:
                    group += GROUP_FIELDS
                    score += SCORE_FIELDS
                if group == new:
                    arena[u(group + TOKEN)] = token
                    arena[u(group + PARENT)] = node
                    arena[u(group + DEPTH)] = depth + 1
                    arena[u(place + CHAIN)] = NONE
                    floats[u(score + SUM)] = vote
                    end += 1
                else:
                    arena[u(place + CHAIN)] = arena[u(group + MEMBERS)]
                    floats[u(score + SUM)] += vote
                arena[u(group + MEMBERS)] = member
                fields = pages + (at >> page_bits) * PAGE_FIELDS
                if (at & mask) + 1 < arena[u(fields + pool.USED)]:
                    arena[u(place + AT)] = at + 1
                elif arena[u(fields + pool.NEXT)] != NONE:
                    arena[u(place + AT)] = int(arena[u(fields + pool.NEXT)]) << page_bits
                else:
                    arena[u(place + AT)] = arena[u(place + RESTART)]
            member = following
        stop = max(stop, end)
        total = floats[u(RECENT + recent)] * floats[u(ESCAPE + depth_class * LENGTHS + longest)]
        total *= floats[u(WIDTH + min(end - start, WIDTHS - 1))]
        for group in range(start, end):
            total += floats[u(scores + SCORE_FIELDS * group + SUM)]
        scale = path / total
        for group in range(start, end):
            share = scale * floats[u(scores + SCORE_FIELDS * group + SUM)]
            if tail - head == max_nodes - count:
                if share <= floats[u(scores + SCORE_FIELDS * (tail - 1) + KEY)]:
                    continue
                tail -= 1
            if head > 0 and (tail == head or share > floats[u(scores + SCORE_FIELDS * head + KEY)]):
                head -= 1
                floats[u(scores + SCORE_FIELDS * head + KEY)] = share
                arena[u(groups + GROUP_FIELDS * head + ORDER)] = group
            else:
                _enter(arena, groups, floats, scores, head, tail, group, share)
                tail += 1
        if count == 0:
            draft_class = (longest > 1) + (longest > 3) + (longest > 7) + (longest > 15)
            arena[u(request + pool.DRAFT_CLASS)] = draft_class
            maps = MAPS + draft_class * (KNOTS + 1)
        if head == tail:
            break
        path = floats[u(scores + SCORE_FIELDS * head + KEY)]
        spare = int(arena[u(groups + GROUP_FIELDS * head + ORDER)])
        head += 1
        top = groups + GROUP_FIELDS * spare
        parent, depth = int(arena[u(top + PARENT)]), int(arena[u(top + DEPTH)])
        token, member = arena[u(top + TOKEN)], int(arena[u(top + MEMBERS)])
        node = count
        knot = min(int(path * KNOTS), KNOTS - 1)
        low = floats[u(maps + knot)]
        value = np.float32(low + (path * KNOTS - knot) * (floats[u(maps + knot + 1)] - low))
        # Rounding must not lift a child above its parent.
        probs[u(out), u(node)] = value if parent == NONE else min(value, probs[u(out), u(parent)])
        if node < pool.MAX_DRAFT:
            kept = draft + pool.DRAFT_FIELDS * node
            arena[u(kept)] = token
            packed = (int(path * pool.PROBABILITY_UNIT) << pool.PARENT_BITS) + parent + 1
            arena[u(kept + 1)] = (packed << pool.DEPTH_BITS) + depth
        count += 1
        nodes[u(out), u(count)] = token
        nodes[u(out), u(parents_at + count)] = parent
        if count == max_nodes:
            break
    nodes[u(out), 0] = count
    arena[u(request + pool.DRAFT_SIZE)] = min(count, pool.MAX_DRAFT)


def compile_kernels() -> None:
    """Compile the kernel that others call, for its one signature."""
    ints = "int64, int64, int64, int64, int64"
    compile_once(grow_tree, f"void(int32[::1], float64[::1], {ints}, int32[:,::1], float32[:,::1])")
