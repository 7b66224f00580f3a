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
from ._pool_kernels import (
    ACCEPTED,
    ACCEPTED_BEFORE,
    BUCKET_BITS,
    DRAFT_CLASS,
    DRAFT_FIELDS,
    DRAFT_SIZE,
    HEADER_SIZE,
    KNOTS,
    MAX_DRAFT,
    NEXT,
    NONE,
    NUM_LEVELS,
    NUM_PAGES,
    NUM_ROWS,
    PAGE_BITS,
    PAGE_FIELDS,
    PLACE_FIELDS,
    PROBABILITY_UNIT,
    ROW_FIELDS,
    USED,
    FloatArray,
    IntArray,
    LongArray,
)
from ._search_kernels import (
    AT,
    CHAIN,
    DRAFTED,
    FOUND,
    KIND,
    MATCH,
    PLAIN,
    RESTART,
    ROW,
    VOTES,
)
from ._weights import (
    DEPTH_CLASSES,
    DEPTHS,
    ESCAPE,
    LENGTHS,
    NUM_WEIGHTS,
    RECENT,
    WIDTH,
    WIDTHS,
)

NUM_CLASSES = 5
"""Classes of drafts in the calibration, by the longest match."""

SingleArray = npt.NDArray[np.float32]
Views = tuple[IntArray, IntArray, IntArray, IntArray, IntArray]

TOKEN, PARENT, DEPTH, MEMBERS, HEAP = 0, 1, 2, 3, 4
"""A group of places that read the same token: the token, parent node, depth, first place. The last
column is no part of it: the heap of the groups that are not in the tree yet."""
GROUP_FIELDS = 5

SUM, PATH, NODE_PATH = 0, 1, 2
"""A group's scores: the summed weight of its places, the probability of its path. The last column
is no part of it: the probabilities of the nodes in the tree."""
SCORE_FIELDS = 3


@kernel
def _views(arena: IntArray) -> Views:
    """Cut the arena into tokens, pages, rows, drafts and places."""
    num_pages = np.int64(arena[NUM_PAGES])
    num_levels = np.int64(arena[NUM_LEVELS])
    num_rows = np.int64(arena[NUM_ROWS])
    num_slots = num_pages << int(arena[PAGE_BITS])
    a = HEADER_SIZE + num_slots
    c = a + num_slots * num_levels + (num_levels << int(arena[BUCKET_BITS]))
    d = c + num_pages * PAGE_FIELDS
    e = d + num_rows * ROW_FIELDS
    f = e + num_rows * MAX_DRAFT * DRAFT_FIELDS
    return (
        arena[HEADER_SIZE:a],
        arena[c:d].reshape((num_pages, PAGE_FIELDS)),
        arena[d:e].reshape((num_rows, ROW_FIELDS)),
        arena[e:f].reshape((num_rows, MAX_DRAFT * DRAFT_FIELDS)),
        arena[f:].reshape((num_rows, -1, PLACE_FIELDS)),
    )


