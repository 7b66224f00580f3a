"""Kernels of the corpus drafter's search: the places in the corpus that match a tail.

A place is the position of a token in the corpus; its context is the text before it, read backwards.
With the places sorted by their contexts, those that share any number of tokens with a tail are
neighbours, and those that share fewer surround them. So one binary search finds the longest match,
and shorter contexts are found by walking outwards. A directory narrows that search: the last three
tokens of every 16th place, packed into one integer each, small enough to stay in the cache.

Places get votes level by level, the longest contexts first. A level takes a share of what the
longer ones left over.

Sources: suffix arrays, Manber and Myers (1993); the share is the escape of prediction by partial
matching, Cleary and Witten (1984).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
DoubleArray = npt.NDArray[np.float64]

KEY_TOKENS = 3
KEY_BITS = 21
STRIDE = 16
"""Tokens in a key of the directory, bits of each, and places from one key to the next."""
MAX_TOKEN_ID = (1 << KEY_BITS) - 2
"""The largest id that fits a key, in which 0 stands for no token."""

NUM_PLACES, LONGEST = 0, 1
"""What a search found: the number of places and the longest match."""


@kernel
def _usable(tail: IntArray, max_match: int) -> int:
    """Return how many tokens at the tail's end can stand in a corpus, at most ``max_match``."""
    num = 0
    limit = min(max_match, tail.size)
    while num < limit and 0 <= tail[tail.size - 1 - num] <= MAX_TOKEN_ID:
        num += 1
    return num


@kernel
def _shared(text: IntArray, place: int, tail: IntArray, limit: int) -> int:
    """Return how many tokens before ``place`` equal those at the tail's end, at most ``limit``.

    The text begins with a barrier, which equals no token of a tail, so it is never left.
    """
    num = 0
    while num < limit and text[place - 1 - num] == tail[tail.size - 1 - num]:
        num += 1
    return num


@kernel
def _find(text: IntArray, order: IntArray, keys: LongArray, tail: IntArray, limit: int) -> int:
    """Return the index of the first place whose context does not sort before the tail.

    Args:
        text: ``(num_tokens,)`` int32, barriers are -1.
        order: ``(num_places,)`` int32, the places sorted by their contexts.
        keys: int64, the directory.
        tail: int32, the request's last tokens.
        limit: how many of them count.
    """
    key = np.int64(0)
    for back in range(KEY_TOKENS):
        part = np.int64(tail[tail.size - 1 - back]) + 1 if back < limit else np.int64(0)
        key = (key << KEY_BITS) | part
    low, high = 0, keys.size
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    step = 1
    while high < keys.size and keys[high] == key:
        high += step
        step *= 2
    start, stop = max(low - 1, 0) * STRIDE, min(high * STRIDE, order.size)
    while start < stop:
        middle = (start + stop) >> 1
        place = int(order[middle])
        num = _shared(text, place, tail, limit)
        if num == limit or text[place - 1 - num] > tail[tail.size - 1 - num]:
            stop = middle
        else:
            start = middle + 1
    return start


@kernel
def _reach(
    text: IntArray, order: IntArray, tail: IntArray, length: int, begin: int, way: int
) -> int:
    """Return how many places in a row share at least ``length`` tokens with the tail.

    Args:
        text: see ``_find``, as for the next two.
        order: the sorted places.
        tail: the last tokens.
        length: tokens to share.
        begin: index of the first place that is asked.
        way: 1 to go up from there, -1 to go down.
    """
    room = order.size - begin if way > 0 else begin + 1
    good, step = 0, 1
    while good + step <= room:
        place = int(order[begin + way * (good + step - 1)])
        if _shared(text, place, tail, length) < length:
            break
        good += step
        step *= 2
    bad = min(good + step, room + 1)
    while bad - good > 1:
        middle = (good + bad) >> 1
        if _shared(text, int(order[begin + way * (middle - 1)]), tail, length) == length:
            good = middle
        else:
            bad = middle
    return good


@kernel
def _share(text: IntArray, places: IntArray, count: int, escape: float) -> float:
    """Return what part of the probability left over goes to the places of one level.

    Args:
        text: see ``_find``.
        places: int32, the level's places, or a sample of them.
        count: their number, those not in the sample included.
        escape: how much each token that was seen here speaks for one that was not.
    """
    distinct = 0
    for i in range(places.size):
        first = 0
        while text[places[first]] != text[places[i]]:
            first += 1
        if first == i:
            distinct += 1
    return count / (count + escape * distinct)


