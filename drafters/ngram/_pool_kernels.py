"""Kernels of the n-gram pool: pages of tokens and chains of equal k-grams.

Everything lives in one int32 array, the arena, so that a call passes one argument. Its regions, in
order: a header, the tokens, the chain links (one a level beside each token), the chain heads (one
a level in each bucket), the pages' fields, the floats (``_weights``; kernels take them as an array
of their own), the requests' rows, room to work in, the rows' last drafts, and the places that the
last search has found. Kernels index it as it is: Numba counts references to views.

A request writes its tokens into pages that belong to it alone, so requests interleave and end in
any order. A slot is written once while its page lives, so every link points to an older token. A
link carries its page's generation: it dies with the page, without anybody looking for it.

Kernels never raise; the class validates. After a change of a constant here or in ``_weights``
``__pycache__`` must go: the other kernels' caches don't see it.

Sources: hash chains as in LZ77 match finders (RFC 1951, section 4); polynomial rolling hash modulo
the Mersenne prime 2**31 - 1 (Karp and Rabin, 1987), whose products fit int64 without overflow;
linear hashing (Litwin, 1980).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]

HEADER_SIZE = 64
NUM_PAGES, PAGE_BITS, SLOT_BITS, BUCKET_BITS, NUM_LEVELS, NUM_ROWS = 0, 1, 2, 3, 4, 5
FRESH_PAGE, QUEUE_HEAD, QUEUE_TAIL, CLOCK = 6, 7, 8, 9
"""Header: the next page never used, the first and the last page that wait to be reclaimed, and how
many tokens were ever appended (modulo 2**31)."""
MAX_MATCH, MAX_SKIP_VISITS, MAX_PLACES, NUM_BUCKETS, HALF, SEARCH_SIZE = 10, 11, 12, 13, 14, 15
"""Header: the buckets in use, the power of two that they have grown from, and how much of the room
to work in one request's search takes."""
FIRST_LEVEL, FIRST_VISITS, FIRST_WEIGHT = 16, 24, 32
"""Header: from here the k of each level, longest first, the places looked at in each, and the
weight in the rolling hash of the token that leaves the window."""
LINKS_AT, HEADS_AT, PAGES_AT, FLOATS_AT, ROWS_AT, ROOM_AT, DRAFTS_AT, PLACES_AT = range(40, 48)
LINE_BITS = 4
"""Header: where the regions begin, in cache lines of sixteen numbers."""
FOUND = 48
"""Header: how many places the last search found."""

PAGE_FIELDS = 16
GENERATION, PAGE_NAMESPACE, OWNER, USED, SEALED, NEXT, PREVIOUS, QUEUE_NEXT = 0, 1, 2, 3, 4, 5, 6, 7
POSITION, OUTPUT, STAMP = 8, 9, 10
"""Page: position of its first token in the request, offset where the output begins (it may lie
outside the page), and the clock when the page was taken."""

ROW_FIELDS = 32
NAMESPACE, SERIAL, FIRST_PAGE, LAST_PAGE, LENGTH, PROMPT_LENGTH = 0, 1, 2, 3, 4, 5
EXPECTED, ANCHOR, ACCEPTED, ACCEPTED_BEFORE, DRAFT_SIZE, DRAFT_CLASS = 6, 7, 8, 9, 10, 11
RUN, FIRST_HASH = 12, 13
"""Row: links to where the text is expected to go on (by the last match of at least four tokens, and
of at least sixteen), the accepted lengths of the last two drafts, the size and the calibration
class of the draft that waits to be settled, how many tokens stand behind the last placeholder (as
far as they are compared; -1 while the hashes must be made anew), and from FIRST_HASH on the levels'
rolling hashes: with three levels all lies in one cache line."""

DRAFT_FIELDS = 2
MAX_DRAFT = 64
DRAFT_ROOM = MAX_DRAFT * DRAFT_FIELDS
DEPTH_BITS, PARENT_BITS = 7, 7
PROBABILITY_UNIT = 2**17 - 1
"""A row's draft: of its first nodes, at most MAX_DRAFT, the token, and in one number, from the
lowest bits on, the depth, the parent plus 1, and the probability in units."""
ASKED_DRAFT = 16 * DRAFT_FIELDS
"""How far a draft is asked for ahead: sixteen nodes."""

PLACE_FIELDS = 6
"""A place that a search found: see ``_search_kernels``."""

MIN_BUCKETS, TOKENS_A_BUCKET = 1 << 14, 2
"""The smaller the table, the fewer of its parts are not in the caches. Text repeats itself, so that
chains hold hardly more of other k-grams than with four times as many buckets."""

