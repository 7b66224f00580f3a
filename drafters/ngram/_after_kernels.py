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
    """Cut the arena into tokens, links, heads, pages, rows and places."""
    num_pages = np.int64(arena[pool.NUM_PAGES])
    num_levels = np.int64(arena[pool.NUM_LEVELS])
    num_rows = np.int64(arena[pool.NUM_ROWS])
    num_slots = num_pages << int(arena[pool.PAGE_BITS])
    a = pool.HEADER_SIZE + num_slots
    b = a + num_slots * num_levels
    c = b + (num_levels << int(arena[pool.BUCKET_BITS]))
    d = c + num_pages * pool.PAGE_FIELDS
    e = d + num_rows * pool.ROW_FIELDS
    f = e + num_rows * pool.MAX_DRAFT * pool.DRAFT_FIELDS
    return (
        arena[pool.HEADER_SIZE : a],
        arena[a:b].reshape((num_slots, num_levels)),
        arena[b:c].reshape((num_levels, -1)),
        arena[c:d].reshape((num_pages, pool.PAGE_FIELDS)),
        arena[d:e].reshape((num_rows, pool.ROW_FIELDS)),
        arena[f:].reshape((num_rows, -1, pool.PLACE_FIELDS)),
    )


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
    page = int(pages[slot >> page_bits, pool.PREVIOUS])
    return pool.NONE if page == pool.NONE else (page << page_bits) + int(pages[page, pool.USED]) - 1


@kernel
def _after(pages: IntArray, page_bits: int, slot: int) -> int:
    """Return the slot of the token after ``slot`` in its request, or -1."""
    page = slot >> page_bits
    if (slot & ((1 << page_bits) - 1)) + 1 < pages[page, pool.USED]:
        return slot + 1
    page = int(pages[page, pool.NEXT])
    return pool.NONE if page == pool.NONE else page << page_bits


@kernel
def _head(arena: IntArray, heads: IntArray, level: int, salt: int, tail: IntArray) -> int:
    """Return the link of the youngest place in the bucket of the tail's k-gram, 0 for none."""
    value = 0
    for back in range(int(arena[pool.FIRST_LEVEL + level]) - 1, -1, -1):
        value = (_mulmod(value, pool.HASH_BASE) + int(tail[back]) + 1) % pool.PRIME
    mixed = _mulmod((value + salt) % pool.PRIME, pool.BUCKET_MIX)
    return int(heads[level, mixed >> (31 - int(arena[pool.BUCKET_BITS]))])


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
    arena: IntArray, model: FloatArray, pages: IntArray, rows: IntArray, row: int, slot: int,
    rank: int,
) -> float:  # fmt: skip
    """Return the part of a plain place's weight that depends on where it lies."""
    page_bits = int(arena[pool.PAGE_BITS])
    page, offset = slot >> page_bits, slot & ((1 << page_bits) - 1)
    own = pages[page, pool.OWNER] == rows[row, pool.SERIAL]
    if own:  # one token further, for the one that is put behind the text
        age = int(rows[row, pool.LENGTH]) + 1 - (int(pages[page, pool.POSITION]) + offset)
    else:
        clock = int(arena[pool.CLOCK]) + 1
        age = (clock - int(pages[page, pool.STAMP]) - offset) & pool.MAX_CLOCK
    age_class = 0
    while age > 8 and age_class < tables.AGES - 1:
        age >>= 1
        age_class += 1
    region = 2 * own + (offset >= pages[page, pool.OUTPUT])
    rank_class = (rank > 0) + (rank > 1) + (rank > 3) + (rank > 7) + (rank > 15)
    weight = model[tables.RANK + (region * tables.RANKS + rank_class) * tables.KINDS]
    return float(weight * model[tables.AGE + region * tables.AGES + age_class])


@kernel
def search_after(arena: IntArray, floats: FloatArray, row: int, token: int) -> int:
    """Find the places of a request's tail with ``token`` behind it; return how many there are.

    Args:
        arena: the pool; the row's places are overwritten, nothing else.
        floats: ``(NUM_WEIGHTS + num_rows * max_places,)`` float64: the tables of weights, and the
            places' weights, overwritten for the row.
        row: the request's row.
        token: not negative.
    """
    tokens, links, heads, pages, rows, all_places = _views(arena)
    places = all_places[row]
    weights = floats[tables.NUM_WEIGHTS :].reshape((rows.shape[0], places.shape[0]))[row]
    page_bits = int(arena[pool.PAGE_BITS])
    link_bits = int(arena[pool.SLOT_BITS])
    mask, slot_mask = (1 << page_bits) - 1, (1 << link_bits) - 1
    buffer = np.empty(int(arena[pool.MAX_MATCH]), np.int32)
    buffer[0] = token
    length = 1
    page = int(rows[row, pool.LAST_PAGE])
    slot = pool.NONE if page == pool.NONE else (page << page_bits) + int(pages[page, pool.USED]) - 1
    while slot != pool.NONE and length < buffer.size and tokens[slot] >= 0:
        buffer[length] = tokens[slot]
        length += 1
        slot = _before(pages, page_bits, slot)
    tail = buffer[:length]
    salt = _mulmod((int(rows[row, pool.NAMESPACE]) + 1) % pool.PRIME, pool.HASH_BASE)
    count, longer_k = 0, length + 1
    for level in range(links.shape[1]):
        k = int(arena[pool.FIRST_LEVEL + level])
        if k > length:
            continue
        link = _head(arena, heads, level, salt, tail)
        rank = 0
        for _ in range(int(arena[pool.FIRST_VISITS + level])):
            slot = link & slot_mask
            if link == 0 or link >> link_bits != pages[slot >> page_bits, pool.GENERATION]:
                break  # the chain ends, or its rest was reclaimed
            page = slot >> page_bits
            link = int(links[slot, level])
            foreign = pages[page, pool.PAGE_NAMESPACE] != rows[row, pool.NAMESPACE]
            if foreign or (slot & mask) >= pages[page, pool.USED]:
                continue
            match = _match(tokens, pages, page_bits, slot, tail)
            following = _after(pages, page_bits, slot)
            if match < k or match >= longer_k or following == pool.NONE or tokens[following] < 0:
                continue
            if count == places.shape[0]:
                return count
            own = pages[following >> page_bits, pool.OWNER] == rows[row, pool.SERIAL]
            places[count, finder.AT] = following
            places[count, finder.RESTART] = following if own else pool.NONE
            places[count, finder.MATCH] = match
            places[count, finder.KIND] = finder.PLAIN
            places[count, finder.VOTES] = tables.VOTE
            weights[count] = _weight(arena, floats, pages, rows, row, following, rank)
            count += 1
            rank += 1
        longer_k = k
    return count


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(search_after, "int64(int32[::1], float64[::1], int64, int64)")
