"""Kernel of the n-gram drafter that looks up the text with one more token behind it.

It finds the places of that tail, as the search does for the committed text, longest k first. The
token is not in the pool, so that its chains begin at their heads, found by the hashes of the tail's
k-grams. Weights leave out what the search knows of the way that the text has gone: neither the
distance from where it was expected nor the text around a mismatch counts, and nothing is proposed
behind a changed token.

The arena's layout and the hashes are those of ``_pool_kernels``.
"""

from __future__ import annotations

import numpy as np

from .._jit import compile_once, kernel
from . import _pool_kernels as pool
from . import _search_kernels as finder
from . import _weights as tables
from ._pool_kernels import FloatArray, IntArray

Views = tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]


@kernel
def _views(arena: IntArray) -> Views:
    """Cut the arena into tokens, links, heads, pages, rows and places, all flat."""
    links = int(arena[pool.LINKS_AT]) << pool.LINE_BITS
    heads = int(arena[pool.HEADS_AT]) << pool.LINE_BITS
    pages = int(arena[pool.PAGES_AT]) << pool.LINE_BITS
    rows = int(arena[pool.ROWS_AT]) << pool.LINE_BITS
    drafts = int(arena[pool.DRAFTS_AT]) << pool.LINE_BITS
    places = int(arena[pool.PLACES_AT]) << pool.LINE_BITS
    return (
        arena[pool.HEADER_SIZE : links], arena[links:heads], arena[heads:pages],
        arena[pages:rows], arena[rows:drafts], arena[places:],
    )  # fmt: skip


@kernel
def _mulmod(a: int, b: int) -> int:
    """Return ``a * b`` modulo the prime; both lie in ``[0, PRIME]``."""
    product = int(a) * int(b)
    product = (product & pool.PRIME) + (product >> 31)
    return product - pool.PRIME if product >= pool.PRIME else product


