"""Kernels of the n-gram pool that take in tokens: hashes, buckets, chains.

Tokens are taken in by blocks: first the bucket of every k-gram is found and asked for, then each is
entered into its chain. So a block waits for memory once.

The arena's layout and the hashes are those of ``_pool_kernels``.
"""

from __future__ import annotations

from collections.abc import Callable

from .._jit import compile_once, kernel, prefetch, u
from . import _settle_kernels as settler
from ._pool_kernels import (
    ASKED_DRAFT,
    BUCKET_MIX,
    BUCKET_SHIFT,
    CLOCK,
    DRAFT_ROOM,
    DRAFT_SIZE,
    DRAFTS_AT,
    FIRST_HASH,
    FIRST_LEVEL,
    FIRST_WEIGHT,
    GENERATION,
    HALF,
    HASH_BASE,
    HEADER_SIZE,
    HEADS_AT,
    LAST_PAGE,
    LENGTH,
    LINE_BITS,
    LINKS_AT,
    MAX_CLOCK,
    MAX_MATCH,
    NAMESPACE,
    NONE,
    NUM_BUCKETS,
    NUM_LEVELS,
    PAGE_BITS,
    PAGE_FIELDS,
    PAGES_AT,
    PREVIOUS,
    PRIME,
    ROOM_AT,
    ROW_FIELDS,
    ROWS_AT,
    RUN,
    SEALED,
    SLOT_BITS,
    STAMP,
    USED,
    FloatArray,
    IntArray,
    add_buckets,
    floats_of,
    start_hashes,
    take_page,
)
from ._settle_kernels import settle

BLOCK = 32
"""Tokens whose buckets are found at once."""
LANES = 4
"""Blocks that wait at once, each of another request, until the heads of their chains are there. The
room to work in holds them."""
LINK, COUNT, BUCKETS = 0, 1, 2
"""A lane: the link to its block's first token, how many tokens that has, and from here on their
buckets."""

IngestAlone = Callable[[IntArray, int, IntArray], None]
IngestAll = Callable[[IntArray, IntArray, int], None]


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
def _token_back(arena: IntArray, pages: int, slot: int, back: int) -> int:
    """Return the token ``back`` places before ``slot`` in its request; it is there."""
    mask = (1 << int(arena[u(PAGE_BITS)])) - 1
    while back > slot & mask:
        back -= (slot & mask) + 1
        slot = _previous_slot(arena, pages, slot - (slot & mask))
    return int(arena[u(HEADER_SIZE + slot - back)])


@kernel
def _find_buckets(
    arena: IntArray, pages: int, heads: int, request: int, slot: int, count: int, buckets: int
) -> None:
    """Find the bucket of every k-gram that ends in a block of tokens, and ask for its chain's head.

    Args:
        arena: the pool; the request's rolling hashes go on to the end of the block.
        pages: where the pages' fields begin.
        heads: where the heads of the chains begin.
        request: where the request's fields begin.
        slot: where the block begins, in one page; the tokens are there.
        count: how many there are.
        buckets: where they are written, token by token, level by level; -1 for no k-gram.
    """
    mask = (1 << int(arena[u(PAGE_BITS)])) - 1
    num_levels, max_run = int(arena[u(NUM_LEVELS)]), int(arena[u(MAX_MATCH)])
    num_buckets, half = int(arena[u(NUM_BUCKETS)]), int(arena[u(HALF)])
    salt = _mulmod(_fold(int(arena[u(request + NAMESPACE)]) + 1), HASH_BASE)
    run = 0
    for level in range(num_levels):
        k, weight = int(arena[u(FIRST_LEVEL + level)]), int(arena[u(FIRST_WEIGHT + level)])
        run = int(arena[u(request + RUN)])
        value = int(arena[u(request + FIRST_HASH + level)])
        for at in range(slot, slot + count):
            token = int(arena[u(HEADER_SIZE + at)])
            bucket = NONE
            if token < 0:
                value = run = 0
            else:
                value = _fold(_mulmod(value, HASH_BASE) + token + 1)
                if run >= k:
                    if k <= at & mask:
                        gone = int(arena[u(HEADER_SIZE + at - k)])
                    else:
                        gone = _token_back(arena, pages, at, k)
                    value = _fold(value + PRIME - _mulmod(_fold(gone + 1), weight))
                if run + 1 >= k:
                    bucket = ((value + salt) * BUCKET_MIX >> BUCKET_SHIFT) & (2 * half - 1)
                    if bucket >= num_buckets:
                        bucket -= half
                    prefetch(arena, u(heads + bucket * num_levels + level))
                run = min(run + 1, max_run)
            arena[u(buckets + (at - slot) * num_levels + level)] = bucket
        arena[u(request + FIRST_HASH + level)] = value
    arena[u(request + RUN)] = run


