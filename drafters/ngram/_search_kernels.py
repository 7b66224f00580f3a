"""Kernels of the n-gram drafter's search: the earlier places where the last tokens stood.

"Plain" places are those of the last token, by its chains, longest k first. Where the text before
the last token stood, that token may have been put in ("inserted") or have taken the place of one
("replaced"): two more kinds. Each place gets the part of its weight that depends on where it lies.

The arena's layout is that of ``_pool_kernels``.
"""

from __future__ import annotations

from .._jit import compile_once, kernel, prefetch, u
from . import _pool_kernels as pool
from ._pool_kernels import HEADER_SIZE, NONE, PAGE_FIELDS, PLACE_FIELDS, IntArray

PLAIN, REPLACED, INSERTED = 0, 1, 2
AT, RESTART, MATCH, KIND, VOTES, CHAIN = 0, 1, 2, 3, 4, 5
"""A place: slot now read, where to read on at the request's own end (or -1), match length, kind,
row of the vote table (the rank, before it is weighed), next place of its group."""

CHAIN_FIELDS = 8
NEXT_LINK, LEVEL, FIRST_MET, MET_STOP, MET_LIMIT, SKIP, ENDS_IN, ABOVE = 0, 1, 2, 3, 4, 5, 6, 7
"""A chain that is followed: the link to its next place, its level, where the slots met begin, end,
and may end, whether it starts at the token before the last, and that token or the last; the chain
of the next longer k, or itself."""
GROUP = 16
"""Requests whose chains are followed at once."""
MAX_CHAINS = 16
CHAINS_STOP = MAX_CHAINS * CHAIN_FIELDS
"""Where, in a request's part of the room, the end of its chains stands, behind the chains."""
MET = CHAINS_STOP + 1
"""Where in that part the slots met begin."""
GOING = GROUP
"""Where in the room, behind the rows of the group, the list of the chains that go on begins."""
SEARCHES = GOING + GROUP * MAX_CHAINS
"""Where in the room the requests' parts begin; behind them trees are grown."""

BESIDE = 4
"""Tokens on both sides of a place that are asked for with it."""
SURE_MATCH, GOOD_MATCH, MOST_WEAK = 16, 6, 1
"""Where a chain of at least so many tokens leads anywhere, the others are followed for MOST_WEAK
places. Where at least GOOD_MATCH tokens agree, so many are kept of the weak places: those where
less than half of that agrees, and those behind a changed token."""
MOST_FULL = 3
"""Of the places where all that is compared of the tail agrees, so many are kept: more of them say
the same again."""


