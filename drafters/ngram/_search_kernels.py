"""Kernels of the n-gram drafter's search: the earlier places where the last tokens stood.

"Plain" places are those of the last token, by its chains, longest k first. Where the text before
the last token stood, that token may have been put in ("inserted") or have taken the place of one
("replaced"): two more kinds. Each place gets the part of its weight that depends on where it lies.

The arena's layout is that of ``_pool_kernels``.
"""

from __future__ import annotations

import numpy as np

from .._jit import compile_once, kernel
from ._pool_kernels import (
    ANCHOR,
    BUCKET_BITS,
    CLOCK,
    DRAFT_FIELDS,
    EXPECTED,
    FIRST_LEVEL,
    FIRST_VISITS,
    GENERATION,
    HEADER_SIZE,
    LAST_PAGE,
    LENGTH,
    MAX_CLOCK,
    MAX_DRAFT,
    MAX_MATCH,
    MAX_SKIP_VISITS,
    NAMESPACE,
    NEXT,
    NONE,
    NUM_LEVELS,
    NUM_PAGES,
    NUM_ROWS,
    OUTPUT,
    OWNER,
    PAGE_BITS,
    PAGE_FIELDS,
    PAGE_NAMESPACE,
    PLACE_FIELDS,
    POSITION,
    PREVIOUS,
    ROW_FIELDS,
    SERIAL,
    SLOT_BITS,
    STAMP,
    USED,
    FloatArray,
    IntArray,
    LongArray,
)
from ._weights import (
    AGE,
    AGES,
    DETOUR,
    DISTANCE,
    DISTANCES,
    KINDS,
    LENGTHS,
    NEARS,
    NUM_WEIGHTS,
    RANK,
    RANKS,
    VOTE,
)

Views = tuple[IntArray, IntArray, IntArray, IntArray, IntArray]

PLAIN, REPLACED, INSERTED = 0, 1, 2
AT, RESTART, MATCH, KIND, VOTES, CHAIN = 0, 1, 2, 3, 4, 5
"""A place: slot now read, where to read on at the request's own end (or -1), match length, kind,
row of the vote table (the rank, before it is weighed), next place of its group."""

ROW, FOUND, DRAFTED = 0, 1, 2
"""A request of a batch: its row (or -1), places found, nodes drafted."""
REQUEST_FIELDS = 3

OFFSET_BITS, OFFSET_MASK, LINK_BITS, SLOT_MASK, LAST_SLOT, NOW = 0, 1, 2, 3, 4, 5
OWN_NAMESPACE, OWN_SERIAL, OWN_LENGTH = 6, 7, 8
EXPECTED_OWNER, EXPECTED_POSITION, ANCHOR_OWNER, ANCHOR_POSITION = 9, 10, 11, 12
"""Context: how slots and links are built, the clock, and what the search asks of the request."""
CONTEXT_FIELDS = 13

LONG_MATCH = 16
"""From this length on a match is told apart by its length alone, and moves the anchor."""


@kernel
def _views(arena: IntArray) -> Views:
    """Cut the arena into tokens, links, pages, rows and places."""
    num_pages = np.int64(arena[NUM_PAGES])
    num_levels = np.int64(arena[NUM_LEVELS])
    num_rows = np.int64(arena[NUM_ROWS])
    num_slots = num_pages << int(arena[PAGE_BITS])
    a = HEADER_SIZE + num_slots
    b = a + num_slots * num_levels
    c = b + (num_levels << int(arena[BUCKET_BITS]))
    d = c + num_pages * PAGE_FIELDS
    e = d + num_rows * ROW_FIELDS
    return (
        arena[HEADER_SIZE:a],
        arena[a:b].reshape((num_slots, num_levels)),
        arena[c:d].reshape((num_pages, PAGE_FIELDS)),
        arena[d:e].reshape((num_rows, ROW_FIELDS)),
        arena[e + num_rows * MAX_DRAFT * DRAFT_FIELDS :].reshape((num_rows, -1, PLACE_FIELDS)),
    )