@kernel
def _write_block(
    arena: IntArray, request: int, page: int, used: int, new: IntArray, begin: int, count: int,
    lane: int,
) -> None:  # fmt: skip
    """Write a block of tokens behind a request's last, and ask for the heads of their chains.

    Args:
        arena: the pool, mutated.
        request: where the request's fields begin.
        page: its last page, which has room for the block.
        used: how many tokens are in it.
        new: int32, among others the tokens.
        begin: where in ``new`` they begin.
        count: how many they are, at most ``BLOCK``.
        lane: where the block waits to be entered; nothing waits there.
    """
    _, heads, pages, _, _ = _offsets(arena)
    fields = pages + page * PAGE_FIELDS
    slot = (page << int(arena[u(PAGE_BITS)])) + used
    for i in range(count):
        arena[u(HEADER_SIZE + slot + i)] = new[u(begin + i)]
    arena[u(fields + USED)] = used + count
    arena[u(lane + LINK)] = (int(arena[u(fields + GENERATION)]) << int(arena[u(SLOT_BITS)])) | slot
    arena[u(lane + COUNT)] = count
    _find_buckets(arena, pages, heads, request, slot, count, lane + BUCKETS)


@kernel
def _enter_block(arena: IntArray, lane: int) -> None:
    """Enter the tokens of the block that waits in a lane, if any, into the chain of every level."""
    links, heads, _, _, _ = _offsets(arena)
    num_levels, link = int(arena[u(NUM_LEVELS)]), int(arena[u(lane + LINK)])
    slot = link & ((1 << int(arena[u(SLOT_BITS)])) - 1)
    for i in range(int(arena[u(lane + COUNT)])):
        for level in range(num_levels):
            bucket = int(arena[u(lane + BUCKETS + i * num_levels + level)])
            place = links + (slot + i) * num_levels + level
            if bucket == NONE:
                arena[u(place)] = 0
            else:
                head = heads + bucket * num_levels + level
                arena[u(place)] = arena[u(head)]
                arena[u(head)] = link + i
    arena[u(lane + COUNT)] = 0


@kernel
def _lane(arena: IntArray, turn: int) -> int:
    """Return where the lane of a turn begins; that of ``LANES`` turns before is the same."""
    room = int(arena[u(ROOM_AT)]) << LINE_BITS
    return room + turn % LANES * (BUCKETS + BLOCK * int(arena[u(NUM_LEVELS)]))


@kernel
def _clear_lanes(arena: IntArray) -> None:
    """Make all lanes empty."""
    for turn in range(LANES):
        arena[u(_lane(arena, turn) + COUNT)] = 0


@kernel
def _enter_waiting(arena: IntArray, turn: int) -> None:
    """Enter all blocks that wait up to a turn, the oldest first."""
    for earlier in range(turn + 1, turn + 1 + LANES):
        _enter_block(arena, _lane(arena, earlier))


@kernel
def _append(
    arena: IntArray, floats: FloatArray, row: int, new: IntArray, begin: int, stop: int, turn: int
) -> None:
    """Append committed tokens to a request; the last block waits to be entered into its chains.

    Args:
        arena: the pool, mutated.
        floats: as ``_weights`` lays them out; the calibration's counts are mutated.
        row: the request's row.
        new: int32, among others the tokens.
        begin: where in ``new`` they begin.
        stop: where they end.
        turn: how many requests were appended to before in this call.
    """
    _, heads, pages, rows, drafts = _offsets(arena)
    request, lane = rows + row * ROW_FIELDS, _lane(arena, turn)
    page_bits, page = int(arena[u(PAGE_BITS)]), int(arena[u(request + LAST_PAGE)])
    used = 1 << page_bits  # full: the first token opens a page
    if page != NONE and arena[u(pages + page * PAGE_FIELDS + SEALED)] == 0:
        used = int(arena[u(pages + page * PAGE_FIELDS + USED)])
    length, clock, size = int(arena[u(request + LENGTH)]), int(arena[u(CLOCK)]), stop - begin
    arena[u(request + LENGTH)] = length + size
    arena[u(CLOCK)] = (clock + size) & MAX_CLOCK
    _enter_block(arena, lane)
    done = 0
    while done < size:
        if done > 0 or used >> page_bits:
            _enter_waiting(arena, turn)  # before there are more buckets
        if used >> page_bits:
            page = take_page(arena, pages, request, length + done)
            if page == NONE:
                return
            arena[u(pages + page * PAGE_FIELDS + STAMP)] = (clock + done) & MAX_CLOCK
            used = 0
            add_buckets(arena, heads)
            if arena[u(request + RUN)] == NONE:
                start_hashes(arena, pages, request)
        count = min(min(size - done, (1 << page_bits) - used), BLOCK)
        _write_block(arena, request, page, used, new, begin + done, count, lane)
        if done == 0 and arena[u(request + DRAFT_SIZE)] > 0:  # while the heads are fetched
            settle(arena, floats, request, drafts + row * DRAFT_ROOM, new, begin, size)
        used += count
        done += count