NONE = -1
MAX_CLOCK = 2**31 - 1
PRIME = 2**31 - 1
HASH_BASE = 1_270_405_883
BUCKET_MIX, BUCKET_SHIFT = 0x4F1B_BCDC_BFA5_3E0B, 33
"""A bucket's number is the high half of a product with 2**63 over the golden ratio (Fibonacci
hashing, Knuth 6.4): the hashes of runs like 1 2 3, 2 3 4, 3 4 5 lie equally far apart."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int, int, int]:
    """Return where links, heads, pages, rows and drafts begin; the tokens follow the header."""
    return (
        int(arena[u(LINKS_AT)]) << LINE_BITS,
        int(arena[u(HEADS_AT)]) << LINE_BITS,
        int(arena[u(PAGES_AT)]) << LINE_BITS,
        int(arena[u(ROWS_AT)]) << LINE_BITS,
        int(arena[u(DRAFTS_AT)]) << LINE_BITS,
    )


@kernel
def floats_of(arena: IntArray) -> FloatArray:
    """Return the floats: what Python passes in its place takes longer than many a kernel."""
    start, stop = int(arena[u(FLOATS_AT)]) << LINE_BITS, int(arena[u(ROWS_AT)]) << LINE_BITS
    return arena[start:stop].view(np.float64)


@kernel
def _mulmod(a: int, b: int) -> int:
    """Return ``a * b`` modulo the prime; both lie in ``[0, PRIME]``."""
    product = int(a) * int(b)
    product = (product & PRIME) + (product >> 31)
    return product - PRIME if product >= PRIME else product


@kernel
def _fold(value: int) -> int:
    """Return ``value`` modulo the prime; it lies in ``[0, 2 * PRIME + 1]``."""
    value = (value & PRIME) + (value >> 31)
    return value - PRIME if value >= PRIME else value


@kernel
def _last_slot(arena: IntArray, pages: int, page: int) -> int:
    """Return the slot of a page's last token."""
    used = int(arena[u(pages + page * PAGE_FIELDS + USED)])
    return (page << int(arena[u(PAGE_BITS)])) + used - 1


@kernel
def _previous_slot(arena: IntArray, pages: int, slot: int) -> int:
    """Return the slot of the token before ``slot`` in its request, or -1."""
    page_bits = int(arena[u(PAGE_BITS)])
    if slot & ((1 << page_bits) - 1):
        return slot - 1
    page = int(arena[u(pages + (slot >> page_bits) * PAGE_FIELDS + PREVIOUS)])
    return NONE if page == NONE else _last_slot(arena, pages, page)


@kernel
def _retire(arena: IntArray, pages: int, page: int) -> None:
    """End a page's generation: no link leads to it any more."""
    fields = pages + page * PAGE_FIELDS
    generation = int(arena[fields + GENERATION]) + 1
    # A link is 31 bits: the slot below, the generation above; generation 0 is never used.
    wrapped = generation >> (31 - int(arena[SLOT_BITS])) != 0
    arena[fields + GENERATION] = 1 if wrapped else generation
    following = int(arena[fields + NEXT])
    if following != NONE:
        arena[pages + following * PAGE_FIELDS + PREVIOUS] = NONE
    for field in (PAGE_NAMESPACE, NEXT, PREVIOUS):
        arena[fields + field] = NONE
    arena[fields + USED] = arena[fields + SEALED] = 0


@kernel
def take_page(arena: IntArray, pages: int, request: int, position: int) -> int:
    """Give the request a new page, else the oldest finished one, else its own oldest, else -1."""
    page = int(arena[FRESH_PAGE])
    if page < arena[NUM_PAGES]:
        arena[FRESH_PAGE] = page + 1
    elif arena[QUEUE_HEAD] != NONE:
        page = int(arena[QUEUE_HEAD])
        following = arena[pages + page * PAGE_FIELDS + NEXT]
        if following == NONE:
            following = arena[pages + page * PAGE_FIELDS + QUEUE_NEXT]
        arena[QUEUE_HEAD] = following
        if following == NONE:
            arena[QUEUE_TAIL] = NONE
    elif arena[request + FIRST_PAGE] != NONE:
        page = int(arena[request + FIRST_PAGE])
        arena[request + FIRST_PAGE] = arena[pages + page * PAGE_FIELDS + NEXT]
        if arena[request + FIRST_PAGE] == NONE:
            arena[request + LAST_PAGE] = NONE
        arena[request + RUN] = NONE  # the hashes may cover tokens that go
    else:
        return NONE
    _retire(arena, pages, page)
    fields, last = pages + page * PAGE_FIELDS, int(arena[request + LAST_PAGE])
    arena[fields + PAGE_NAMESPACE] = arena[request + NAMESPACE]
    arena[fields + OWNER] = arena[request + SERIAL]
    arena[fields + POSITION] = position
    arena[fields + OUTPUT] = arena[request + PROMPT_LENGTH] - position
    arena[fields + PREVIOUS] = last
    if last == NONE:
        arena[request + FIRST_PAGE] = page
    else:
        arena[pages + last * PAGE_FIELDS + NEXT] = page
    arena[request + LAST_PAGE] = page
    return page


