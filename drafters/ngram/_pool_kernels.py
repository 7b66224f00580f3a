"""Kernels of the n-gram pool: pages of tokens and chains of equal k-grams.

Everything lives in one int32 array, the arena, so that a call passes one argument. Its regions, in
order: a header, the tokens, the chain links (one a level beside each token), the chain heads (a
hash table a level), the pages' fields, the requests' rows, their last drafts, and room for the
places that a search finds. ``_regions`` cuts it into views.

A request writes its tokens into pages that belong to it alone, so requests interleave and end in
any order. A slot is written once while its page lives, so every link points to an older token. A
link carries its page's generation: it dies with the page, without anybody looking for it.

Kernels never raise; the class validates. Whoever changes a constant here or in ``_ngram_weights``
must remove ``__pycache__``: the other kernels' caches don't see it.

Source: hash chains as in LZ77 match finders (RFC 1951, section 4); polynomial rolling hash modulo
the Mersenne prime 2**31 - 1 (Karp and Rabin, 1987), whose products fit int64 without overflow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Regions = tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]

HEADER_SIZE = 64
NUM_PAGES, PAGE_BITS, SLOT_BITS, BUCKET_BITS, NUM_LEVELS, NUM_ROWS = 0, 1, 2, 3, 4, 5
FRESH_PAGE, QUEUE_HEAD, QUEUE_TAIL, CLOCK = 6, 7, 8, 9
"""Header: the next page never used, the first and the last page that wait to be reclaimed, and how
many tokens were ever appended (modulo 2**31)."""
MAX_MATCH, MAX_SKIP_VISITS = 10, 11
FIRST_LEVEL, FIRST_VISITS = 16, 24
"""Header: from here the k of each level, longest first, and the places looked at in each."""

PAGE_FIELDS = 12
GENERATION, PAGE_NAMESPACE, OWNER, USED, SEALED, NEXT, PREVIOUS, QUEUE_NEXT = 0, 1, 2, 3, 4, 5, 6, 7
POSITION, OUTPUT, STAMP = 8, 9, 10
"""Page: position of its first token in the request, offset where the output begins (it may lie
outside the page), and the clock when the page was taken."""

ROW_FIELDS = 16
NAMESPACE, SERIAL, FIRST_PAGE, LAST_PAGE, LENGTH, PROMPT_LENGTH = 0, 1, 2, 3, 4, 5
EXPECTED, ANCHOR, ACCEPTED, ACCEPTED_BEFORE, DRAFT_SIZE, DRAFT_CLASS = 6, 7, 8, 9, 10, 11
"""Row: links to where the text is expected to go on (by the last match of at least four tokens, and
of at least sixteen), the accepted lengths of the last two drafts,
and the size and the calibration class of the draft that waits to be settled."""

DRAFT_FIELDS = 3
MAX_DRAFT = 64
PROBABILITY_UNIT = 2**30
"""A row's draft: token, parent and probability (in units) of its first nodes, at most MAX_DRAFT."""

PLACE_FIELDS = 6
"""A place that a search found: see ``_search_kernels``."""

KNOTS = 16
"""Intervals of the probability in the calibration (``calibration``)."""

NONE = -1
MAX_CLOCK = 2**31 - 1
PRIME = 2**31 - 1
HASH_BASE = 1_270_405_883
BUCKET_MIX = 1_640_531_527


@kernel
def _regions(arena: IntArray) -> Regions:
    """Cut the arena into tokens, links, heads, pages, rows and drafts."""
    num_pages = np.int64(arena[NUM_PAGES])
    num_levels = np.int64(arena[NUM_LEVELS])
    num_rows = np.int64(arena[NUM_ROWS])
    num_slots = num_pages << int(arena[PAGE_BITS])
    num_buckets = 1 << int(arena[BUCKET_BITS])
    a = HEADER_SIZE + num_slots
    b = a + num_slots * num_levels
    c = b + num_buckets * num_levels
    d = c + num_pages * PAGE_FIELDS
    e = d + num_rows * ROW_FIELDS
    return (
        arena[HEADER_SIZE:a],
        arena[a:b].reshape((num_slots, num_levels)),
        arena[b:c].reshape((num_levels, num_buckets)),
        arena[c:d].reshape((num_pages, PAGE_FIELDS)),
        arena[d:e].reshape((num_rows, ROW_FIELDS)),
        arena[e : e + num_rows * MAX_DRAFT * DRAFT_FIELDS].reshape((num_rows, -1)),
    )


