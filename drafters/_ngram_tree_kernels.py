"""Kernels of the n-gram drafter: earlier places of the tail, and a tree of what followed them.

The arena's layout is that of ``_ngram_kernels``; nothing here writes to it.
"""

from __future__ import annotations

import numpy as np

from ._jit import compile_once, kernel
from ._ngram_kernels import (
    BUCKET_BITS,
    FIRST_LEVEL,
    GENERATION,
    HEADER_SIZE,
    LAST_PAGE,
    NAMESPACE,
    NEXT,
    NONE,
    NUM_LEVELS,
    NUM_PAGES,
    OWNER,
    PAGE_BITS,
    PAGE_FIELDS,
    PAGE_NAMESPACE,
    PREVIOUS,
    ROW_FIELDS,
    SERIAL,
    SLOT_BITS,
    USED,
    FloatArray,
    IntArray,
    LongArray,
)

Views = tuple[IntArray, IntArray, IntArray, IntArray]

START, AT, MATCH, CHAIN = 0, 1, 2, 3
"""A place: slot of the token after it, slot now read, match length, next place of its group."""

TOKEN, PARENT, DEPTH, MEMBERS = 0, 1, 2, 3
"""A group: its token, its parent node, its depth, and the first of its places."""


@kernel
def _views(arena: IntArray) -> Views:
    """Cut the arena into tokens, links, pages and rows."""
    num_pages = np.int64(arena[NUM_PAGES])
    num_levels = np.int64(arena[NUM_LEVELS])
    num_slots = num_pages << int(arena[PAGE_BITS])
    a = HEADER_SIZE + num_slots
    b = a + num_slots * num_levels
    c = b + (num_levels << int(arena[BUCKET_BITS]))
    d = c + num_pages * PAGE_FIELDS
    return (
        arena[HEADER_SIZE:a],
        arena[a:b].reshape((num_slots, num_levels)),
        arena[c:d].reshape((num_pages, PAGE_FIELDS)),
        arena[d : d + num_pages * ROW_FIELDS].reshape((num_pages, ROW_FIELDS)),
    )


