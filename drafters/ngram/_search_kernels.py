"""Kernels of the n-gram drafter's search: the earlier places where the last tokens stood.

"Plain" places are those of the last token, by its chains, longest k first. Where the text before
the last token stood, that token may have been put in ("inserted") or have taken the place of one
("replaced"): two more kinds. Each place gets the part of its weight that depends on where it lies.

The arena's layout is that of ``_pool_kernels``.
"""

from __future__ import annotations

from collections.abc import Callable

from .._jit import compile_once, kernel
from . import _pool_kernels as pool
from . import _weights as tables
from ._pool_kernels import HEADER_SIZE, NONE, PAGE_FIELDS, PLACE_FIELDS, FloatArray, IntArray

PLAIN, REPLACED, INSERTED = 0, 1, 2
AT, RESTART, MATCH, KIND, VOTES, CHAIN = 0, 1, 2, 3, 4, 5
"""A place: slot now read, where to read on at the request's own end (or -1), match length, kind,
row of the vote table (the rank, before it is weighed), next place of its group."""

CHAIN_FIELDS = 6
NEXT_LINK, LEVEL, VISITS_LEFT, FIRST_MET, NUM_MET, SKIP = 0, 1, 2, 3, 4, 5
"""A chain that is followed: the link to its next place, its level, how many more are looked at,
where the places met begin, how many there are, and whether it starts at the token before the
last."""
CHAINS_ROOM = 16 * CHAIN_FIELDS