@kernel
def _after(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token after ``slot`` in its request, or -1."""
    page = slot >> page_bits
    if (slot & ((1 << page_bits) - 1)) + 1 < pages[page, USED]:
        return slot + 1
    page = int(pages[page, NEXT])
    return NONE if page == NONE else page << page_bits


@kernel
def _push(groups: LongArray, scores: FloatArray, size: int, start: int, stop: int) -> int:
    """Put the groups from ``start`` to ``stop`` into the heap, and return its new size.

    The most probable stands on top, the older one of two that are equal.
    """
    for group in range(start, stop):
        path = scores[group, PATH]
        child = size
        while child > 0:
            above = int(groups[(child - 1) >> 1, HEAP])
            if scores[above, PATH] >= path:
                break
            groups[child, HEAP] = above
            child = (child - 1) >> 1
        groups[child, HEAP] = group
        size += 1
    return size


@kernel
def _pop(groups: LongArray, scores: FloatArray, size: int) -> int:
    """Take the top off the heap and return it; the caller lowers the size."""
    top = int(groups[0, HEAP])
    moved = int(groups[size - 1, HEAP])
    path = scores[moved, PATH]
    hole = 0
    child = 1
    while child < size - 1:
        below = int(groups[child, HEAP])
        if child + 1 < size - 1:
            other = int(groups[child + 1, HEAP])
            lead = scores[other, PATH] - scores[below, PATH]
            if lead > 0 or (lead == 0 and other < below):
                child += 1
                below = other
        lead = scores[below, PATH] - path
        if lead < 0 or (lead == 0 and moved < below):
            break
        groups[hole, HEAP] = below
        hole = child
        child = 2 * hole + 1
    groups[hole, HEAP] = moved
    return top


@kernel
def _grow(
    views: Views,
    page_bits: int,
    model: FloatArray,
    recent: float,
    places: IntArray,
    weights: FloatArray,
    groups: LongArray,
    scores: FloatArray,
    max_depth: int,
    nodes: IntArray,
) -> int:
    """Merge the places' continuations into a tree, the most probable node first.

    All is written out in one loop, because a call that passes arrays costs as much as a place.

    Args:
        views: the pool.
        page_bits: the page size's logarithm.
        model: the tables of weights.
        recent: the factor of "none of these" that the last drafts give.
        places: ``(num_places, PLACE_FIELDS)`` int32, mutated: each reads on with its group.
        weights: ``(num_places,)`` float64.
        groups: ``(max_groups, GROUP_FIELDS)`` int64 to work in.
        scores: ``(max_groups, SCORE_FIELDS)`` float64 to work in; the nodes' path probabilities
            are left in its last column.
        max_depth: the deepest level.
        nodes: ``(2, max_nodes)`` int32, overwritten: token ids and parents.

    Returns:
        The number of nodes.
    """
    tokens, pages, _, _, _ = views
    mask = (1 << page_bits) - 1
    for place in range(weights.size):
        places[place, CHAIN] = place + 1 if place + 1 < weights.size else NONE
    size, stop, count, depth = 0, 0, 0, 0
    node, path, place = NONE, 1.0, 0
    while True:
        start = stop
        longest = 0
        depth_class = min(depth, 1) + (depth > 1) + (depth > 3) + (depth > 7)
        while place != NONE and depth < max_depth:
            following = int(places[place, CHAIN])
            at = int(places[place, AT])
            if at != NONE and tokens[at] >= 0:
                token = int(tokens[at])
                group = start
                while group < stop and groups[group, TOKEN] != token:
                    group += 1
                if group == stop:
                    groups[group, TOKEN] = token
                    groups[group, PARENT] = node
                    groups[group, DEPTH] = depth + 1
                    groups[group, MEMBERS] = NONE
                    scores[group, SUM] = 0.0
                    stop += 1
                kind = int(places[place, KIND])
                match = min(int(places[place, MATCH]) + depth, LENGTHS - 1)
                if kind == PLAIN and match > longest:
                    longest = match
                vote = model[int(places[place, VOTES]) + match]
                vote *= model[DEPTHS + kind * DEPTH_CLASSES + depth_class]
                scores[group, SUM] += weights[place] * vote
                places[place, CHAIN] = groups[group, MEMBERS]
                groups[group, MEMBERS] = place
                page = at >> page_bits
                if (at & mask) + 1 < pages[page, USED]:
                    places[place, AT] = at + 1
                elif pages[page, NEXT] != NONE:
                    places[place, AT] = int(pages[page, NEXT]) << page_bits
                else:
                    places[place, AT] = places[place, RESTART]
            place = following
        total = recent * model[ESCAPE + depth_class * LENGTHS + longest]
        total *= model[WIDTH + min(stop - start, WIDTHS - 1)]
        for group in range(start, stop):
            total += scores[group, SUM]
        for group in range(start, stop):
            scores[group, PATH] = path * scores[group, SUM] / total
        size = _push(groups, scores, size, start, stop)
        if size == 0 or count == nodes.shape[1]:
            return count
        top = _pop(groups, scores, size)
        size -= 1
        node, path = count, scores[top, PATH]
        depth, place = int(groups[top, DEPTH]), int(groups[top, MEMBERS])
        nodes[0, node] = groups[top, TOKEN]
        nodes[1, node] = groups[top, PARENT]
        scores[node, NODE_PATH] = path
        count += 1


@kernel
def _recent_class(accepted: int) -> int:
    """Sort an accepted length into five classes."""
    return min(accepted, 1) + (accepted > 1) + (accepted > 4) + (accepted > 15)


@kernel
def _draft_class(places: IntArray, num_places: int) -> int:
    """Sort a draft by its longest plain match into the five classes of the calibration."""
    longest = 0
    for place in range(num_places):
        if places[place, KIND] == PLAIN and places[place, AT] != NONE:
            longest = max(longest, int(places[place, MATCH]))
    return (longest > 1) + (longest > 3) + (longest > 7) + (longest > 15)


@kernel
def grow(
    arena: IntArray,
    floats: FloatArray,
    knots: FloatArray,
    batch: IntArray,
    max_depth: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Draft a tree for each request of a batch from the places found.

    Args:
        arena: the pool; the rows keep the draft, until the committed tokens come.
        floats: ``(NUM_WEIGHTS + num_rows * max_places,)`` float64: the tables of weights, and the
            places' weights.
        knots: ``(num_classes, KNOTS + 1)`` float64, the calibration's maps.
        batch: ``(num_requests, REQUEST_FIELDS)`` int32; the numbers of nodes are written.
        max_depth: the deepest level of the trees.
        nodes: ``(num_requests, 2, max_nodes)`` int32, overwritten: token ids and parents.
        probs: ``(num_requests, max_nodes)`` float32, overwritten: path probabilities.
    """
    views = _views(arena)
    _, _, rows, drafts, places = views
    weights = floats[NUM_WEIGHTS:].reshape((places.shape[0], places.shape[1]))
    page_bits = int(arena[PAGE_BITS])
    max_nodes = probs.shape[1]
    groups = np.empty((places.shape[1] + max_nodes + 1, GROUP_FIELDS), np.int64)
    scores = np.empty((groups.shape[0], SCORE_FIELDS), np.float64)
    for i in range(batch.shape[0]):
        batch[i, DRAFTED] = 0
        row = int(batch[i, ROW])
        if batch[i, FOUND] == 0:
            continue
        recent = 5 * _recent_class(int(rows[row, ACCEPTED]))
        recent += _recent_class(int(rows[row, ACCEPTED_BEFORE]))
        found = int(batch[i, FOUND])
        draft_class = _draft_class(places[row], found)
        count = _grow(
            views, page_bits, floats, floats[RECENT + recent], places[row, :found],
            weights[row, :found], groups, scores, max_depth, nodes[i],
        )  # fmt: skip
        for node in range(count):
            path = scores[node, NODE_PATH]
            knot = min(int(path * KNOTS), KNOTS - 1)
            low = knots[draft_class, knot]
            part = path * KNOTS - knot
            value = low + part * (knots[draft_class, knot + 1] - low)
            parent = int(nodes[i, 1, node])
            # Rounding must not lift a child above its parent.
            probs[i, node] = value if parent == NONE else min(value, float(probs[i, parent]))
        kept = min(count, MAX_DRAFT)
        for node in range(kept):
            drafts[row, DRAFT_FIELDS * node] = nodes[i, 0, node]
            drafts[row, DRAFT_FIELDS * node + 1] = nodes[i, 1, node]
            drafts[row, DRAFT_FIELDS * node + 2] = int(scores[node, NODE_PATH] * PROBABILITY_UNIT)
        rows[row, DRAFT_SIZE] = kept
        rows[row, DRAFT_CLASS] = draft_class
        batch[i, DRAFTED] = count


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(
        grow,
        "void(int32[::1], float64[::1], float64[:,::1], int32[:,::1], int64, int32[:,:,::1],"
        " float32[:,::1])",
    )