@kernel
def _offsets(arena: IntArray) -> tuple[int, int, int, int, int]:
    """Return where links, pages, rows, places and the room to work in begin."""
    return (
        int(arena[u(pool.LINKS_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.PAGES_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.ROWS_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.PLACES_AT)]) << pool.LINE_BITS,
        int(arena[u(pool.ROOM_AT)]) << pool.LINE_BITS,
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
def _ask_for_place(arena: IntArray, links: int, pages: int, slot: int) -> None:
    """Ask for all that is looked at of a place: its links, its text and its page's fields."""
    prefetch(arena, u(links + slot * int(arena[u(pool.NUM_LEVELS)])))
    prefetch(arena, u(HEADER_SIZE + slot - BESIDE))
    prefetch(arena, u(HEADER_SIZE + slot + BESIDE))
    prefetch(arena, u(pages + (slot >> int(arena[u(pool.PAGE_BITS)])) * PAGE_FIELDS))


@kernel
def _enter(arena: IntArray, row: int, chains: int, going: int) -> int:
    """Begin to follow the chains of a request's last two tokens.

    Those of the token before the last are followed in the levels of two to four tokens only.

    Args:
        arena: the pool; the request's chains are written, longest k first, and where they end.
        row: the request's row.
        chains: where its part of the room begins.
        going: where in the list of chains that go on its own are written.

    Returns:
        Where they end in that list.
    """
    links, pages, rows, _, _ = _offsets(arena)
    request = rows + row * pool.ROW_FIELDS
    arena[u(chains + CHAINS_STOP)] = chains
    tail_size, page = int(arena[u(request + pool.RUN)]), int(arena[u(request + pool.LAST_PAGE)])
    if tail_size == 0 or page == NONE:
        return going
    page_bits, link_bits = int(arena[u(pool.PAGE_BITS)]), int(arena[u(pool.SLOT_BITS)])
    slot_mask = (1 << link_bits) - 1
    num_levels = int(arena[u(pool.NUM_LEVELS)])
    last = (page << page_bits) + int(arena[u(pages + page * PAGE_FIELDS + pool.USED)]) - 1
    before = _before(arena, pages, last)
    stop, met = chains, chains + MET
    for part in range(2 * num_levels):
        skip, level = part // num_levels, part % num_levels
        visits = int(arena[u(pool.FIRST_VISITS + level)])
        if skip:
            k = int(arena[u(pool.FIRST_LEVEL + level)])
            visits = int(arena[u(pool.MAX_SKIP_VISITS)]) if 2 <= k <= min(4, tail_size - 1) else 0
        if visits == 0:
            continue
        first = before if skip else last
        link = int(arena[u(links + first * num_levels + level)])
        if link:
            _ask_for_place(arena, links, pages, link & slot_mask)
            arena[u(stop + NEXT_LINK)] = link
            arena[u(stop + LEVEL)] = level
            arena[u(stop + FIRST_MET)] = met
            arena[u(stop + MET_STOP)] = met
            arena[u(stop + MET_LIMIT)] = met + visits
            arena[u(stop + SKIP)] = skip
            arena[u(stop + ENDS_IN)] = arena[u(HEADER_SIZE + first)]
            longest = skip or stop == chains
            arena[u(stop + ABOVE)] = stop if longest else stop - CHAIN_FIELDS
            arena[u(going)] = stop
            going += 1
            stop += CHAIN_FIELDS
            met += visits
    arena[u(chains + CHAINS_STOP)] = stop
    return going


@kernel
def _ask_for_ends(arena: IntArray, num_requests: int) -> None:
    """Ask for where the texts of a group of requests end, and for the chains that begin there.

    One leads to the next, so that each is asked for of all requests before the next one is.
    """
    links, pages, rows, _, room = _offsets(arena)
    page_bits, num_levels = int(arena[u(pool.PAGE_BITS)]), int(arena[u(pool.NUM_LEVELS)])
    for index in range(num_requests):
        request = rows + max(int(arena[u(room + index)]), 0) * pool.ROW_FIELDS
        prefetch(arena, u(request))
    for index in range(num_requests):
        request = rows + max(int(arena[u(room + index)]), 0) * pool.ROW_FIELDS
        page = max(int(arena[u(request + pool.LAST_PAGE)]), 0)
        prefetch(arena, u(pages + page * PAGE_FIELDS))
    for index in range(num_requests):
        request = rows + max(int(arena[u(room + index)]), 0) * pool.ROW_FIELDS
        page = max(int(arena[u(request + pool.LAST_PAGE)]), 0)
        stop = (page << page_bits) + int(arena[u(pages + page * PAGE_FIELDS + pool.USED)])
        prefetch(arena, u(links + (stop - 2) * num_levels))
        prefetch(arena, u(links + stop * num_levels - 1))
        prefetch(arena, u(HEADER_SIZE + stop - 2))


@kernel
def _limit_others(arena: IntArray, chain: int) -> None:
    """Follow a request's other chains for a few places only; ``chain`` is its first."""
    for other in range(chain + CHAIN_FIELDS, int(arena[u(chain + CHAINS_STOP)]), CHAIN_FIELDS):
        limit = int(arena[u(other + FIRST_MET)]) + MOST_WEAK
        arena[u(other + MET_LIMIT)] = min(int(arena[u(other + MET_LIMIT)]), limit)


@kernel
def follow_chains(arena: IntArray, num_requests: int) -> None:
    """Follow the chains of a group of requests.

    All go on in turn, a place each, so that what one waits for from memory hides behind the others.
    Where a chain came to its limit, that of the next shorter k ends after as many places, and where
    that of the longest k leads to the last token, all others do after a few: longer matches are
    enough then.

    Args:
        arena: the pool; the room to work in begins with the requests' rows, or -1. Their chains and
            the slots that these lead to are written behind.
        num_requests: how many there are, at most ``GROUP``.
    """
    links, pages, _, _, room = _offsets(arena)
    page_bits, link_bits = int(arena[u(pool.PAGE_BITS)]), int(arena[u(pool.SLOT_BITS)])
    slot_mask = (1 << link_bits) - 1
    num_levels = int(arena[u(pool.NUM_LEVELS)])
    is_sure = arena[u(pool.FIRST_LEVEL)] >= SURE_MATCH
    going = stop = room + GOING
    if num_requests > 1:
        _ask_for_ends(arena, num_requests)
    for index in range(num_requests):
        row = int(arena[u(room + index)])
        if row != NONE:
            chains = room + SEARCHES + index * int(arena[u(pool.SEARCH_SIZE)])
            stop = _enter(arena, row, chains, stop)
    while stop > going:
        kept = going
        for at in range(going, stop):
            chain = int(arena[u(at)])
            link, met = int(arena[u(chain + NEXT_LINK)]), int(arena[u(chain + MET_STOP)])
            slot = link & slot_mask
            level = int(arena[u(chain + LEVEL)])
            link_at = links + slot * num_levels + level
            fields = pages + (slot >> page_bits) * PAGE_FIELDS
            if link >> link_bits != arena[u(fields + pool.GENERATION)]:
                continue  # the rest was reclaimed
            # The token is asked for here, so that it is there when the places are compared.
            known = arena[u(HEADER_SIZE + slot)] == arena[u(chain + ENDS_IN)]
            arena[u(met)] = slot if known else NONE
            arena[u(chain + MET_STOP)] = met + 1
            if is_sure and known and level == 0 and met == arena[u(chain + FIRST_MET)]:
                _limit_others(arena, chain)
            link = int(arena[u(link_at)])
            above = int(arena[u(chain + ABOVE)])
            most = int(arena[u(above + MET_STOP)]) - int(arena[u(above + FIRST_MET)])
            if (
                arena[u(above + MET_STOP)] == arena[u(above + MET_LIMIT)]
                and met + 1 - arena[u(chain + FIRST_MET)] >= most
            ):
                arena[u(chain + MET_LIMIT)] = met + 1
            elif link and met + 1 < arena[u(chain + MET_LIMIT)]:
                _ask_for_place(arena, links, pages, link & slot_mask)
                arena[u(chain + NEXT_LINK)] = link
                arena[u(kept)] = chain
                kept += 1
        stop = kept


@kernel
def _compare(
    arena: IntArray, pages: int, namespace: int, last: int, tail_size: int, chains: int,
    chains_stop: int, places: int,
) -> int:  # fmt: skip
    """Keep the places whose text matches the tail, and return how many there are.

    A level keeps its matches that are shorter than the k of the level before: the longer ones were
    met there, in the same order, so that most are known without a look. A place where the text
    before the last token stood, and another token followed, is kept twice (replaced, inserted).
    Beside a good match only a few weak places are kept, and of those that match in full a few too.

    Args:
        arena: the pool; the slots that the chains lead to are mutated.
        pages: where the pages' fields begin.
        namespace: that of the request.
        last: the slot of its last token.
        tail_size: how many tokens up to it are compared.
        chains: where the list of chains begins.
        chains_stop: where it ends.
        places: where slot, match length, kind, rank and the next place of each are written, while
            there is room.
    """
    page_bits = int(arena[u(pool.PAGE_BITS)])
    mask = (1 << page_bits) - 1
    place, places_stop = places, places + int(arena[u(pool.MAX_PLACES)]) * PLACE_FIELDS
    longer_k, known, known_stop, last_skip, end = tail_size + 1, 0, 0, 0, last
    index = longest = weak = 0
    max_match = int(arena[u(pool.MAX_MATCH)])
    for chain in range(chains, chains_stop, CHAIN_FIELDS):
        skip, level = int(arena[u(chain + SKIP)]), int(arena[u(chain + LEVEL)])
        k = int(arena[u(pool.FIRST_LEVEL + level)])
        if skip != last_skip:
            longer_k, known, known_stop, last_skip = tail_size + 1, 0, 0, skip
            end = _before(arena, pages, last)
        most = min(tail_size - skip, longer_k)  # where the comparison with the tail may end
        first = kept = int(arena[u(chain + FIRST_MET)])
        rank = full = 0
        for met in range(first, int(arena[u(chain + MET_STOP)])):
            if full == MOST_FULL or (weak >= MOST_WEAK and (skip or 2 * most < longest)):
                break
            slot = int(arena[u(met)])
            if slot == NONE:
                continue
            if known < known_stop and arena[u(known)] == slot:
                known += 1
                arena[u(kept)] = slot
                kept += 1
                continue
            fields = pages + (slot >> page_bits) * PAGE_FIELDS
            foreign = arena[u(fields + pool.PAGE_NAMESPACE)] != namespace
            if foreign or (slot & mask) >= arena[u(fields + pool.USED)]:
                continue
            if skip:
                following = _after(arena, pages, slot)
                if (
                    following == NONE
                    or arena[u(HEADER_SIZE + following)] == arena[u(HEADER_SIZE + last)]
                ):
                    continue
            match = 0
            back, own = slot, end
            while True:
                run = min(min(back & mask, own & mask) + 1, most - match)
                step = 0
                while (
                    step < run
                    and arena[u(HEADER_SIZE + back - step)] == arena[u(HEADER_SIZE + own - step)]
                ):
                    step += 1
                match += step
                if step < run or match == most:
                    break
                back = _before(arena, pages, back - step + 1)
                own = _before(arena, pages, own - step + 1)
                if back == NONE:
                    break
            if match < k:
                continue
            arena[u(kept)] = slot
            kept += 1
            if match >= longer_k:
                continue
            full += match == max_match
            longest = max(longest, 0 if skip else match)
            if longest >= GOOD_MATCH and (skip or 2 * match < longest):
                if weak >= MOST_WEAK:
                    continue
                weak += 1
            if place + (1 + skip) * PLACE_FIELDS > places_stop:
                return index
            for kind in range(skip, 1 + 2 * skip):
                arena[u(place + AT)] = slot
                arena[u(place + MATCH)] = match
                arena[u(place + KIND)] = kind
                arena[u(place + VOTES)] = rank
                index += 1
                arena[u(place + CHAIN)] = index
                place += PLACE_FIELDS
            rank += 1
        longer_k, known, known_stop = k, first, kept
    return index


@kernel
def ask_for_matches(arena: IntArray, index: int) -> None:
    """Ask for the text of the longest matches, a group's request before its places are compared."""
    chains = (int(arena[u(pool.ROOM_AT)]) << pool.LINE_BITS) + SEARCHES
    chains += index * int(arena[u(pool.SEARCH_SIZE)])
    if arena[u(chains + CHAINS_STOP)] == chains:
        return
    for met in range(int(arena[u(chains + FIRST_MET)]), int(arena[u(chains + MET_STOP)])):
        text = HEADER_SIZE + int(arena[u(met)])
        for back in range(16, 64, 16):
            prefetch(arena, u(text - back))
        prefetch(arena, u(text + 16))


@kernel
def keep_places(arena: IntArray, index: int) -> int:
    """Keep the places of a request's last tokens, and leave them and their number in the arena.

    Args:
        arena: the pool, whose room holds the chains that ``follow_chains`` has followed; the places
            and their number are overwritten.
        index: which one of the group the request is; its row is known.

    Returns:
        Where the chains begin: that room is free now.
    """
    _, pages, rows, places, room = _offsets(arena)
    chains = room + SEARCHES + index * int(arena[u(pool.SEARCH_SIZE)])
    stop, row = int(arena[u(chains + CHAINS_STOP)]), int(arena[u(room + index)])
    arena[u(pool.FOUND)] = 0
    if stop == chains:
        return chains
    request = rows + row * pool.ROW_FIELDS
    page = int(arena[u(request + pool.LAST_PAGE)])
    last = (page << int(arena[u(pool.PAGE_BITS)])) - 1
    last += int(arena[u(pages + page * PAGE_FIELDS + pool.USED)])
    namespace, length = int(arena[u(request + pool.NAMESPACE)]), int(arena[u(request + pool.RUN)])
    count = _compare(arena, pages, namespace, last, length, chains, stop, places)
    arena[u(pool.FOUND)] = count
    return chains


def compile_kernels() -> None:
    """Compile the kernels that others call, for their one signature each."""
    compile_once(follow_chains, "void(int32[::1], int64)")
    compile_once(ask_for_matches, "void(int32[::1], int64)")
    compile_once(keep_places, "int64(int32[::1], int64)")