LONG_MATCH = 16
"""From this length on a match is told apart by its length alone, and moves the anchor."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int, int, int]:
    """Return where links, pages, rows, places and the room to work in begin."""
    num_levels = int(arena[pool.NUM_LEVELS])
    num_pages, num_rows = int(arena[pool.NUM_PAGES]), int(arena[pool.NUM_ROWS])
    num_slots = num_pages << int(arena[pool.PAGE_BITS])
    links = HEADER_SIZE + num_slots
    pages = links + num_slots * num_levels + (num_levels << int(arena[pool.BUCKET_BITS]))
    rows = pages + num_pages * PAGE_FIELDS
    places = rows + num_rows * (pool.ROW_FIELDS + pool.DRAFT_ROOM)
    room = places + num_rows * int(arena[pool.MAX_PLACES]) * PLACE_FIELDS
    return links, pages, rows, places, room


@kernel
def _before(arena: IntArray, pages: int, slot: int) -> int:
    """Return the slot of the token before ``slot`` in its request, or -1."""
    page_bits = int(arena[pool.PAGE_BITS])
    if slot & ((1 << page_bits) - 1):
        return slot - 1
    page = int(arena[pages + (slot >> page_bits) * PAGE_FIELDS + pool.PREVIOUS])
    if page == NONE:
        return NONE
    return (page << page_bits) + int(arena[pages + page * PAGE_FIELDS + pool.USED]) - 1


@kernel
def _after(arena: IntArray, pages: int, slot: int) -> int:
    """Return the slot of the token after ``slot`` in its request, or -1."""
    page_bits = int(arena[pool.PAGE_BITS])
    fields = pages + (slot >> page_bits) * PAGE_FIELDS
    if (slot & ((1 << page_bits) - 1)) + 1 < arena[fields + pool.USED]:
        return slot + 1
    page = int(arena[fields + pool.NEXT])
    return NONE if page == NONE else page << page_bits


@kernel
def _copy_tail(arena: IntArray, pages: int, slot: int, length: int, tail: int) -> None:
    """Copy the ``length`` tokens up to ``slot``, which are there, to ``tail``, the newest first."""
    mask = (1 << int(arena[pool.PAGE_BITS])) - 1
    done = 0
    while done < length:
        run = min((slot & mask) + 1, length - done)
        for back in range(run):
            arena[tail + done + back] = arena[HEADER_SIZE + slot - back]
        done += run
        slot = _before(arena, pages, slot - run + 1)


@kernel
def _follow(
    arena: IntArray, links: int, pages: int, first: int, tail_size: int, chains: int, met: int
) -> int:
    """Follow the chains of the last two tokens, and return where the list of them ends.

    The chains of the token before the last are followed in the levels of two to four tokens only.
    All go on in turn, a place each, so that what one waits for from memory hides behind the others.

    Args:
        arena: the pool.
        links: where the links begin.
        pages: where the pages' fields begin.
        first: the slot of the last token.
        tail_size: how many tokens up to it are compared.
        chains: where the chains are written, longest k first.
        met: where the slots that they lead to are written.
    """
    page_bits, link_bits = int(arena[pool.PAGE_BITS]), int(arena[pool.SLOT_BITS])
    slot_mask = (1 << link_bits) - 1
    num_levels = int(arena[pool.NUM_LEVELS])
    before = _before(arena, pages, first)
    stop = chains
    for part in range(2 * num_levels):
        skip, level = part // num_levels, part % num_levels
        visits = int(arena[pool.FIRST_VISITS + level])
        if skip:
            k = int(arena[pool.FIRST_LEVEL + level])
            visits = int(arena[pool.MAX_SKIP_VISITS]) if 2 <= k <= min(4, tail_size - 1) else 0
        if visits == 0:
            continue
        link = arena[links + (before if skip else first) * num_levels + level]
        arena[stop + NEXT_LINK] = link
        arena[stop + LEVEL] = level
        arena[stop + VISITS_LEFT] = visits if link else 0
        arena[stop + FIRST_MET] = met - chains
        arena[stop + NUM_MET] = 0
        arena[stop + SKIP] = skip
        stop += CHAIN_FIELDS
        met += visits
    going = 1
    while going:
        going = 0
        for chain in range(chains, stop, CHAIN_FIELDS):
            left = int(arena[chain + VISITS_LEFT])
            if left == 0:
                continue
            link = int(arena[chain + NEXT_LINK])
            slot = link & slot_mask
            arena[chain + VISITS_LEFT] = 0
            generation = arena[pages + (slot >> page_bits) * PAGE_FIELDS + pool.GENERATION]
            if link >> link_bits != generation:
                continue  # the rest was reclaimed
            count = int(arena[chain + NUM_MET])
            arena[chains + int(arena[chain + FIRST_MET]) + count] = slot
            arena[chain + NUM_MET] = count + 1
            link = int(arena[links + slot * num_levels + int(arena[chain + LEVEL])])
            if link and left > 1:
                arena[chain + NEXT_LINK] = link
                arena[chain + VISITS_LEFT] = left - 1
                going = 1
    return stop


@kernel
def _compare(
    arena: IntArray, pages: int, namespace: int, tail: int, tail_size: int, chains: int,
    chains_stop: int, places: int,
) -> int:  # fmt: skip
    """Keep the places whose text matches the tail, and return how many there are.

    A level keeps its matches that are shorter than the k of the level before: the longer ones were
    met there, in the same order, so that most are known without a look. A place where the text
    before the last token stood, and another token followed, is kept twice (replaced, inserted).

    Args:
        arena: the pool; the slots that the chains lead to are mutated.
        pages: where the pages' fields begin.
        namespace: that of the request.
        tail: where its last tokens begin, the newest first.
        tail_size: how many they are.
        chains: where the list of chains begins.
        chains_stop: where it ends.
        places: where slot, match length, kind and rank of each are written, while there is room.
    """
    page_bits = int(arena[pool.PAGE_BITS])
    mask = (1 << page_bits) - 1
    place, places_stop = places, places + int(arena[pool.MAX_PLACES]) * PLACE_FIELDS
    longer_k, known, known_stop, last_skip = tail_size + 1, 0, 0, 0
    for chain in range(chains, chains_stop, CHAIN_FIELDS):
        skip, level = int(arena[chain + SKIP]), int(arena[chain + LEVEL])
        k = int(arena[pool.FIRST_LEVEL + level])
        if skip != last_skip:
            longer_k, known, known_stop, last_skip = tail_size + 1, 0, 0, skip
        stop = min(tail_size, skip + longer_k)  # where the comparison with the tail may end
        first = kept = chains + int(arena[chain + FIRST_MET])
        rank = 0
        for met in range(first, first + int(arena[chain + NUM_MET])):
            slot = int(arena[met])
            if known < known_stop and arena[known] == slot:
                known += 1
                arena[kept] = slot
                kept += 1
                continue
            fields = pages + (slot >> page_bits) * PAGE_FIELDS
            foreign = arena[fields + pool.PAGE_NAMESPACE] != namespace
            if foreign or (slot & mask) >= arena[fields + pool.USED]:
                continue
            if skip:
                following = _after(arena, pages, slot)
                if following == NONE or arena[HEADER_SIZE + following] == arena[tail]:
                    continue
            index = skip
            back = slot
            while back != NONE:
                run = min((back & mask) + 1, stop - index)
                step = 0
                while step < run and arena[HEADER_SIZE + back - step] == arena[tail + index + step]:
                    step += 1
                index += step
                if step < run or index == stop:
                    break
                back = _before(arena, pages, back - step + 1)
            match = index - skip
            if match < k:
                continue
            arena[kept] = slot
            kept += 1
            if match >= longer_k:
                continue
            if place + (1 + skip) * PLACE_FIELDS > places_stop:
                return (place - places) // PLACE_FIELDS
            for kind in range(skip, 1 + 2 * skip):
                arena[place + AT] = slot
                arena[place + MATCH] = match
                arena[place + KIND] = kind
                arena[place + VOTES] = rank
                place += PLACE_FIELDS
            rank += 1
        longer_k, known, known_stop = k, first, kept
    return (place - places) // PLACE_FIELDS


@kernel
def _near_class(
    arena: IntArray, pages: int, slot: int, match: int, tail: int, tail_size: int
) -> int:
    """Say in four classes how far a match goes on behind a token put in, left out or replaced."""
    mask = (1 << int(arena[pool.PAGE_BITS])) - 1
    longest = 0
    if slot & mask >= match + 9 and match + 9 <= tail_size:
        # Within a page, counted without branches, which nobody could foretell.
        differing = HEADER_SIZE + slot - match
        for change in range(3):
            at, index = differing - (change > 0), tail + match + (change < 2)
            length, same = 0, 1
            for back in range(8):
                same &= arena[at - back] == arena[index + back]
                length += same
            longest = max(longest, length)
        return (longest > 0) + (longest > 2) + (longest > 6)
    back = match  # to the slot where the two differ
    while slot != NONE and back > 0:
        step = min(slot & mask, back)
        slot -= step
        back -= step
        if back > 0:
            slot = _before(arena, pages, slot)
            back -= 1
    for change in range(3):
        index = match + 1 if change < 2 else match
        if change == 1 and slot != NONE:
            slot = _before(arena, pages, slot)
        at = slot
        length = 0
        while at != NONE and length < 8 and index < tail_size:
            if arena[HEADER_SIZE + at] != arena[tail + index]:
                break
            length += 1
            index += 1
            at = _before(arena, pages, at)
        longest = max(longest, length)
    return (longest > 0) + (longest > 2) + (longest > 6)


@kernel
def _distance_class(arena: IntArray, pages: int, link: int, owner: int, position: int) -> int:
    """Sort the way from a linked place: none, in the same request (13 classes), in others."""
    page_bits, link_bits = int(arena[pool.PAGE_BITS]), int(arena[pool.SLOT_BITS])
    slot = link & ((1 << link_bits) - 1)
    fields = pages + (slot >> page_bits) * PAGE_FIELDS
    if link == 0 or link >> link_bits != arena[fields + pool.GENERATION]:
        return 0
    origin = int(arena[fields + pool.POSITION]) + (slot & ((1 << page_bits) - 1))
    distance = position - origin
    if arena[fields + pool.OWNER] != owner or distance < -64:
        return tables.DISTANCES - 1
    if distance < 0:
        return 10 + (distance < -2) + (distance < -8)
    if distance <= 2:
        return 1 + distance
    steps = (distance > 4) + (distance > 8) + (distance > 16) + (distance > 64)
    return 4 + steps + (distance > 256)


@kernel
def _weigh(
    arena: IntArray, floats: FloatArray, pages: int, request: int, tail: int, tail_size: int,
    places: int, num_places: int, weights: int,
) -> None:  # fmt: skip
    """Turn the slots of the places into what follows them, and weigh each place.

    The weight is the part that does not change down the tree; a place with nothing behind it gets
    no slot to read. What follows the longest plain match of at least four tokens becomes the place
    where the text is expected to go on.

    Args:
        arena: the pool.
        floats: as ``_weights`` lays them out; the places' weights are overwritten.
        pages: where the pages' fields begin.
        request: where the request's fields begin.
        tail: where its last tokens begin, the newest first.
        tail_size: how many they are.
        places: where the places begin, as ``_compare`` wrote them; mutated.
        num_places: how many there are.
        weights: where their weights begin.
    """
    page_bits = int(arena[pool.PAGE_BITS])
    mask = (1 << page_bits) - 1
    goal, anchor = int(arena[request + pool.EXPECTED]), int(arena[request + pool.ANCHOR])
    serial = arena[request + pool.SERIAL]
    expected, longest = NONE, 3
    for index in range(num_places):
        place = places + index * PLACE_FIELDS
        before, kind = int(arena[place + AT]), int(arena[place + KIND])
        rank, match = int(arena[place + VOTES]), int(arena[place + MATCH])
        slot = _after(arena, pages, before)
        if kind == REPLACED and slot != NONE:
            slot = _after(arena, pages, slot)
        if slot == NONE or arena[HEADER_SIZE + slot] < 0:
            arena[place + AT] = NONE
            continue
        near = 0
        if kind == PLAIN and match < LONG_MATCH:
            near = _near_class(arena, pages, before, match, tail, tail_size)
        if kind == PLAIN and match > longest:
            expected, longest = slot, match
        fields, offset = pages + (slot >> page_bits) * PAGE_FIELDS, slot & mask
        owner = int(arena[fields + pool.OWNER])
        own = owner == serial
        position = int(arena[fields + pool.POSITION]) + offset
        if own:
            age = int(arena[request + pool.LENGTH]) - position
        else:
            age = int(arena[pool.CLOCK]) - int(arena[fields + pool.STAMP]) - offset
            age &= pool.MAX_CLOCK
        age_class = 0
        while age > 8 and age_class < tables.AGES - 1:
            age >>= 1
            age_class += 1
        region = 2 * own + (offset >= arena[fields + pool.OUTPUT])
        rank_class = (rank > 0) + (rank > 1) + (rank > 3) + (rank > 7) + (rank > 15)
        arena[place + AT] = slot
        arena[place + RESTART] = slot if own else NONE
        arena[place + VOTES] = tables.VOTE + (kind * tables.NEARS + near) * tables.LENGTHS
        floats[weights + index] = (
            floats[tables.RANK + (region * tables.RANKS + rank_class) * tables.KINDS + kind]
            * floats[tables.AGE + region * tables.AGES + age_class]
            * floats[tables.DISTANCE + _distance_class(arena, pages, goal, owner, position)]
            * floats[tables.DETOUR + _distance_class(arena, pages, anchor, owner, position)]
        )
    if expected != NONE:
        generation = int(arena[pages + (expected >> page_bits) * PAGE_FIELDS + pool.GENERATION])
        link = (generation << int(arena[pool.SLOT_BITS])) | expected
        arena[request + pool.EXPECTED] = link
        if longest >= LONG_MATCH:
            arena[request + pool.ANCHOR] = link


@kernel
def search(arena: IntArray, floats: FloatArray, batch: IntArray) -> None:
    """Find the places of each request of a batch, and leave them and their number beside its row.

    Args:
        arena: the pool; the rows' places and pointers are overwritten.
        floats: as ``_weights`` lays them out; the places' weights are overwritten for the rows.
        batch: ``(num_requests,)`` int32, the requests' rows, or -1.
    """
    links, pages, rows, all_places, chains = _offsets(arena)
    max_places = int(arena[pool.MAX_PLACES])
    tail = chains + CHAINS_ROOM
    met = tail + int(arena[pool.MAX_MATCH])
    for i in range(batch.size):
        row = int(batch[i])
        if row == NONE:
            continue
        request = rows + row * pool.ROW_FIELDS
        arena[request + pool.FOUND] = 0
        length, page = int(arena[request + pool.RUN]), int(arena[request + pool.LAST_PAGE])
        if length == 0 or page == NONE:
            continue
        last = (page << int(arena[pool.PAGE_BITS])) - 1
        last += int(arena[pages + page * PAGE_FIELDS + pool.USED])
        _copy_tail(arena, pages, last, length, tail)
        stop = _follow(arena, links, pages, last, length, chains, met)
        places = all_places + row * max_places * PLACE_FIELDS
        namespace = int(arena[request + pool.NAMESPACE])
        count = _compare(arena, pages, namespace, tail, length, chains, stop, places)
        weights = tables.PLACES + row * max_places
        _weigh(arena, floats, pages, request, tail, length, places, count, weights)
        arena[request + pool.FOUND] = count


def compile_kernels() -> Callable[[IntArray, FloatArray, IntArray], None]:
    """Compile the kernel that Python calls, for its one signature, and return it."""
    return compile_once(search, "void(int32[::1], float64[::1], int32[::1])")