@kernel
def _before(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token before ``slot`` in its request, or -1."""
    if slot & ((1 << page_bits) - 1):
        return slot - 1
    page = int(pages[slot >> page_bits, PREVIOUS])
    return NONE if page == NONE else (page << page_bits) + pages[page, USED] - 1


@kernel
def _after(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token after ``slot`` in its request, or -1."""
    page = slot >> page_bits
    if (slot & ((1 << page_bits) - 1)) + 1 < pages[page, USED]:
        return slot + 1
    page = int(pages[page, NEXT])
    return NONE if page == NONE else page << page_bits


@kernel
def _match_length(views: Views, page_bits: int, slot: int, tail: IntArray) -> int:
    """Count how many tokens that end at ``slot`` equal the tail, newest first."""
    tokens, _, pages, _ = views
    length = 0
    while slot != NONE and length < tail.size and tokens[slot] == tail[length]:
        length += 1
        slot = _before(pages, page_bits, slot)
    return length


@kernel
def _find_places(
    arena: IntArray, views: Views, row: int, limits: LongArray, places: LongArray
) -> int:
    """Walk the chains of the tail, longest k first, and return how many places were found.

    Arrays:
        limits: ``(2,)`` int64: longest match measured, places looked at in a level.
        places: ``(max_places, 4)`` int64, overwritten; stops when it is full.
    """
    tokens, links, pages, rows = views
    page_bits = int(arena[PAGE_BITS])
    slot_bits = int(arena[SLOT_BITS])
    page = int(rows[row, LAST_PAGE])
    if page == NONE:
        return 0
    last = (page << page_bits) + pages[page, USED] - 1
    tail = np.empty(limits[0], np.int32)
    length = 0
    slot = last
    while slot != NONE and length < limits[0] and tokens[slot] >= 0:
        tail[length] = tokens[slot]
        length += 1
        slot = _before(pages, page_bits, slot)
    tail = tail[:length]
    count = 0
    longer_k = int(limits[0] + 1)
    for level in range(links.shape[1]):
        k = int(arena[FIRST_LEVEL + level])
        link = int(links[last, level])
        for _ in range(limits[1]):
            slot = link & ((1 << slot_bits) - 1)
            page = slot >> page_bits
            if link == 0 or link >> slot_bits != pages[page, GENERATION]:
                break
            link = int(links[slot, level])
            if pages[page, PAGE_NAMESPACE] != rows[row, NAMESPACE]:
                continue
            match = _match_length(views, page_bits, slot, tail)
            # A match as long as the level before asks for was met there.
            if match >= k and match < longer_k and count < places.shape[0]:
                following = _after(pages, page_bits, slot)
                if following != NONE and tokens[following] >= 0:
                    places[count, START] = following
                    places[count, AT] = following
                    places[count, MATCH] = match
                    count += 1
        longer_k = k
    return count


@kernel
def _split(
    views: Views,
    page_bits: int,
    first: int,
    where: LongArray,
    places: LongArray,
    weights: FloatArray,
    groups: LongArray,
    sums: FloatArray,
    num_groups: int,
) -> int:
    """Divide the places of one node by the token that they read next, and return the group count.

    Arrays:
        first: the first place of the node's list.
        where: ``(2,)`` int64: the node and the depth of its children.
        groups: ``(max_groups, 4)`` int64, new groups written from ``num_groups`` on.
        sums: ``(max_groups,)`` float32, the new groups' summed weights.
    """
    tokens = views[0]
    start = num_groups
    place = first
    while place != NONE:
        following = places[place, CHAIN]
        at = places[place, AT]
        if at != NONE and tokens[at] >= 0:
            token = int(tokens[at])
            group = start
            while group < num_groups and groups[group, TOKEN] != token:
                group += 1
            if group == num_groups:
                groups[group, TOKEN] = token
                groups[group, PARENT] = where[0]
                groups[group, DEPTH] = where[1]
                groups[group, MEMBERS] = NONE
                sums[group] = 0
                num_groups += 1
            places[place, CHAIN] = groups[group, MEMBERS]
            groups[group, MEMBERS] = place
            sums[group] += weights[place]
            places[place, AT] = _after(views[2], page_bits, at)
        place = following
    return num_groups


@kernel
def _push(heap: LongArray, size: int, probs: FloatArray, group: int) -> int:
    """Put a group into the binary heap, the most probable on top; return the new size."""
    child = size
    while child > 0 and probs[heap[(child - 1) >> 1]] < probs[group]:
        heap[child] = heap[(child - 1) >> 1]
        child = (child - 1) >> 1
    heap[child] = group
    return size + 1


@kernel
def _pop(heap: LongArray, size: int, probs: FloatArray) -> int:
    """Take the top off the heap and return it; the caller lowers the size."""
    top = int(heap[0])
    moved = heap[size - 1]
    parent = 0
    child = 1
    while child < size - 1:
        if child + 1 < size - 1 and probs[heap[child + 1]] > probs[heap[child]]:
            child += 1
        if probs[heap[child]] <= probs[moved]:
            break
        heap[parent] = heap[child]
        parent = child
        child = 2 * parent + 1
    heap[parent] = moved
    return top


@kernel
def _grow(
    views: Views,
    page_bits: int,
    num_places: int,
    places: LongArray,
    weights: FloatArray,
    max_depth: int,
    nodes: IntArray,
    probs: FloatArray,
) -> int:
    """Merge the places' continuations into a tree, the most probable node first.

    Arrays:
        nodes: ``(2, max_nodes)`` int32, overwritten: token ids and parents.
        probs: ``(max_nodes,)`` float32, overwritten: path probabilities.

    Returns:
        The number of nodes.
    """
    max_nodes = probs.size
    max_groups = num_places + max_nodes + 1
    groups = np.empty((max_groups, 4), np.int64)
    sums = np.empty(max_groups, np.float32)
    paths = np.empty(max_groups, np.float32)
    heap = np.empty(max_groups, np.int64)
    where = np.empty(2, np.int64)
    for place in range(num_places):
        places[place, CHAIN] = place + 1 if place + 1 < num_places else NONE
    size = 0
    num_groups = 0
    count = 0
    node = NONE
    path = np.float32(1)
    depth = 1
    members = 0
    while True:
        if depth <= max_depth:
            where[0] = node
            where[1] = depth
            stop = _split(
                views, page_bits, members, where, places, weights, groups, sums, num_groups
            )
            total = np.float32(1)
            for group in range(num_groups, stop):
                total += sums[group]
            for group in range(num_groups, stop):
                paths[group] = path * sums[group] / total
                size = _push(heap, size, paths, group)
            num_groups = stop
        if size == 0 or count == max_nodes:
            return count
        top = _pop(heap, size, paths)
        size -= 1
        node = count
        path = paths[top]
        depth = groups[top, DEPTH] + 1
        members = groups[top, MEMBERS]
        nodes[0, node] = groups[top, TOKEN]
        nodes[1, node] = groups[top, PARENT]
        probs[node] = path
        count += 1


@kernel
def propose(
    arena: IntArray,
    rows: IntArray,
    limits: LongArray,
    max_depth: int,
    nodes: IntArray,
    probs: FloatArray,
    counts: IntArray,
) -> None:
    """Draft one tree for each of the given requests.

    Args:
        arena: the pool.
        rows: ``(batch,)`` int32, the requests' rows, -1 for an unknown request.
        limits: ``(3,)`` int64: longest match measured, places looked at in a level, places kept.
        max_depth: the deepest level of the trees.
        nodes: ``(batch, 2, max_nodes)`` int32, overwritten: token ids and parents.
        probs: ``(batch, max_nodes)`` float32, overwritten.
        counts: ``(batch,)`` int32, overwritten: nodes of each tree.
    """
    views = _views(arena)
    page_bits = int(arena[PAGE_BITS])
    places = np.empty((limits[2], 4), np.int64)
    weights = np.empty(limits[2], np.float32)
    for i in range(rows.size):
        counts[i] = 0
        if rows[i] == NONE:
            continue
        num_places = _find_places(arena, views, rows[i], limits, places)
        if num_places == 0:
            continue
        for place in range(num_places):
            own = views[2][places[place, START] >> page_bits, OWNER] == views[3][rows[i], SERIAL]
            match = np.float32(places[place, MATCH])
            weights[place] = match * match * (np.float32(1.5) if own else np.float32(1))
        counts[i] = _grow(
            views, page_bits, num_places, places, weights, max_depth, nodes[i], probs[i]
        )


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(
        propose,
        "void(int32[::1], int32[::1], int64[::1], int64, int32[:,:,::1], float32[:,::1],"
        " int32[::1])",
    )