@kernel
def _before(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token before ``slot`` in its request, or -1."""
    if slot & ((1 << page_bits) - 1):
        return slot - 1
    page = int(pages[slot >> page_bits, PREVIOUS])
    return NONE if page == NONE else (page << page_bits) + int(pages[page, USED]) - 1


@kernel
def _after(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token after ``slot`` in its request, or -1."""
    page = slot >> page_bits
    if (slot & ((1 << page_bits) - 1)) + 1 < pages[page, USED]:
        return slot + 1
    page = int(pages[page, NEXT])
    return NONE if page == NONE else page << page_bits


@kernel
def _walk(
    arena: IntArray, views: Views, context: LongArray, tail: LongArray, places: IntArray
) -> int:
    """Walk the chains of the last two tokens, longest k first, and return the number of places.

    A level keeps its matches that are shorter than the k of the level before: the longer ones were
    met there. The chains of the token before the last are walked in the levels of two to four
    tokens only; a place where the last token did not follow is kept twice, as replaced and as
    inserted. All is one loop, because each call that passes arrays costs more than a look at a
    place.

    Args:
        arena: the pool.
        views: its regions.
        context: what is known of the request that drafts.
        tail: its last tokens, newest first.
        places: ``(max_places, PLACE_FIELDS)`` int32, overwritten with slot, match length, kind and
            rank; it ends the search when full.
    """
    tokens, links, pages, _, _ = views
    bits, mask = int(context[OFFSET_BITS]), int(context[OFFSET_MASK])
    link_bits, slot_mask = int(context[LINK_BITS]), int(context[SLOT_MASK])
    namespace = context[OWN_NAMESPACE]
    num_levels = links.shape[1]
    first = int(context[LAST_SLOT])
    count = 0
    for part in range(2 * num_levels):
        skip, level = part // num_levels, part % num_levels  # skip: start at the token before
        if level == 0:
            longer_k = tail.size + 1
            if skip:
                first = first - 1 if first & mask else _before(pages, bits, first)
        k = int(arena[FIRST_LEVEL + level])
        visits = int(arena[FIRST_VISITS + level])
        if skip:
            visits = int(arena[MAX_SKIP_VISITS]) if 2 <= k <= min(4, tail.size - 1) else 0
        link = int(links[first, level]) if visits else 0
        stop = min(tail.size, skip + longer_k)  # where the comparison with the tail may end
        rank = 0
        for _ in range(visits):
            slot = link & slot_mask
            page = slot >> bits
            if link == 0 or link >> link_bits != pages[page, GENERATION]:
                break  # the chain ends, or its rest was reclaimed
            link = int(links[slot, level])
            if pages[page, PAGE_NAMESPACE] != namespace or (slot & mask) >= pages[page, USED]:
                continue
            if skip:
                following = _after(pages, bits, slot)
                if following == NONE or tokens[following] == tail[0]:
                    continue
            index = skip
            at = slot
            while at != NONE:
                run = min((at & mask) + 1, stop - index)
                step = 0
                while step < run and tokens[at - step] == tail[index + step]:
                    step += 1
                index += step
                if step < run or index == stop:
                    break
                at = _before(pages, bits, at - step + 1)
            if index - skip < k or index - skip >= longer_k:
                continue
            if count + 1 + skip > places.shape[0]:
                return count
            for kind in range(skip, 1 + 2 * skip):
                places[count, AT] = slot
                places[count, MATCH] = index - skip
                places[count, KIND] = kind
                places[count, VOTES] = rank
                count += 1
            rank += 1
        if visits:
            longer_k = k
    return count


@kernel
def _near_class(
    tokens: IntArray, pages: IntArray, page_bits: int, slot: int, match: int, tail: LongArray
) -> int:
    """Say in four classes how far a match goes on behind a token put in, left out or replaced."""
    back = match  # to the slot where the two differ
    while slot != NONE and back > 0:
        step = min(slot & ((1 << page_bits) - 1), back)
        slot -= step
        back -= step
        if back > 0:
            slot = _before(pages, page_bits, slot)
            back -= 1
    longest = 0
    for change in range(3):
        index = match + 1 if change < 2 else match
        if change == 1 and slot != NONE:
            slot = _before(pages, page_bits, slot)
        at = slot
        length = 0
        while at != NONE and length < 8 and index < tail.size and tokens[at] == tail[index]:
            length += 1
            index += 1
            at = at - 1 if at & ((1 << page_bits) - 1) else _before(pages, page_bits, at)
        longest = max(longest, length)
    return (longest > 0) + (longest > 2) + (longest > 6)


@kernel
def _distance_class(origin_owner: int, origin: int, owner: int, position: int) -> int:
    """Sort the way from an origin to a place: none, in the same request (13 classes), in others."""
    if origin_owner == NONE:
        return 0
    distance = position - origin
    if origin_owner != owner or distance < -64:
        return DISTANCES - 1
    if distance < 0:
        return 10 + (distance < -2) + (distance < -8)
    if distance <= 2:
        return 1 + distance
    steps = (distance > 4) + (distance > 8) + (distance > 16) + (distance > 64)
    return 4 + steps + (distance > 256)


@kernel
def _weigh(
    views: Views,
    context: LongArray,
    model: FloatArray,
    tail: LongArray,
    places: IntArray,
    weights: FloatArray,
) -> tuple[int, int]:
    """Turn the slots of the places into what follows them, and weigh each place.

    The weight is the part that does not change down the tree; a place with nothing behind it gets
    no slot to read.

    Returns:
        What follows the longest plain match of at least four tokens, or -1: the text is expected
        to go on along it.

    Args:
        views: the pool.
        context: what is known of the request that drafts.
        model: the tables of weights.
        tail: its last tokens, newest first.
        places: ``(num_places, PLACE_FIELDS)`` int32, as ``_walk`` wrote them, mutated.
        weights: ``(num_places,)`` float64, overwritten.
    """
    tokens, _, pages, _, _ = views
    bits, mask = int(context[OFFSET_BITS]), int(context[OFFSET_MASK])
    goal_owner, goal = int(context[EXPECTED_OWNER]), int(context[EXPECTED_POSITION])
    anchor_owner, anchor = int(context[ANCHOR_OWNER]), int(context[ANCHOR_POSITION])
    expected, longest = NONE, 3
    for place in range(weights.size):
        before, kind = int(places[place, AT]), int(places[place, KIND])
        rank, match = int(places[place, VOTES]), int(places[place, MATCH])
        slot = _after(pages, bits, before)
        if kind == REPLACED and slot != NONE:
            slot = _after(pages, bits, slot)
        if slot == NONE or tokens[slot] < 0:
            places[place, AT] = NONE
            continue
        near = 0
        if kind == PLAIN and match < LONG_MATCH:
            near = _near_class(tokens, pages, bits, before, match, tail)
        if kind == PLAIN and match > longest:
            expected, longest = slot, match
        page, offset = slot >> bits, slot & mask
        owner = int(pages[page, OWNER])
        own = owner == context[OWN_SERIAL]
        position = int(pages[page, POSITION]) + offset
        if own:
            age = context[OWN_LENGTH] - position
        else:
            age = (context[NOW] - pages[page, STAMP] - offset) & MAX_CLOCK
        age_class = 0
        while age > 8 and age_class < AGES - 1:
            age >>= 1
            age_class += 1
        distance = _distance_class(goal_owner, goal, owner, position)
        detour = _distance_class(anchor_owner, anchor, owner, position)
        region = 2 * own + (offset >= pages[page, OUTPUT])
        rank_class = (rank > 0) + (rank > 1) + (rank > 3) + (rank > 7) + (rank > 15)
        places[place, AT] = slot
        places[place, RESTART] = slot if own else NONE
        places[place, VOTES] = VOTE + (kind * NEARS + near) * LENGTHS
        weights[place] = (
            model[RANK + (region * RANKS + rank_class) * KINDS + kind]
            * model[AGE + region * AGES + age_class]
            * model[DISTANCE + distance]
            * model[DETOUR + detour]
        )
    return expected, longest


@kernel
def _set_context(
    arena: IntArray, pages: IntArray, rows: IntArray, row: int, context: LongArray
) -> None:
    """Write what the search asks of a request into ``context``; its last page must exist."""
    page = int(rows[row, LAST_PAGE])
    page_bits = int(arena[PAGE_BITS])
    context[OFFSET_BITS] = page_bits
    context[OFFSET_MASK] = (1 << page_bits) - 1
    context[LINK_BITS] = arena[SLOT_BITS]
    context[SLOT_MASK] = (1 << int(arena[SLOT_BITS])) - 1
    context[LAST_SLOT] = (page << page_bits) + int(pages[page, USED]) - 1
    context[NOW] = arena[CLOCK]
    context[OWN_NAMESPACE] = rows[row, NAMESPACE]
    context[OWN_SERIAL] = rows[row, SERIAL]
    context[OWN_LENGTH] = rows[row, LENGTH]
    for field, owner in ((EXPECTED, EXPECTED_OWNER), (ANCHOR, ANCHOR_OWNER)):
        link = int(rows[row, field])
        slot = link & int(context[SLOT_MASK])
        page = slot >> page_bits
        context[owner] = NONE
        if link != 0 and link >> int(arena[SLOT_BITS]) == pages[page, GENERATION]:
            context[owner] = pages[page, OWNER]
            context[owner + 1] = pages[page, POSITION] + (slot & context[OFFSET_MASK])


@kernel
def search(arena: IntArray, floats: FloatArray, batch: IntArray) -> None:
    """Find the places of each request of a batch, and leave them beside its row.

    Args:
        arena: the pool; the rows' places and pointers are overwritten.
        floats: ``(NUM_WEIGHTS + num_rows * max_places,)`` float64: the tables of weights, and the
            places' weights, overwritten.
        batch: ``(num_requests, REQUEST_FIELDS)`` int32; the numbers of places are written.
    """
    views = _views(arena)
    tokens, _, pages, rows, places = views
    weights = floats[NUM_WEIGHTS:].reshape((places.shape[0], places.shape[1]))
    scratch = np.empty(CONTEXT_FIELDS + int(arena[MAX_MATCH]), np.int64)
    context, buffer = scratch[:CONTEXT_FIELDS], scratch[CONTEXT_FIELDS:]
    bits = int(arena[PAGE_BITS])
    mask = (1 << bits) - 1
    for i in range(batch.shape[0]):
        batch[i, FOUND] = 0
        row = int(batch[i, ROW])
        if row == NONE or rows[row, LAST_PAGE] == NONE:
            continue
        _set_context(arena, pages, rows, row, context)
        slot = int(context[LAST_SLOT])
        length = 0
        while slot != NONE and length < buffer.size and tokens[slot] >= 0:
            buffer[length] = tokens[slot]
            length += 1
            slot = slot - 1 if slot & mask else _before(pages, bits, slot)
        tail = buffer[:length]
        if length == 0:
            continue
        count = _walk(arena, views, context, tail, places[row])
        slot, longest = _weigh(
            views, context, floats, tail, places[row, :count], weights[row, :count]
        )
        if slot != NONE:
            generation = int(pages[slot >> bits, GENERATION])
            rows[row, EXPECTED] = (generation << int(arena[SLOT_BITS])) | slot
            if longest >= LONG_MATCH:
                rows[row, ANCHOR] = rows[row, EXPECTED]
        batch[i, FOUND] = count


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(search, "void(int32[::1], float64[::1], int32[:,::1])")