@kernel
def add_buckets(arena: IntArray, heads: int) -> None:
    """Let the table of chain heads grow with the pages in use, to its full size at most.

    Bucket ``b`` splits off ``b + HALF``, which begins with the same chain: no growth takes long.
    """
    num_levels = int(arena[NUM_LEVELS])
    wanted = (int(arena[FRESH_PAGE]) << int(arena[PAGE_BITS])) // TOKENS_A_BUCKET
    most = min(1 << int(arena[BUCKET_BITS]), wanted)
    half = int(arena[HALF])
    for bucket in range(int(arena[NUM_BUCKETS]), most):
        if bucket == 2 * half:
            half = bucket
        for head in range(heads + num_levels * bucket, heads + num_levels * (bucket + 1)):
            arena[head] = arena[head - num_levels * half]
    if most > arena[NUM_BUCKETS]:
        arena[NUM_BUCKETS] = most
        arena[HALF] = half


@kernel
def start_hashes(arena: IntArray, pages: int, request: int) -> None:
    """Make the rolling hashes of a request's last tokens anew."""
    tail = np.empty(int(arena[MAX_MATCH]), np.int32)  # newest first, up to a placeholder
    count, slot, page = 0, NONE, int(arena[request + LAST_PAGE])
    if page != NONE and arena[pages + page * PAGE_FIELDS + USED] == 0:  # taken just now
        page = int(arena[pages + page * PAGE_FIELDS + PREVIOUS])
    if page != NONE:
        slot = _last_slot(arena, pages, page)
    while slot != NONE and count < tail.size and arena[HEADER_SIZE + slot] >= 0:
        tail[count] = arena[HEADER_SIZE + slot]
        count += 1
        slot = _previous_slot(arena, pages, slot)
    arena[request + RUN] = count
    for level in range(int(arena[NUM_LEVELS])):
        value = 0
        for back in range(min(int(arena[FIRST_LEVEL + level]), count) - 1, -1, -1):
            value = _fold(_mulmod(value, HASH_BASE) + int(tail[back]) + 1)
        arena[request + FIRST_HASH + level] = value


@kernel
def release(arena: IntArray, row: int) -> None:
    """End a request: its pages stay searchable and wait, behind all earlier ones, for reclaim."""
    _, _, pages, rows, _ = _offsets(arena)
    request = rows + row * ROW_FIELDS
    first, last = int(arena[request + FIRST_PAGE]), int(arena[request + LAST_PAGE])
    if first == NONE:
        return
    arena[pages + last * PAGE_FIELDS + QUEUE_NEXT] = NONE
    if arena[QUEUE_HEAD] == NONE:
        arena[QUEUE_HEAD] = first
    else:
        arena[pages + int(arena[QUEUE_TAIL]) * PAGE_FIELDS + QUEUE_NEXT] = first
    arena[QUEUE_TAIL] = last
    arena[request + FIRST_PAGE] = NONE
    arena[request + LAST_PAGE] = NONE


@kernel
def truncate(arena: IntArray, row: int, length: int) -> None:
    """Forget a request's tokens from position ``length`` on.

    A page that loses its end is sealed, and the next token opens another, because a slot is written
    once a generation; a page that loses all goes to the front of the reclaim queue.
    """
    _, _, pages, rows, _ = _offsets(arena)
    request = rows + row * ROW_FIELDS
    excess = int(arena[request + LENGTH]) - length
    if excess <= 0:
        return
    arena[request + LENGTH] = length
    arena[request + DRAFT_SIZE] = 0
    page = int(arena[request + LAST_PAGE])
    while page != NONE and arena[pages + page * PAGE_FIELDS + USED] <= excess:
        fields = pages + page * PAGE_FIELDS
        excess -= int(arena[fields + USED])
        previous = int(arena[fields + PREVIOUS])
        _retire(arena, pages, page)
        arena[fields + QUEUE_NEXT] = arena[QUEUE_HEAD]
        arena[QUEUE_HEAD] = page
        if arena[QUEUE_TAIL] == NONE:
            arena[QUEUE_TAIL] = page
        if previous != NONE:
            arena[pages + previous * PAGE_FIELDS + NEXT] = NONE
        page = previous
    arena[request + LAST_PAGE] = page
    if page == NONE:
        arena[request + FIRST_PAGE] = NONE
    elif excess > 0:
        arena[pages + page * PAGE_FIELDS + USED] -= excess
        arena[pages + page * PAGE_FIELDS + SEALED] = 1
    start_hashes(arena, pages, request)


def compile_kernels() -> None:
    """Compile every kernel that Python or another file calls, for its one signature."""
    compile_once(take_page, "int64(int32[::1], int64, int64, int64)")
    compile_once(add_buckets, "void(int32[::1], int64)")
    compile_once(start_hashes, "void(int32[::1], int64, int64)")
    compile_once(release, "void(int32[::1], int64)")
    compile_once(truncate, "void(int32[::1], int64, int64)")