@kernel
def _before(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token before ``slot`` in its request, or -1."""
    if slot & ((1 << page_bits) - 1):
        return slot - 1
    page = int(pages[(slot >> page_bits) * pool.PAGE_FIELDS + pool.PREVIOUS])
    if page == pool.NONE:
        return pool.NONE
    return (page << page_bits) + int(pages[page * pool.PAGE_FIELDS + pool.USED]) - 1


@kernel
def _after(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token after ``slot`` in its request, or -1."""
    page = (slot >> page_bits) * pool.PAGE_FIELDS
    if (slot & ((1 << page_bits) - 1)) + 1 < pages[page + pool.USED]:
        return slot + 1
    page = int(pages[page + pool.NEXT])
    return pool.NONE if page == pool.NONE else page << page_bits


@kernel
def _head(arena: IntArray, heads: IntArray, level: int, salt: int, tail: IntArray) -> int:
    """Return the link of the youngest place in the bucket of the tail's k-gram, 0 for none."""
    value = 0
    for back in range(int(arena[pool.FIRST_LEVEL + level]) - 1, -1, -1):
        value = (_mulmod(value, pool.HASH_BASE) + int(tail[back]) + 1) % pool.PRIME
    bucket = (value + salt) * pool.BUCKET_MIX >> pool.BUCKET_SHIFT
    bucket &= 2 * int(arena[pool.HALF]) - 1
    if bucket >= arena[pool.NUM_BUCKETS]:
        bucket -= int(arena[pool.HALF])
    return int(heads[bucket * int(arena[pool.NUM_LEVELS]) + level])


@kernel
def _match(tokens: IntArray, pages: IntArray, page_bits: int, slot: int, tail: IntArray) -> int:
    """Return how many tokens up to ``slot``, read backwards, agree with the tail."""
    length = 0
    while slot != pool.NONE and length < tail.size and tokens[slot] == tail[length]:
        length += 1
        slot = _before(pages, page_bits, slot)
    return length


@kernel
def _weight(
    arena: IntArray, model: FloatArray, pages: IntArray, request: IntArray, slot: int, rank: int
) -> float:
    """Return the part of a plain place's weight that depends on where it lies."""
    page_bits = int(arena[pool.PAGE_BITS])
    page, offset = (slot >> page_bits) * pool.PAGE_FIELDS, slot & ((1 << page_bits) - 1)
    own = pages[page + pool.OWNER] == request[pool.SERIAL]
    if own:  # one token further, for the one that is put behind the text
        age = int(request[pool.LENGTH]) + 1 - (int(pages[page + pool.POSITION]) + offset)
    else:
        clock = int(arena[pool.CLOCK]) + 1
        age = (clock - int(pages[page + pool.STAMP]) - offset) & pool.MAX_CLOCK
    age_class = 0
    while age > 8 and age_class < tables.AGES - 1:
        age >>= 1
        age_class += 1
    region = 2 * own + (offset >= pages[page + pool.OUTPUT])
    rank_class = (rank > 0) + (rank > 1) + (rank > 3) + (rank > 7) + (rank > 15)
    weight = model[tables.RANK + (region * tables.RANKS + rank_class) * tables.KINDS]
    return float(weight * model[tables.AGE + region * tables.AGES + age_class])


@kernel
def search_after(arena: IntArray, floats: FloatArray, row: int, token: int) -> None:
    """Find the places of a request's tail with ``token`` behind it.

    Args:
        arena: the pool; the places and their number are overwritten, nothing else.
        floats: as ``_weights`` lays them out; the places' weights are overwritten.
        row: the request's row.
        token: not negative.
    """
    tokens, links, heads, pages, rows, places = _views(arena)
    num_levels, max_places = int(arena[pool.NUM_LEVELS]), int(arena[pool.MAX_PLACES])
    request = rows[row * pool.ROW_FIELDS : (row + 1) * pool.ROW_FIELDS]
    weights = floats[tables.PLACES :]
    page_bits = int(arena[pool.PAGE_BITS])
    link_bits = int(arena[pool.SLOT_BITS])
    mask, slot_mask = (1 << page_bits) - 1, (1 << link_bits) - 1
    buffer = np.empty(int(arena[pool.MAX_MATCH]), np.int32)
    buffer[0] = token
    length = 1
    page = int(request[pool.LAST_PAGE])
    slot = pool.NONE
    if page != pool.NONE:
        slot = (page << page_bits) + int(pages[page * pool.PAGE_FIELDS + pool.USED]) - 1
    while slot != pool.NONE and length < buffer.size and tokens[slot] >= 0:
        buffer[length] = tokens[slot]
        length += 1
        slot = _before(pages, page_bits, slot)
    tail = buffer[:length]
    salt = _mulmod((int(request[pool.NAMESPACE]) + 1) % pool.PRIME, pool.HASH_BASE)
    count, longer_k, enough = 0, length + 1, 1 << 30
    for level in range(num_levels):
        k = int(arena[pool.FIRST_LEVEL + level])
        if k > length:
            continue
        link = _head(arena, heads, level, salt, tail)
        visits = min(int(arena[pool.FIRST_VISITS + level]), enough)
        rank = num_met = 0
        for _ in range(visits):
            slot = link & slot_mask
            page = (slot >> page_bits) * pool.PAGE_FIELDS
            if link == 0 or link >> link_bits != pages[page + pool.GENERATION]:
                break  # the chain ends, or its rest was reclaimed
            num_met += 1
            link = int(links[slot * num_levels + level])
            foreign = pages[page + pool.PAGE_NAMESPACE] != request[pool.NAMESPACE]
            if foreign or (slot & mask) >= pages[page + pool.USED]:
                continue
            match = _match(tokens, pages, page_bits, slot, tail)
            following = _after(pages, page_bits, slot)
            if match < k or match >= longer_k or following == pool.NONE or tokens[following] < 0:
                continue
            if count == max_places:
                break
            page = (following >> page_bits) * pool.PAGE_FIELDS
            own = pages[page + pool.OWNER] == request[pool.SERIAL]
            at = count * pool.PLACE_FIELDS
            places[at + finder.AT] = following
            places[at + finder.RESTART] = following if own else pool.NONE
            places[at + finder.MATCH] = match
            places[at + finder.KIND] = finder.PLAIN
            places[at + finder.VOTES] = tables.VOTE
            places[at + finder.CHAIN] = count + 1
            weights[count] = _weight(arena, floats, pages, request, following, rank)
            count += 1
            rank += 1
        longer_k = k
        if visits and num_met == visits:
            enough = visits  # as the search does
    arena[pool.FOUND] = count


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(search_after, "void(int32[::1], float64[::1], int64, int64)")
