"""Kernels of the n-gram drafter's tree: what followed the places, merged best first.

Each place votes for the token that it reads, with a weight that depends on how it matched and
where it lies; one more weight stands for "none of these". A share of the votes is the probability
of a step, products of steps are those of paths, and the most probable path is extended first. The
weights are fitted (``_ngram_weights``); a calibration maps the paths' probabilities to what was
seen lately (``calibration``), without changing their order.

The arena's layout is that of ``_ngram_kernels``, a place's that of ``_ngram_search_kernels``.

Sources: an escape weight beside the votes, as in prediction by partial matching (Cleary and Witten,
1984); the shares are a conditional logit over places.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._jit import compile_once, kernel
from ._ngram_kernels import (
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
    PROBABILITY_UNIT,
    ROW_FIELDS,
    USED,
    FloatArray,
    IntArray,
    LongArray,
)
from ._ngram_search_kernels import (
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
from ._ngram_weights import DEPTHS, ESCAPE, LENGTHS, RECENT, WIDTH

NUM_CLASSES = 5
"""Classes of drafts in the calibration, by the longest match."""

SingleArray = npt.NDArray[np.float32]
Views = tuple[IntArray, IntArray, IntArray, IntArray]

TOKEN, PARENT, DEPTH, MEMBERS = 0, 1, 2, 3
"""A group of places that read the same token: the token, parent node, depth, first place."""
GROUP_FIELDS = 4


@kernel
def _views(arena: IntArray) -> Views:
    """Cut the arena into tokens, pages, rows and drafts."""
    num_pages = np.int64(arena[NUM_PAGES])
    num_levels = np.int64(arena[NUM_LEVELS])
    num_rows = np.int64(arena[NUM_ROWS])
    num_slots = num_pages << int(arena[PAGE_BITS])
    a = HEADER_SIZE + num_slots
    c = a + num_slots * num_levels + (num_levels << int(arena[BUCKET_BITS]))
    d = c + num_pages * PAGE_FIELDS
    e = d + num_rows * ROW_FIELDS
    return (
        arena[HEADER_SIZE:a],
        arena[c:d].reshape((num_pages, PAGE_FIELDS)),
        arena[d:e].reshape((num_rows, ROW_FIELDS)),
        arena[e:].reshape((num_rows, MAX_DRAFT * DRAFT_FIELDS)),
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
def _split(
    views: Views,
    page_bits: int,
    model: FloatArray,
    node: int,
    depth: int,
    first: int,
    places: LongArray,
    weights: FloatArray,
    groups: LongArray,
    sums: FloatArray,
    num_groups: int,
) -> tuple[int, int]:
    """Divide the places of one node by the token that they read next.

    Args:
        views: the pool.
        page_bits: the page size's logarithm.
        model: the tables of weights.
        node: the node whose children are wanted, -1 for the root.
        depth: how many tokens of the tree lead to the node.
        first: the first place of the node's list.
        places: ``(max_places, PLACE_FIELDS)`` int64; what is read moves on.
        weights: ``(max_places,)`` float64, the fixed part of each place's weight.
        groups: ``(max_groups, GROUP_FIELDS)`` int64, new groups written from ``num_groups`` on.
        sums: ``(max_groups,)`` float64, their places' summed weights.
        num_groups: groups made so far.

    Returns:
        The number of groups now, and the longest match among the plain places.
    """
    tokens = views[0]
    start = num_groups
    longest = 0
    depth_class = min(depth, 1) + (depth > 1) + (depth > 3) + (depth > 7)
    place = first
    while place != NONE:
        following = int(places[place, CHAIN])
        at = int(places[place, AT])
        if at != NONE and tokens[at] >= 0:
            token = int(tokens[at])
            group = start
            while group < num_groups and groups[group, TOKEN] != token:
                group += 1
            if group == num_groups:
                groups[group, TOKEN] = token
                groups[group, PARENT] = node
                groups[group, DEPTH] = depth + 1
                groups[group, MEMBERS] = NONE
                sums[group] = 0.0
                num_groups += 1
            kind = int(places[place, KIND])
            match = min(int(places[place, MATCH]) + depth, LENGTHS - 1)
            if kind == PLAIN:
                longest = max(longest, match)
            sums[group] += (
                weights[place]
                * model[int(places[place, VOTES]) + match]
                * model[DEPTHS + kind * 5 + depth_class]
            )
            places[place, CHAIN] = groups[group, MEMBERS]
            groups[group, MEMBERS] = place
            at = _after(views[1], page_bits, at)
            places[place, AT] = places[place, RESTART] if at == NONE else at
        place = following
    return num_groups, longest


@kernel
def _push(heap: LongArray, size: int, probs: FloatArray, group: int) -> None:
    """Put a group into the binary heap: the most probable on top, the older one if equal."""
    child = size
    while child > 0:
        above = int(heap[(child - 1) >> 1])
        if probs[above] > probs[group] or (probs[above] == probs[group] and above < group):
            break
        heap[child] = above
        child = (child - 1) >> 1
    heap[child] = group


@kernel
def _pop(heap: LongArray, size: int, probs: FloatArray) -> int:
    """Take the top off the heap and return it; the caller lowers the size."""
    top = int(heap[0])
    moved = int(heap[size - 1])
    hole = 0
    child = 1
    while child < size - 1:
        below = int(heap[child])
        if child + 1 < size - 1:
            other = int(heap[child + 1])
            if probs[other] > probs[below] or (probs[other] == probs[below] and other < below):
                child += 1
                below = other
        if probs[moved] > probs[below] or (probs[moved] == probs[below] and moved < below):
            break
        heap[hole] = below
        hole = child
        child = 2 * hole + 1
    heap[hole] = moved
    return top


@kernel
def _grow(
    views: Views,
    page_bits: int,
    model: FloatArray,
    recent: int,
    places: LongArray,
    weights: FloatArray,
    groups: LongArray,
    heap: LongArray,
    sums: FloatArray,
    max_depth: int,
    nodes: IntArray,
    probs: FloatArray,
) -> int:
    """Merge the places' continuations into a tree, the most probable node first.

    Args:
        views: the pool.
        page_bits: the page size's logarithm.
        model: the tables of weights.
        recent: how the last two drafts went, in 25 classes.
        places: ``(num_places, PLACE_FIELDS)`` int64, mutated.
        weights: ``(num_places,)`` float64.
        groups: ``(max_groups, GROUP_FIELDS)`` int64 to work in.
        heap: ``(max_groups,)`` int64 to work in.
        sums: ``(2, max_groups)`` float64 to work in.
        max_depth: the deepest level.
        nodes: ``(2, max_nodes)`` int32, overwritten: token ids and parents.
        probs: ``(max_nodes,)`` float64, overwritten: path probabilities.

    Returns:
        The number of nodes.
    """
    paths = sums[1]
    for place in range(weights.size):
        places[place, CHAIN] = place + 1 if place + 1 < weights.size else NONE
    size = 0
    num_groups = 0
    count = 0
    node = NONE
    path = 1.0
    depth = 0
    members = 0
    while True:
        if depth < max_depth:
            stop, longest = _split(
                views, page_bits, model, node, depth, members, places, weights, groups, sums[0],
                num_groups,
            )  # fmt: skip
            depth_class = min(depth, 1) + (depth > 1) + (depth > 3) + (depth > 7)
            total = (
                model[ESCAPE + depth_class * LENGTHS + longest]
                * model[WIDTH + min(stop - num_groups, 6)]
                * model[RECENT + recent]
            )
            for group in range(num_groups, stop):
                total += sums[0, group]
            for group in range(num_groups, stop):
                paths[group] = path * sums[0, group] / total
                _push(heap, size, paths, group)
                size += 1
            num_groups = stop
        if size == 0 or count == probs.size:
            return count
        top = _pop(heap, size, paths)
        size -= 1
        node = count
        path = paths[top]
        depth = int(groups[top, DEPTH])
        members = int(groups[top, MEMBERS])
        nodes[0, node] = groups[top, TOKEN]
        nodes[1, node] = groups[top, PARENT]
        probs[node] = path
        count += 1


@kernel
def _recent_class(accepted: int) -> int:
    """Sort an accepted length into five classes."""
    return min(accepted, 1) + (accepted > 1) + (accepted > 4) + (accepted > 15)


@kernel
def _draft_class(places: LongArray, num_places: int) -> int:
    """Sort a draft by its longest plain match into the five classes of the calibration."""
    longest = 0
    for place in range(num_places):
        if places[place, KIND] == PLAIN:
            longest = max(longest, int(places[place, MATCH]))
    return (longest > 1) + (longest > 3) + (longest > 7) + (longest > 15)


@kernel
def grow(
    arena: IntArray,
    model: FloatArray,
    knots: FloatArray,
    batch: IntArray,
    places: LongArray,
    weights: FloatArray,
    max_depth: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Draft a tree for each request of a batch from the places found.

    Args:
        arena: the pool; the rows keep the draft, until the committed tokens come.
        model: ``(NUM_WEIGHTS,)`` float64, the tables of weights.
        knots: ``(num_classes, KNOTS + 1)`` float64, the calibration's maps.
        batch: ``(num_requests, REQUEST_FIELDS)`` int32; the numbers of nodes are written.
        places: ``(max_requests, max_places, PLACE_FIELDS)`` int64, mutated.
        weights: ``(max_requests, max_places)`` float64.
        max_depth: the deepest level of the trees.
        nodes: ``(num_requests, 2, max_nodes)`` int32, overwritten: token ids and parents.
        probs: ``(num_requests, max_nodes)`` float32, overwritten: path probabilities.
    """
    views = _views(arena)
    _, _, rows, drafts = views
    page_bits = int(arena[PAGE_BITS])
    max_nodes = probs.shape[1]
    groups = np.empty((places.shape[1] + max_nodes + 1, GROUP_FIELDS), np.int64)
    heap = np.empty(groups.shape[0], np.int64)
    sums = np.empty((2, groups.shape[0]), np.float64)
    raw = np.empty(max_nodes, np.float64)
    for i in range(batch.shape[0]):
        batch[i, DRAFTED] = 0
        row = int(batch[i, ROW])
        if batch[i, FOUND] == 0:
            continue
        recent = 5 * _recent_class(int(rows[row, ACCEPTED]))
        recent += _recent_class(int(rows[row, ACCEPTED_BEFORE]))
        found = int(batch[i, FOUND])
        draft_class = _draft_class(places[i], found)
        count = _grow(
            views, page_bits, model, recent, places[i, :found], weights[i, :found], groups, heap,
            sums, max_depth, nodes[i], raw,
        )  # fmt: skip
        for node in range(count):
            knot = min(int(raw[node] * KNOTS), KNOTS - 1)
            low = knots[draft_class, knot]
            part = raw[node] * KNOTS - knot
            value = low + part * (knots[draft_class, knot + 1] - low)
            parent = int(nodes[i, 1, node])
            # Rounding must not lift a child above its parent.
            probs[i, node] = value if parent == NONE else min(value, float(probs[i, parent]))
        kept = min(count, MAX_DRAFT)
        for node in range(kept):
            drafts[row, DRAFT_FIELDS * node] = nodes[i, 0, node]
            drafts[row, DRAFT_FIELDS * node + 1] = nodes[i, 1, node]
            drafts[row, DRAFT_FIELDS * node + 2] = int(raw[node] * PROBABILITY_UNIT)
        rows[row, DRAFT_SIZE] = kept
        rows[row, DRAFT_CLASS] = draft_class
        batch[i, DRAFTED] = count


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(
        grow,
        "void(int32[::1], float64[::1], float64[:,::1], int32[:,::1], int64[:,:,::1],"
        " float64[:,::1], int64, int32[:,:,::1], float32[:,::1])",
    )