@kernel
def _gather(
    text: IntArray, order: IntArray, keys: LongArray, tail: IntArray, limit: int, min_match: int,
    floor: float, escapes: DoubleArray, places: IntArray, votes: DoubleArray,
) -> tuple[int, int]:  # fmt: skip
    """Write the places that vote and their votes; return their number and the longest match.

    Levels wider than the room that is left are sampled at equal distances; as they are sorted by
    longer contexts, that takes a part of each of those.

    Args:
        text: see ``_find``, as for the next four.
        order: the sorted places.
        keys: the directory.
        tail: the last tokens.
        limit: how many of them count.
        min_match: shorter matches do not vote.
        floor: contexts are asked while more than this probability is left over.
        escapes: ``(max_match + 1,)`` float64 by length of match, see ``_share``.
        places: ``(max_places,)`` int32, overwritten.
        votes: ``(max_places,)`` float64, overwritten; they sum up to at most 1.
    """
    low = _find(text, order, keys, tail, limit)
    high = low
    num, longest, left_over = 0, 0, 1.0
    while num < places.size and left_over > floor:
        length = 0
        if low > 0:
            length = _shared(text, int(order[low - 1]), tail, limit)
        if high < order.size:
            length = max(length, _shared(text, int(order[high]), tail, limit))
        if length < min_match:
            break
        longest = max(longest, length)
        below = _reach(text, order, tail, length, low - 1, -1)
        above = _reach(text, order, tail, length, high, 1)
        fresh = below + above
        taken = min(fresh, places.size - num)
        low -= below
        for i in range(taken):
            at = (2 * i + 1) * fresh // (2 * taken)
            places[num + i] = order[low + at if at < below else high + at - below]
        share = left_over * _share(text, places[num : num + taken], fresh, escapes[length])
        for i in range(num, num + taken):
            votes[i] = share / taken
        left_over -= share
        high += above
        num += taken
    return num, longest


@kernel
def search(
    text: IntArray, order: IntArray, keys: LongArray, tails: IntArray, sizes: LongArray,
    rows: LongArray, min_match: int, floor: float, escapes: DoubleArray, places: IntArray,
    votes: DoubleArray, found: LongArray,
) -> None:  # fmt: skip
    """Find the places of each request; a row of -1 gets none.

    Args:
        text: read-only, see ``_find``, as for the next two.
        order: read-only.
        keys: read-only.
        tails: ``(num_rows, room)`` int32, each request's last tokens.
        sizes: ``(num_rows,)`` int64, how many of them there are.
        rows: ``(batch,)`` int64, the requests' rows.
        min_match: see ``_gather``, as for the next two.
        floor: probability left over.
        escapes: by length of match.
        places: ``(batch, max_places)`` int32, overwritten.
        votes: ``(batch, max_places)`` float64, overwritten.
        found: ``(batch, 2)`` int64, overwritten: NUM_PLACES and LONGEST.
    """
    for index in range(rows.size):
        found[index, NUM_PLACES] = 0
        found[index, LONGEST] = 0
        if rows[index] < 0:
            continue
        tail = tails[rows[index], : sizes[rows[index]]]
        limit = _usable(tail, escapes.size - 1)
        if limit >= min_match:
            found[index, NUM_PLACES], found[index, LONGEST] = _gather(
                text, order, keys, tail, limit, min_match, floor, escapes, places[index],
                votes[index],
            )  # fmt: skip


@kernel
def count_misplaced(text: IntArray, order: IntArray, keys: LongArray, max_context: int) -> int:
    """Return how many places sort before the one in front of them, plus how many keys are wrong.

    Args:
        text: read-only, see ``_find``, as for the next two.
        order: read-only.
        keys: read-only.
        max_context: how many tokens of the contexts are compared.
    """
    wrong = 0
    for index in range(order.size):
        place = int(order[index])
        if index % STRIDE == 0:
            key, part = np.int64(0), np.int64(1)
            for back in range(KEY_TOKENS):
                if part > 0:  # what is before a barrier does not count
                    part = np.int64(text[place - 1 - back]) + 1
                key = (key << KEY_BITS) | part
            if keys[index // STRIDE] != key:
                wrong += 1
        if index > 0:
            before = int(order[index - 1])
            num = 0
            while (
                num < max_context
                and text[place - 1 - num] >= 0
                and text[place - 1 - num] == text[before - 1 - num]
            ):
                num += 1
            if num < max_context and text[before - 1 - num] > text[place - 1 - num]:
                wrong += 1
    return wrong


_TEXT = "Array(int32, 1, 'C', readonly=True)"
_KEYS = "Array(int64, 1, 'C', readonly=True)"


def compile_kernels() -> None:
    """Compile each kernel for its one signature; a mapped file's arrays are read-only."""
    compile_once(_usable, "int64(int32[::1], int64)")
    compile_once(_shared, f"int64({_TEXT}, int64, int32[::1], int64)")
    compile_once(_find, f"int64({_TEXT}, {_TEXT}, {_KEYS}, int32[::1], int64)")
    compile_once(_reach, f"int64({_TEXT}, {_TEXT}, int32[::1], int64, int64, int64)")
    compile_once(_share, f"float64({_TEXT}, int32[::1], int64, float64)")
    compile_once(
        _gather,
        f"UniTuple(int64, 2)({_TEXT}, {_TEXT}, {_KEYS}, int32[::1], int64, int64, float64, "
        "float64[::1], int32[::1], float64[::1])",
    )
    compile_once(
        search,
        f"void({_TEXT}, {_TEXT}, {_KEYS}, int32[:,::1], int64[::1], int64[::1], int64, float64, "
        "float64[::1], int32[:,::1], float64[:,::1], int64[:,::1])",
    )
    compile_once(count_misplaced, f"int64({_TEXT}, {_TEXT}, {_KEYS}, int64)")
