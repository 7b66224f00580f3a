"""Kernels of the n-gram drafter's search: the earlier places where the last tokens stood.

"Plain" places are those of the last token, by its chains, longest k first. Where the text before
the last token stood, that token may have been put in ("inserted") or have taken the place of one
("replaced"): two more kinds. Each place gets the part of its weight that depends on where it lies.

The arena's layout is that of ``_ngram_kernels``.
"""

from __future__ import annotations

import numpy as np

from ._jit import compile_once, kernel
from ._ngram_kernels import (
    BUCKET_BITS,
    CLOCK,
    FIRST_LEVEL,
    FIRST_VISITS,
    GENERATION,
    HEADER_SIZE,
    LAST_PAGE,
    LENGTH,
    MAX_CLOCK,
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
    POINTER,
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
from ._ngram_weights import AGE, DISTANCE, KINDS, LENGTHS, NEARS, RANK, VOTE

Views = tuple[IntArray, IntArray, IntArray, IntArray]

PLAIN, REPLACED, INSERTED = 0, 1, 2
AT, RESTART, MATCH, KIND, VOTES, CHAIN = 0, 1, 2, 3, 4, 5
"""A place: slot now read, where to read on at the request's own end (or -1), match length, kind,
row of the vote table, next place of its group."""
PLACE_FIELDS = 6

ROW, FOUND, DRAFTED = 0, 1, 2
"""A request of a batch: its row (or -1), places found, nodes drafted."""
REQUEST_FIELDS = 3


@kernel
def _views(arena: IntArray) -> Views:
    """Cut the arena into tokens, links, pages and rows."""
    num_pages = np.int64(arena[NUM_PAGES])
    num_levels = np.int64(arena[NUM_LEVELS])
    num_rows = np.int64(arena[NUM_ROWS])
    num_slots = num_pages << int(arena[PAGE_BITS])
    a = HEADER_SIZE + num_slots
    b = a + num_slots * num_levels
    c = b + (num_levels << int(arena[BUCKET_BITS]))
    d = c + num_pages * PAGE_FIELDS
    return (
        arena[HEADER_SIZE:a],
        arena[a:b].reshape((num_slots, num_levels)),
        arena[c:d].reshape((num_pages, PAGE_FIELDS)),
        arena[d : d + num_rows * ROW_FIELDS].reshape((num_rows, ROW_FIELDS)),
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
def _linked_slot(arena: IntArray, pages: IntArray, link: int) -> int:
    """Return the slot that a link leads to, or -1 where the page has been reclaimed since."""
    slot_bits = int(arena[SLOT_BITS])
    slot = link & ((1 << slot_bits) - 1)
    alive = link != 0 and link >> slot_bits == pages[slot >> int(arena[PAGE_BITS]), GENERATION]
    return slot if alive else NONE


@kernel
def _match(views: Views, page_bits: int, slot: int, tail: IntArray, start: int, limit: int) -> int:
    """Count the tokens that end at ``slot`` and equal the tail from ``start`` on, newest first."""
    tokens = views[0]
    stop = min(tail.size, start + limit)
    index = start
    while slot != NONE and index < stop and tokens[slot] == tail[index]:
        index += 1
        slot = _before(views[2], page_bits, slot)
    return index - start


@kernel
def _near_class(views: Views, page_bits: int, slot: int, match: int, tail: IntArray) -> int:
    """Say how far a match goes on behind one changed token, in four classes.

    Args:
        views: the pool.
        page_bits: the page size's logarithm.
        slot: the last slot of the match.
        match: its length.
        tail: the request's last tokens, newest first.
    """
    for _ in range(match):
        slot = _before(views[2], page_bits, slot)
    if slot == NONE:
        return 0
    longest = _match(views, page_bits, slot, tail, match + 1, 8)  # inserted in the tail
    slot = _before(views[2], page_bits, slot)
    if slot != NONE:
        longest = max(longest, _match(views, page_bits, slot, tail, match + 1, 8))  # replaced
        longest = max(longest, _match(views, page_bits, slot, tail, match, 8))  # left out
    return (longest > 0) + (longest > 2) + (longest > 6)


@kernel
def _distance_class(distance: int) -> int:
    """Sort a signed distance from the expected place into 13 classes, from 1."""
    if distance >= 0:
        if distance <= 2:
            return 1 + distance
        steps = (distance > 4) + (distance > 8) + (distance > 16) + (distance > 64)
        return 4 + steps + (distance > 256)
    return 10 + (distance < -2) + (distance < -8) + (distance < -64)


@kernel
def _place_weight(
    arena: IntArray, views: Views, model: FloatArray, row: int, slot: int, rank: int, kind: int
) -> float:
    """Return the part of a place's weight that does not change down the tree.

    Args:
        arena: the pool.
        views: its regions.
        model: the tables of weights.
        row: the request that drafts.
        slot: the first token behind the place.
        rank: how many places of its level came first.
        kind: plain, replaced or inserted.
    """
    _, _, pages, rows = views
    page = slot >> int(arena[PAGE_BITS])
    offset = slot & ((1 << int(arena[PAGE_BITS])) - 1)
    own = pages[page, OWNER] == rows[row, SERIAL]
    position = int(pages[page, POSITION]) + offset
    region = 2 * own + (offset >= pages[page, OUTPUT])
    if own:
        age = int(rows[row, LENGTH]) - position
    else:
        age = (int(arena[CLOCK]) - int(pages[page, STAMP]) - offset) & MAX_CLOCK
    age_class = 0
    while age > 8 and age_class < 11:
        age >>= 1
        age_class += 1
    expected = _linked_slot(arena, pages, int(rows[row, POINTER]))
    distance_class = 0
    if expected != NONE:
        there = expected >> int(arena[PAGE_BITS])
        distance_class = 13
        if pages[there, OWNER] == pages[page, OWNER]:
            expected &= (1 << int(arena[PAGE_BITS])) - 1
            distance_class = _distance_class(position - int(pages[there, POSITION]) - expected)
    rank_class = min(rank, 1) + (rank > 1) + (rank > 3) + (rank > 7)
    return float(
        model[RANK + (region * 5 + rank_class) * KINDS + kind]
        * model[AGE + region * 12 + age_class]
        * model[DISTANCE + distance_class]
    )


@kernel
def _find_plain(
    arena: IntArray,
    views: Views,
    model: FloatArray,
    row: int,
    last: int,
    tail: IntArray,
    places: LongArray,
    weights: FloatArray,
) -> int:
    """Walk the chains of the last token, longest k first, and return how many places were found.

    Args:
        arena: the pool.
        views: its regions.
        model: the tables of weights.
        row: the request.
        last: the slot of its last token.
        tail: its last tokens, newest first.
        places: ``(max_places, PLACE_FIELDS)`` int64, overwritten; it ends the search when full.
        weights: ``(max_places,)`` float64, overwritten.
    """
    tokens, links, pages, rows = views
    page_bits = int(arena[PAGE_BITS])
    count = 0
    longer_k = tail.size + 1
    for level in range(links.shape[1]):
        k = int(arena[FIRST_LEVEL + level])
        slot = _linked_slot(arena, pages, int(links[last, level]))
        rank = 0
        for _ in range(arena[FIRST_VISITS + level]):
            if slot == NONE or count == places.shape[0]:
                break
            page = slot >> page_bits
            if pages[page, PAGE_NAMESPACE] == rows[row, NAMESPACE] and (
                (slot & ((1 << page_bits) - 1)) < pages[page, USED]
            ):
                match = _match(views, page_bits, slot, tail, 0, tail.size)
                following = _after(pages, page_bits, slot)
                # A match as long as the level before asks for was met there.
                if k <= match < longer_k and following != NONE and tokens[following] >= 0:
                    near = 0
                    if match < 16:
                        near = _near_class(views, page_bits, slot, match, tail)
                    own = pages[page, OWNER] == rows[row, SERIAL]
                    places[count, AT] = following
                    places[count, RESTART] = following if own else NONE
                    places[count, MATCH] = match
                    places[count, KIND] = PLAIN
                    places[count, VOTES] = VOTE + near * LENGTHS
                    weights[count] = _place_weight(arena, views, model, row, following, rank, PLAIN)
                    count += 1
                    rank += 1
            slot = _linked_slot(arena, pages, int(links[slot, level]))
        longer_k = k
    return count


@kernel
def _find_skipped(
    arena: IntArray,
    views: Views,
    model: FloatArray,
    row: int,
    last: int,
    tail: IntArray,
    places: LongArray,
    weights: FloatArray,
    count: int,
) -> int:
    """Add the places where the text before the last token stood, and return the new count.

    Each gives two places: the last token was put in before what stood there, or in its stead. Only
    the levels of two to four tokens are walked: longer matches are among theirs.

    Args:
        arena: the pool.
        views: its regions.
        model: the tables of weights.
        row: the request.
        last: the slot of its last token.
        tail: its last tokens, newest first.
        places: ``(max_places, PLACE_FIELDS)`` int64, written from ``count`` on.
        weights: ``(max_places,)`` float64, written from ``count`` on.
        count: places found so far.
    """
    tokens, links, pages, rows = views
    page_bits = int(arena[PAGE_BITS])
    before_last = _before(pages, page_bits, last)
    if before_last == NONE or tail.size < 2:
        return count
    longer_k = tail.size + 1
    rank = 0
    for level in range(links.shape[1]):
        k = int(arena[FIRST_LEVEL + level])
        if k > 4 or k < 2:
            continue
        slot = _linked_slot(arena, pages, int(links[before_last, level]))
        for _ in range(arena[MAX_SKIP_VISITS]):
            if slot == NONE or count + 2 > places.shape[0]:
                break
            page = slot >> page_bits
            following = NONE
            if pages[page, PAGE_NAMESPACE] == rows[row, NAMESPACE] and (
                (slot & ((1 << page_bits) - 1)) < pages[page, USED]
            ):
                following = _after(pages, page_bits, slot)
            if following != NONE and tokens[following] >= 0 and tokens[following] != tail[0]:
                match = _match(views, page_bits, slot, tail, 1, tail.size)
                if k <= match < longer_k:
                    kind = REPLACED
                    at = _after(pages, page_bits, following)
                    while kind <= INSERTED:
                        if at != NONE and tokens[at] >= 0:
                            own = pages[at >> page_bits, OWNER] == rows[row, SERIAL]
                            places[count, AT] = at
                            places[count, RESTART] = at if own else NONE
                            places[count, MATCH] = match
                            places[count, KIND] = kind
                            places[count, VOTES] = VOTE + kind * NEARS * LENGTHS
                            weights[count] = _place_weight(arena, views, model, row, at, rank, kind)
                            count += 1
                        at = following
                        kind += 1
                    rank += 1
            slot = _linked_slot(arena, pages, int(links[slot, level]))
        longer_k = k
    return count


@kernel
def _expect(
    arena: IntArray, pages: IntArray, rows: IntArray, row: int, places: LongArray, count: int
) -> None:
    """Note the place of the longest plain match: the text is expected to go on along it."""
    best = NONE
    for place in range(count):
        longest = 3 if best == NONE else int(places[best, MATCH])
        if places[place, KIND] == PLAIN and places[place, MATCH] > longest:
            best = place
    if best != NONE:
        slot = int(places[best, AT])
        generation = int(pages[slot >> int(arena[PAGE_BITS]), GENERATION])
        rows[row, POINTER] = (generation << int(arena[SLOT_BITS])) | slot


@kernel
def search(
    arena: IntArray, model: FloatArray, batch: IntArray, places: LongArray, weights: FloatArray
) -> None:
    """Find the places of each request of a batch.

    Args:
        arena: the pool; the rows' pointers are mutated.
        model: ``(NUM_WEIGHTS,)`` float64, the tables of weights.
        batch: ``(num_requests, REQUEST_FIELDS)`` int32; the numbers of places are written.
        places: ``(max_requests, max_places, PLACE_FIELDS)`` int64, overwritten.
        weights: ``(max_requests, max_places)`` float64, overwritten.
    """
    views = _views(arena)
    tokens, _, pages, rows = views
    page_bits = int(arena[PAGE_BITS])
    buffer = np.empty(int(arena[MAX_MATCH]), np.int32)
    for i in range(batch.shape[0]):
        batch[i, FOUND] = 0
        row = int(batch[i, ROW])
        page = NONE if row == NONE else int(rows[row, LAST_PAGE])
        if page == NONE:
            continue
        last = (page << page_bits) + int(pages[page, USED]) - 1
        slot = last
        length = 0
        while slot != NONE and length < buffer.size and tokens[slot] >= 0:
            buffer[length] = tokens[slot]
            length += 1
            slot = _before(pages, page_bits, slot)
        if length == 0:
            continue
        tail = buffer[:length]
        count = _find_plain(arena, views, model, row, last, tail, places[i], weights[i])
        count = _find_skipped(arena, views, model, row, last, tail, places[i], weights[i], count)
        _expect(arena, pages, rows, row, places[i], count)
        batch[i, FOUND] = count


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(
        search, "void(int32[::1], float64[::1], int32[:,::1], int64[:,:,::1], float64[:,::1])"
    )