@kernel
def _mulmod(a: int, b: int) -> int:
    """Return ``a * b`` modulo the prime; both lie in ``[0, PRIME]``."""
    product = int(a) * int(b)
    product = (product & PRIME) + (product >> 31)
    return product - PRIME if product >= PRIME else product


@kernel
def _previous_slot(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token before ``slot`` in its request, or -1."""
    if slot & ((1 << page_bits) - 1):
        return slot - 1
    page = int(pages[slot >> page_bits, PREVIOUS])
    return NONE if page == NONE else (page << page_bits) + pages[page, USED] - 1


@kernel
def _last_slot(pages: IntArray, rows: IntArray, page_bits: int, row: int) -> int:
    """Return the slot of the request's last token, or -1."""
    page = int(rows[row, LAST_PAGE])
    return NONE if page == NONE else (page << page_bits) + pages[page, USED] - 1


@kernel
def _retire(arena: IntArray, pages: IntArray, page: int) -> None:
    """End a page's generation: no link leads to it any more."""
    generation = int(pages[page, GENERATION]) + 1
    # A link is 31 bits: the slot below, the generation above; generation 0 is never used.
    wrapped = generation >> (31 - int(arena[SLOT_BITS])) != 0
    pages[page, GENERATION] = 1 if wrapped else generation
    following = pages[page, NEXT]
    if following != NONE:
        pages[following, PREVIOUS] = NONE
    pages[page, PAGE_NAMESPACE] = NONE
    pages[page, USED] = 0
    pages[page, SEALED] = 0
    pages[page, NEXT] = NONE
    pages[page, PREVIOUS] = NONE


@kernel
def _take_page(arena: IntArray, pages: IntArray, rows: IntArray, row: int, position: int) -> int:
    """Give the request a new page, else the oldest finished one, else its own oldest, else -1."""
    page = int(arena[FRESH_PAGE])
    if page < arena[NUM_PAGES]:
        arena[FRESH_PAGE] = page + 1
    elif arena[QUEUE_HEAD] != NONE:
        page = int(arena[QUEUE_HEAD])
        following = pages[page, NEXT]
        arena[QUEUE_HEAD] = following if following != NONE else pages[page, QUEUE_NEXT]
        if arena[QUEUE_HEAD] == NONE:
            arena[QUEUE_TAIL] = NONE
    elif rows[row, FIRST_PAGE] != NONE:
        page = int(rows[row, FIRST_PAGE])
        rows[row, FIRST_PAGE] = pages[page, NEXT]
        if rows[row, FIRST_PAGE] == NONE:
            rows[row, LAST_PAGE] = NONE
    else:
        return NONE
    _retire(arena, pages, page)
    last = rows[row, LAST_PAGE]
    pages[page, PAGE_NAMESPACE] = rows[row, NAMESPACE]
    pages[page, OWNER] = rows[row, SERIAL]
    pages[page, POSITION] = position
    pages[page, OUTPUT] = rows[row, PROMPT_LENGTH] - position
    pages[page, PREVIOUS] = last
    if last == NONE:
        rows[row, FIRST_PAGE] = page
    else:
        pages[last, NEXT] = page
    rows[row, LAST_PAGE] = page
    return page


@kernel
def _copy_tail(regions: Regions, page_bits: int, row: int, tail: IntArray) -> int:
    """Copy the request's last tokens, newest first, up to a placeholder; return how many."""
    tokens, _, _, pages, rows, _ = regions
    slot = _last_slot(pages, rows, page_bits, row)
    count = 0
    while slot != NONE and count < tail.size and tokens[slot] >= 0:
        tail[count] = tokens[slot]
        count += 1
        in_page = slot & ((1 << page_bits) - 1)
        slot = slot - 1 if in_page else _previous_slot(pages, page_bits, slot)
    return count


@kernel
def _start_hashes(
    arena: IntArray, regions: Regions, row: int, recent: IntArray, state: LongArray
) -> int:
    """Prepare the rolling hashes of a request's last tokens; return how many tokens they cover.

    Args:
        arena: the pool.
        regions: its regions.
        row: the request's row.
        recent: ``(max_k,)`` int32, overwritten: token i of the covered ones at i.
        state: ``(num_levels, 3)`` int64, overwritten: hash, weight of the token that leaves the
            window, salt of the namespace.
    """
    tail = np.empty(recent.size, np.int32)
    count = _copy_tail(regions, int(arena[PAGE_BITS]), row, tail)
    for i in range(count):
        recent[i] = tail[count - 1 - i]
    salt = _mulmod((int(regions[4][row, NAMESPACE]) + 1) % PRIME, HASH_BASE)
    for level in range(state.shape[0]):
        k = int(arena[FIRST_LEVEL + level])
        value = 0
        weight = 1
        for i in range(k):
            weight = _mulmod(weight, HASH_BASE)
            if i >= k - count:
                value = (_mulmod(value, HASH_BASE) + int(recent[count - k + i]) + 1) % PRIME
        state[level, 0] = value
        state[level, 1] = weight
        state[level, 2] = salt
    return count


@kernel
def _settle(rows: IntArray, draft: IntArray, row: int, new: IntArray, counts: FloatArray) -> None:
    """Compare the request's last draft with the tokens that were committed after it.

    Where the draft agrees with all of them, what lies deeper is unknown and not counted.

    Args:
        rows: the pool's rows; the accepted lengths are mutated.
        draft: the row's draft.
        row: the request's row.
        new: ``(num_new,)`` int32, at least one.
        counts: ``(num_classes, KNOTS + 1, 2)`` float64: how often a knot was used and the sum of
            the outcomes (0 or 1) less the predictions there, mutated.
    """
    size = int(rows[row, DRAFT_SIZE])
    rows[row, DRAFT_SIZE] = 0
    depths = np.empty(size, np.int64)  # negative: not accepted
    reached = 0
    for node in range(size):
        parent = int(draft[DRAFT_FIELDS * node + 1])
        above = 0 if parent == NONE else int(depths[parent])
        depth = abs(above) + 1
        hit = above >= 0 and depth <= new.size and draft[DRAFT_FIELDS * node] == new[depth - 1]
        depths[node] = depth if hit else -depth
        if hit:
            reached = max(reached, depth)
    rows[row, ACCEPTED_BEFORE] = rows[row, ACCEPTED]
    rows[row, ACCEPTED] = reached
    draft_class = int(rows[row, DRAFT_CLASS])
    for node in range(size):
        if reached == new.size and abs(depths[node]) > new.size:
            continue
        predicted = draft[DRAFT_FIELDS * node + 2] / PROBABILITY_UNIT
        knot = min(int(predicted * KNOTS), KNOTS - 1)
        part = predicted * KNOTS - knot
        outcome = 1.0 if depths[node] > 0 else 0.0
        counts[draft_class, knot, 0] += 1.0 - part
        counts[draft_class, knot, 1] += (1.0 - part) * (outcome - predicted)
        counts[draft_class, knot + 1, 0] += part
        counts[draft_class, knot + 1, 1] += part * (outcome - predicted)


@kernel
def append(arena: IntArray, row: int, new: IntArray, counts: FloatArray) -> None:
    """Append committed tokens to a request, and enter each into the chain of every level.

    Args:
        arena: the pool, mutated.
        row: the request's row.
        new: ``(num_new,)`` int32.
        counts: ``(num_classes, KNOTS + 1, 2)`` float64, the calibration's counts, mutated.
    """
    regions = _regions(arena)
    tokens, links, heads, pages, rows, drafts = regions
    if new.size > 0 and rows[row, DRAFT_SIZE] > 0:
        _settle(rows, drafts[row], row, new, counts)
    page_bits = int(arena[PAGE_BITS])
    bucket_shift = 31 - int(arena[BUCKET_BITS])
    max_k = int(arena[FIRST_LEVEL])
    recent = np.empty(max_k, np.int32)  # a ring
    state = np.empty((links.shape[1], 3), np.int64)
    run = _start_hashes(arena, regions, row, recent, state)
    position = run
    page = int(rows[row, LAST_PAGE])
    used = 1 << page_bits  # full: the first token opens a page
    if page != NONE and pages[page, SEALED] == 0:
        used = int(pages[page, USED])
    length = int(rows[row, LENGTH])
    rows[row, LENGTH] = length + new.size
    clock = int(arena[CLOCK])
    arena[CLOCK] = (clock + new.size) & MAX_CLOCK
    for i in range(new.size):
        if used >> page_bits:
            page = _take_page(arena, pages, rows, row, length + i)
            if page == NONE:
                return
            pages[page, STAMP] = (clock + i) & MAX_CLOCK
            used = 0
        token = int(new[i])
        slot = (page << page_bits) + used
        tokens[slot] = token
        used += 1
        pages[page, USED] = used
        if token < 0:
            run = 0
            for level in range(links.shape[1]):
                state[level, 0] = 0
                links[slot, level] = 0
            continue
        link = (int(pages[page, GENERATION]) << int(arena[SLOT_BITS])) | slot
        for level in range(links.shape[1]):
            k = int(arena[FIRST_LEVEL + level])
            value = (_mulmod(state[level, 0], HASH_BASE) + token + 1) % PRIME
            if run >= k:
                gone = (int(recent[(position - k) % max_k]) + 1) % PRIME
                value = (value + PRIME - _mulmod(gone, state[level, 1])) % PRIME
            state[level, 0] = value
            links[slot, level] = 0
            if run + 1 >= k:
                mixed = _mulmod((value + state[level, 2]) % PRIME, BUCKET_MIX)
                links[slot, level] = heads[level, mixed >> bucket_shift]
                heads[level, mixed >> bucket_shift] = link
        recent[position % max_k] = token
        position += 1
        run = min(run + 1, max_k)


@kernel
def release(arena: IntArray, row: int) -> None:
    """End a request: its pages stay searchable and wait, behind all earlier ones, for reclaim."""
    _, _, _, pages, rows, _ = _regions(arena)
    first = int(rows[row, FIRST_PAGE])
    if first == NONE:
        return
    last = int(rows[row, LAST_PAGE])
    pages[last, QUEUE_NEXT] = NONE
    if arena[QUEUE_HEAD] == NONE:
        arena[QUEUE_HEAD] = first
    else:
        pages[arena[QUEUE_TAIL], QUEUE_NEXT] = first
    arena[QUEUE_TAIL] = last
    rows[row, FIRST_PAGE] = NONE
    rows[row, LAST_PAGE] = NONE


@kernel
def truncate(arena: IntArray, row: int, length: int) -> None:
    """Forget a request's tokens from position ``length`` on.

    A page that loses only its end is sealed, and the next token opens another one, because a slot
    is written once a generation; a page that loses all goes to the front of the reclaim queue.
    """
    _, _, _, pages, rows, _ = _regions(arena)
    excess = int(rows[row, LENGTH]) - length
    if excess <= 0:
        return
    rows[row, LENGTH] = length
    rows[row, DRAFT_SIZE] = 0
    page = int(rows[row, LAST_PAGE])
    while page != NONE and pages[page, USED] <= excess:
        excess -= pages[page, USED]
        previous = int(pages[page, PREVIOUS])
        _retire(arena, pages, page)
        pages[page, QUEUE_NEXT] = arena[QUEUE_HEAD]
        arena[QUEUE_HEAD] = page
        if arena[QUEUE_TAIL] == NONE:
            arena[QUEUE_TAIL] = page
        if previous != NONE:
            pages[previous, NEXT] = NONE
        page = previous
    rows[row, LAST_PAGE] = page
    if page == NONE:
        rows[row, FIRST_PAGE] = NONE
    elif excess > 0:
        pages[page, USED] -= excess
        pages[page, SEALED] = 1


def compile_kernels() -> None:
    """Compile every kernel that Python calls, for its one signature."""
    compile_once(append, "void(int32[::1], int64, int32[::1], float64[:,:,::1])")
    compile_once(release, "void(int32[::1], int64)")
    compile_once(truncate, "void(int32[::1], int64, int64)")
