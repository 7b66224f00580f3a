"""Kernel of the n-gram drafter that weighs the places found: how they match, where they lie.

Each place gets the part of its weight that does not change down the tree; what follows it is where
the tree begins to read.

The arena's layout is that of ``_pool_kernels``, a place's that of ``_search_kernels``.
"""

from __future__ import annotations

from .._jit import compile_once, kernel, u
from . import _pool_kernels as pool
from . import _weights as tables
from ._pool_kernels import HEADER_SIZE, NONE, PAGE_FIELDS, PLACE_FIELDS, FloatArray, IntArray
from ._search_kernels import AT, KIND, MATCH, PLAIN, REPLACED, RESTART, VOTES

LONG_MATCH = 16
"""From this length on a match is told apart by its length alone, and moves the anchor."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int]:
    """Return where pages, rows and places begin."""
    return (
        int(arena[u(pool.PAGES_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.ROWS_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.PLACES_AT)]) << pool.LINE_BITS,
    )


@kernel
def _before(arena: IntArray, pages: int, slot: int) -> int:
    """Return the slot of the token before ``slot`` in its request, or -1."""
    page_bits = int(arena[u(pool.PAGE_BITS)])
    if slot & ((1 << page_bits) - 1):
        return slot - 1
    page = int(arena[u(pages + (slot >> page_bits) * PAGE_FIELDS + pool.PREVIOUS)])
    if page == NONE:
        return NONE
    return (page << page_bits) + int(arena[u(pages + page * PAGE_FIELDS + pool.USED)]) - 1


@kernel
def _after(arena: IntArray, pages: int, slot: int) -> int:
    """Return the slot of the token after ``slot`` in its request, or -1."""
    page_bits = int(arena[u(pool.PAGE_BITS)])
    fields = pages + (slot >> page_bits) * PAGE_FIELDS
    if (slot & ((1 << page_bits) - 1)) + 1 < arena[u(fields + pool.USED)]:
        return slot + 1
    page = int(arena[u(fields + pool.NEXT)])
    return NONE if page == NONE else page << page_bits


@kernel
def _run_before(arena: IntArray, pages: int, slot: int, own: int, most: int) -> int:
    """Return how many tokens up to two slots agree, read backwards, ``most`` at most.

    The second text has so many tokens; either slot may be -1.
    """
    length = 0
    while slot != NONE and length < most:
        if arena[u(HEADER_SIZE + slot)] != arena[u(HEADER_SIZE + own)]:
            break
        length += 1
        slot, own = _before(arena, pages, slot), _before(arena, pages, own)
    return length


@kernel
def _near_class(
    arena: IntArray, pages: int, slot: int, own: int, match: int, tail_size: int
) -> int:
    """Say in four classes how far a match goes on behind a token put in, left out or replaced.

    Args:
        arena: the pool.
        pages: where the pages' fields begin.
        slot: the last one of the match.
        own: the slot of the request's last token.
        match: how many tokens agree.
        tail_size: how many tokens of the request are compared.
    """
    mask = (1 << int(arena[u(pool.PAGE_BITS)])) - 1
    longest = 0
    if min(slot & mask, own & mask) >= match + 8 and tail_size >= match + 9:
        # Within a page, and counted without branches, which nobody could foretell.
        there, here = HEADER_SIZE + slot - match, HEADER_SIZE + own - match
        a, b = arena[u(there)], arena[u(here)]
        if (
            arena[u(there - 1)] != arena[u(here - 1)]
            and b != arena[u(there - 1)]
            and a != arena[u(here - 1)]
        ):
            return 0
        for change in range(3):
            at, index = there - (change > 0), here - (change < 2)
            length, same = 0, 1
            for back in range(7):
                same &= arena[u(at - back)] == arena[u(index - back)]
                length += same
            longest = max(longest, length)
        return (longest > 0) + (longest > 2) + (longest > 6)
    for _ in range(match):  # to the slots where the two differ
        slot, own = _before(arena, pages, slot), _before(arena, pages, own)
    left = tail_size - match
    before, own_before = NONE, NONE
    if slot != NONE:
        before = _before(arena, pages, slot)
    if left > 0:
        own_before = _before(arena, pages, own)
    longest = _run_before(arena, pages, slot, own_before, min(left - 1, 7))
    longest = max(longest, _run_before(arena, pages, before, own_before, min(left - 1, 7)))
    longest = max(longest, _run_before(arena, pages, before, own, min(left, 7)))
    return (longest > 0) + (longest > 2) + (longest > 6)


@kernel
def _origin(arena: IntArray, pages: int, link: int) -> tuple[int, int]:
    """Return the request and the position that a link leads to, or -1 and 0 for nowhere."""
    page_bits, link_bits = int(arena[u(pool.PAGE_BITS)]), int(arena[u(pool.SLOT_BITS)])
    slot = link & ((1 << link_bits) - 1)
    fields = pages + (slot >> page_bits) * PAGE_FIELDS
    if link == 0 or link >> link_bits != arena[u(fields + pool.GENERATION)]:
        return NONE, 0
    offset = slot & ((1 << page_bits) - 1)
    return int(arena[u(fields + pool.OWNER)]), int(arena[u(fields + pool.POSITION)]) + offset


@kernel
def _distance_class(goal_owner: int, goal: int, owner: int, position: int) -> int:
    """Sort the way from a goal to a place: none, in the same request (12 classes), elsewhere."""
    distance = position - goal
    ahead = 1 + (distance > 0) + (distance > 1) + (distance > 2) + (distance > 4)
    ahead += (distance > 8) + (distance > 16) + (distance > 64) + (distance > 256)
    behind = 10 + (distance < -2) + (distance < -8)
    kind = behind if distance < 0 else ahead
    kind = tables.DISTANCES - 1 if goal_owner != owner or distance < -64 else kind
    return 0 if goal_owner == NONE else kind


@kernel
def weigh_places(arena: IntArray, floats: FloatArray, row: int) -> None:
    """Turn the slots of a request's places into what follows them, and weigh each place.

    A place with nothing behind it gets no slot to read. What follows the longest plain match of at
    least four tokens becomes the place where the text is expected to go on.

    Args:
        arena: the pool; the places, as ``find_places`` left them, are mutated, and the row's links
            to where the text is expected to go on.
        floats: as ``_weights`` lays them out; the places' weights are overwritten.
        row: the request's row.
    """
    pages, rows, places = _offsets(arena)
    request = rows + row * pool.ROW_FIELDS
    num_places, tail_size = int(arena[u(pool.FOUND)]), int(arena[u(request + pool.RUN)])
    page_bits = int(arena[u(pool.PAGE_BITS)])
    mask = (1 << page_bits) - 1
    page = int(arena[u(request + pool.LAST_PAGE)])
    last = (page << page_bits) + int(arena[u(pages + page * PAGE_FIELDS + pool.USED)]) - 1
    goal_owner, goal = _origin(arena, pages, int(arena[u(request + pool.EXPECTED)]))
    anchor_owner, anchor = _origin(arena, pages, int(arena[u(request + pool.ANCHOR)]))
    length, clock = int(arena[u(request + pool.LENGTH)]), int(arena[u(pool.CLOCK)])
    serial = arena[u(request + pool.SERIAL)]
    expected, longest = NONE, 3
    for index in range(num_places):
        place = places + index * PLACE_FIELDS
        before, kind = int(arena[u(place + AT)]), int(arena[u(place + KIND)])
        rank, match = int(arena[u(place + VOTES)]), int(arena[u(place + MATCH)])
        slot = _after(arena, pages, before)
        if kind == REPLACED and slot != NONE:
            slot = _after(arena, pages, slot)
        if slot == NONE or arena[u(HEADER_SIZE + slot)] < 0:
            arena[u(place + AT)] = NONE
            continue
        near = 0
        if kind == PLAIN and match < LONG_MATCH:
            near = _near_class(arena, pages, before, last, match, tail_size)
        if kind == PLAIN and match > longest:
            expected, longest = slot, match
        fields, offset = pages + (slot >> page_bits) * PAGE_FIELDS, slot & mask
        owner = int(arena[u(fields + pool.OWNER)])
        own = owner == serial
        position = int(arena[u(fields + pool.POSITION)]) + offset
        foreign_age = clock - int(arena[u(fields + pool.STAMP)]) - offset
        age = length - position if own else foreign_age & pool.MAX_CLOCK
        age_class = 0
        for doubled in range(tables.AGES - 1):
            age_class += age >= 9 << doubled
        region = 2 * own + (offset >= arena[u(fields + pool.OUTPUT)])
        rank_class = (rank > 0) + (rank > 1) + (rank > 3) + (rank > 7) + (rank > 15)
        arena[u(place + AT)] = slot
        arena[u(place + RESTART)] = slot if own else NONE
        arena[u(place + VOTES)] = tables.VOTE + (kind * tables.NEARS + near) * tables.LENGTHS
        floats[u(tables.PLACES + index)] = (
            floats[u(tables.RANK + (region * tables.RANKS + rank_class) * tables.KINDS + kind)]
            * floats[u(tables.AGE + region * tables.AGES + age_class)]
            * floats[tables.DISTANCE + _distance_class(goal_owner, goal, owner, position)]
            * floats[tables.DETOUR + _distance_class(anchor_owner, anchor, owner, position)]
        )
    if expected != NONE:
        generation = int(arena[u(pages + (expected >> page_bits) * PAGE_FIELDS + pool.GENERATION)])
        link = (generation << int(arena[u(pool.SLOT_BITS)])) | expected
        arena[u(request + pool.EXPECTED)] = link
        if longest >= LONG_MATCH:
            arena[u(request + pool.ANCHOR)] = link


def compile_kernels() -> None:
    """Compile the kernel that others call, for its one signature."""
    compile_once(weigh_places, "void(int32[::1], float64[::1], int64)")