@kernel
def append_alone(arena: IntArray, row: int, new: IntArray) -> None:
    """Append committed tokens, ``(num_new,)`` int32, to one request, as ``append_all`` does."""
    _clear_lanes(arena)
    _append(arena, floats_of(arena), row, new, 0, new.size, 0)
    _enter_waiting(arena, 0)


@kernel
def _ask_for_row(arena: IntArray, row: int) -> None:
    """Ask for a request's row and its draft."""
    _, _, _, rows, drafts = _offsets(arena)
    request, draft = rows + row * ROW_FIELDS, drafts + row * DRAFT_ROOM
    prefetch(arena, u(request))
    for line in range(0, ASKED_DRAFT, 16):
        prefetch(arena, u(draft + line))


@kernel
def _ask_for_page(arena: IntArray, row: int) -> None:
    """Ask for the fields of a request's last page."""
    _, _, pages, rows, _ = _offsets(arena)
    page = int(arena[u(rows + row * ROW_FIELDS + LAST_PAGE)])
    prefetch(arena, u(pages + max(page, 0) * PAGE_FIELDS))


@kernel
def _ask_for_end(arena: IntArray, row: int, size: int) -> None:
    """Ask for what a request's next tokens are written to, and for those that leave the windows."""
    links, _, pages, rows, _ = _offsets(arena)
    num_levels = int(arena[u(NUM_LEVELS)])
    page = int(arena[u(rows + row * ROW_FIELDS + LAST_PAGE)])
    if page != NONE:
        slot = _last_slot(arena, pages, page)
        prefetch(arena, u(HEADER_SIZE + slot))
        for level in range(num_levels):
            prefetch(arena, u(HEADER_SIZE + slot - int(arena[u(FIRST_LEVEL + level)])))
        for line in range(0, min(size, BLOCK) * num_levels + 15, 16):
            prefetch(arena, u(links + (slot + 1) * num_levels + line))


@kernel
def append_all(arena: IntArray, new: IntArray, num_requests: int) -> None:
    """Append committed tokens to several requests, in order.

    Args:
        arena: the pool, mutated.
        new: int32: the requests' rows, or -1; how many tokens each gets; all the tokens.
        num_requests: how many requests there are.
    """
    floats, begin, turn = floats_of(arena), 2 * num_requests, 0
    _clear_lanes(arena)
    for i in range(num_requests):
        if i + 3 < num_requests and new[u(i + 3)] != NONE:
            _ask_for_row(arena, int(new[u(i + 3)]))
        if i + 2 < num_requests and new[u(i + 2)] != NONE:
            _ask_for_page(arena, int(new[u(i + 2)]))
        if i + 1 < num_requests and new[u(i + 1)] != NONE:
            _ask_for_end(arena, int(new[u(i + 1)]), int(new[u(num_requests + i + 1)]))
        row, stop = int(new[u(i)]), begin + int(new[u(num_requests + i)])
        if row != NONE:
            _append(arena, floats, row, new, begin, stop, turn)
            turn += 1
        begin = stop
    _enter_waiting(arena, turn - 1)


def compile_kernels() -> tuple[IngestAlone, IngestAll]:
    """Compile the kernels that Python and others call, and return them."""
    settler.compile_kernels()
    callees = (take_page, add_buckets, start_hashes, settle)
    arrays = "int32[::1], float64[::1], int64, int32[::1]"
    compile_once(_append, f"void({arrays}, int64, int64, int64)", calls=callees)
    return (
        compile_once(append_alone, "void(int32[::1], int64, int32[::1])", calls=(_append,)),
        compile_once(append_all, "void(int32[::1], int32[::1], int64)", calls=(_append,)),
    )
