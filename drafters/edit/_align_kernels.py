"""Kernels of the edit drafter that run when tokens are committed: index, alignments, edits.

One request lives in two places. Its **text** is an extent of the store: ``capacity`` tokens, then
for each level the place before each place with the same k-gram, then the newest place of each
hash bucket. Its **slot** is one row of a table: a header, the alignments, the edits seen so far
and the sources of the last proposal. Kernels take the table flat and find their way by offsets:
``text`` is where an extent begins, ``slot`` where a row does.

An alignment follows one earlier stretch of the text that the output copies. It has a position (the
token it expects next) while the copy goes on. Where the output leaves it, the expected place
becomes its anchor, and the alignment looks ahead from there for the place where the copy resumes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, prefetch, u

IntArray = npt.NDArray[np.int32]
Append = Callable[[IntArray, IntArray, int, IntArray, bool], None]

NONE = -1
LEVELS = (4, 2, 1)
"""Lengths of the k-grams that are indexed, longest first."""
NUM_LEVELS = 3
NUM_FIELDS = 1 + 2 * NUM_LEVELS
"""Arrays of ``capacity`` int32 in an extent: the tokens, the chains, the buckets."""

BASE, CAPACITY, LENGTH, PROMPT_LENGTH, NUM_EDITS, NUM_SOURCES, PROPOSED_AT = 0, 1, 2, 3, 4, 5, 6
"""Header: where the extent is, what is in it, and how long the text was at the last proposal."""
HEADER_SIZE = 8

NUM_ALIGNMENTS = 4
POSITION, RUN, ANCHOR, GAP, COPIED, TOUCHED, ALIGNMENT_FIELDS = 0, 1, 2, 3, 4, 5, 6
"""Alignment: the place it expects next, tokens that agree there, where and how many tokens ago the
output left it, tokens that it predicted in all, text length when it last predicted one."""

MAX_EDITS = 32
EDIT_FIELDS = 5
"""Edit: start and stop of what was replaced, start and stop of the replacement, and how many times
the same had been replaced by the same before."""

MAX_SOURCES = 64
SOURCE_FIELDS = 7

ALIGNMENTS_AT = HEADER_SIZE
EDITS_AT = ALIGNMENTS_AT + NUM_ALIGNMENTS * ALIGNMENT_FIELDS
SOURCES_AT = EDITS_AT + MAX_EDITS * EDIT_FIELDS
SLOT_SIZE = SOURCES_AT + MAX_SOURCES * SOURCE_FIELDS

MAX_MATCH = 32
"""Tokens compared backwards, at most."""
MIN_START = 5
"""Tokens that must agree before a place is followed."""
MIN_RESUME = 2
"""Tokens that must agree before a copy that was left counts as resumed, on trial."""
TRUSTED_RUN = 5
"""Tokens that must agree before the trial is over and the edit is remembered."""
MAX_WINDOW = 400
"""Tokens behind the anchor that are searched for the place where the copy resumes."""
MIN_PATIENCE = 16
"""An alignment is given up after this many tokens, and as many more as it has predicted."""
BLOCK = 64
"""Tokens whose buckets are asked for before the first of them is entered."""
MAX_REPLACED = 12
MAX_REPLACEMENT = 16
"""Longest edit that is remembered, in tokens."""


@kernel
def bucket_of(store: IntArray, text: int, stop: int, length: int, capacity: int) -> int:
    """Return the bucket of the k-gram before ``stop``; NONE when it holds a negative id."""
    mixed = 0
    for place in range(stop - length, stop):
        token = int(store[u(text + place)])
        if token < 0:
            return NONE
        # below 2**31 times below 2**32: never overflows an int64
        mixed = ((mixed ^ token) * 0x9E3779B1) & 0x7FFFFFFF
        mixed ^= mixed >> 15
    return mixed & (capacity - 1)


@kernel
def agreement(store: IntArray, text: int, one: int, other: int) -> int:
    """Return how many tokens before ``one`` equal those before ``other``, at most MAX_MATCH."""
    length = 0
    limit = min(MAX_MATCH, one, other)
    while length < limit:
        token = store[u(text + one - 1 - length)]
        if token < 0 or token != store[u(text + other - 1 - length)]:
            break
        length += 1
    return length


@kernel
def index_tokens(store: IntArray, text: int, capacity: int, start: int, stop: int) -> None:
    """Enter the k-grams that end behind the places ``start..stop - 1`` into the chains.

    The buckets lie anywhere, so those of a block are asked for before the first is looked at. Each
    waits where its place will have its chain.
    """
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        for place in range(begin, end):
            for level in range(NUM_LEVELS):
                length = LEVELS[level]
                bucket = NONE
                if place + 1 >= length:
                    bucket = bucket_of(store, text, place + 1, length, capacity)
                if bucket >= 0:
                    bucket += text + (1 + NUM_LEVELS + level) * capacity
                    prefetch(store, u(bucket))
                    bucket -= text
                store[u(text + (1 + level) * capacity + place)] = bucket
        for place in range(begin, end):
            for level in range(NUM_LEVELS):
                chain = text + (1 + level) * capacity + place
                bucket = int(store[u(chain)])
                if bucket >= 0:
                    store[u(chain)] = store[u(text + bucket)]
                    store[u(text + bucket)] = place


@kernel
def times_made(store: IntArray, text: int, slots: IntArray, slot: int, edit: IntArray) -> int:
    """Return how many times the tokens that ``edit`` replaces were replaced by the same before."""
    number = int(slots[u(slot + NUM_EDITS)])
    for back in range(min(number, MAX_EDITS)):
        other = slot + EDITS_AT + EDIT_FIELDS * ((number - 1 - back) % MAX_EDITS)
        same = True
        for side in range(0, 4, 2):
            start, earlier = int(edit[u(side)]), int(slots[u(other + side)])
            size = int(edit[u(side + 1)]) - start
            same = same and size == int(slots[u(other + side + 1)]) - earlier
            for index in range(size if same else 0):
                same = same and (store[u(text + start + index)] == store[u(text + earlier + index)])
        if same:
            return int(slots[u(other + 4)]) + 1
    return 0


@kernel
def remember_edit(
    store: IntArray, text: int, slots: IntArray, slot: int, at: int, length: int
) -> None:
    """Note what the output put in place of what, now that the copy has resumed for certain.

    Args:
        store: the texts.
        text: where the request's begins.
        slots: the table; the alignment and the edits are changed.
        slot: where the request's row begins.
        at: where the alignment does.
        length: tokens of the text.
    """
    run = int(slots[u(at + RUN)])
    start, stop = int(slots[u(at + ANCHOR)]), int(slots[u(at + POSITION)]) - run
    new_start, new_stop = length - int(slots[u(at + GAP)]), length - run
    # The tokens that agree may reach back over the edit where a text repeats itself: the same
    # edit, told as one that begins at the anchor.
    if stop < start:
        new_stop += start - stop
        stop = start
    if new_stop < new_start:
        stop += new_start - new_stop
        new_stop = new_start
    slots[u(at + ANCHOR)] = NONE
    slots[u(at + GAP)] = 0
    replaced, replacement = stop - start, new_stop - new_start
    if replaced + replacement > 0 and replaced <= MAX_REPLACED and replacement <= MAX_REPLACEMENT:
        edit = np.array([start, stop, new_start, new_stop, 0], np.int32)
        edit[4] = times_made(store, text, slots, slot, edit)
        number = int(slots[u(slot + NUM_EDITS)])
        row = slot + EDITS_AT + EDIT_FIELDS * (number % MAX_EDITS)
        slots[row : row + EDIT_FIELDS] = edit
        slots[u(slot + NUM_EDITS)] = number + 1


@kernel
def resume(store: IntArray, text: int, slots: IntArray, at: int, length: int) -> None:
    """Look from the anchor of the alignment at ``at`` on for the place that the output copies."""
    anchor = int(slots[u(at + ANCHOR)])
    stop = min(anchor + min(MAX_WINDOW, MIN_PATIENCE + int(slots[u(at + COPIED)])), length)
    last = store[u(text + length - 1)]
    best_score = 0
    for place in range(max(anchor, 1), stop):
        if store[u(text + place - 1)] == last:
            run = agreement(store, text, place, length)
            score = 64 * run - (place - anchor)
            if run >= MIN_RESUME and score > best_score:
                best_score = score
                slots[u(at + POSITION)] = place
                slots[u(at + RUN)] = run


@kernel
def clear_alignment(slots: IntArray, at: int) -> None:
    """Set all fields of an alignment to NONE."""
    for field in range(ALIGNMENT_FIELDS):
        slots[u(at + field)] = NONE


@kernel
def follow(store: IntArray, text: int, slots: IntArray, slot: int, length: int) -> None:
    """Move every alignment over the last of ``length`` tokens."""
    last = store[u(text + length - 1)]
    for row in range(NUM_ALIGNMENTS):
        at = slot + ALIGNMENTS_AT + ALIGNMENT_FIELDS * row
        position, anchor = int(slots[u(at + POSITION)]), int(slots[u(at + ANCHOR)])
        if position < 0 and anchor < 0:
            continue
        if position >= 0 and last >= 0 and store[u(text + position)] == last:
            slots[u(at + POSITION)] = position + 1
            slots[u(at + RUN)] += 1
            slots[u(at + COPIED)] += 1
            slots[u(at + TOUCHED)] = length
            if anchor >= 0:
                slots[u(at + GAP)] += 1
        else:
            if anchor < 0:
                slots[u(at + ANCHOR)] = position
            slots[u(at + GAP)] += 1
            slots[u(at + POSITION)] = NONE
            slots[u(at + RUN)] = 0
            if slots[u(at + GAP)] > MIN_PATIENCE + slots[u(at + COPIED)]:
                clear_alignment(slots, at)
                continue
            resume(store, text, slots, at, length)
        if slots[u(at + ANCHOR)] >= 0 and slots[u(at + RUN)] >= TRUSTED_RUN:
            remember_edit(store, text, slots, slot, at, length)


@kernel
def drop_twins(slots: IntArray, slot: int) -> None:
    """Where two alignments have met, keep the one that has predicted more."""
    first = slot + ALIGNMENTS_AT
    stop = first + NUM_ALIGNMENTS * ALIGNMENT_FIELDS
    for at in range(first, stop, ALIGNMENT_FIELDS):
        for other in range(first, stop, ALIGNMENT_FIELDS):
            if (
                at != other
                and slots[u(at + POSITION)] >= 0
                and slots[u(at + POSITION)] == slots[u(other + POSITION)]
                and slots[u(at + COPIED)] >= slots[u(other + COPIED)]
            ):
                clear_alignment(slots, other)


@kernel
def begin_alignment(
    store: IntArray, text: int, capacity: int, slots: IntArray, slot: int, length: int
) -> None:
    """Follow the newest place of the longest k-gram, unless it is followed or agrees too little.

    It takes the row that predicted nothing for the longest time, but never the one that has
    predicted most: that is the original.
    """
    chains = text + capacity - 1
    place = int(store[u(chains + length)]) + 1
    first = slot + ALIGNMENTS_AT
    stop = first + NUM_ALIGNMENTS * ALIGNMENT_FIELDS
    for at in range(first, stop, ALIGNMENT_FIELDS):
        if slots[u(at + POSITION)] == place and slots[u(at + RUN)] >= LEVELS[0]:
            return  # the usual case: no need to compare
    run = 0
    while place > 0:
        run = agreement(store, text, place, length)
        if run >= LEVELS[0]:
            break
        place = int(store[u(chains + place)]) + 1  # another k-gram of the same bucket
    if run < MIN_START:
        return
    most = first
    for at in range(first, stop, ALIGNMENT_FIELDS):
        if slots[u(at + POSITION)] == place:
            return
        if slots[u(at + COPIED)] > slots[u(most + COPIED)]:
            most = at
    victim = NONE
    for at in range(first, stop, ALIGNMENT_FIELDS):
        if (at != most or slots[u(at + COPIED)] < 0) and (
            victim < 0 or slots[u(at + TOUCHED)] < slots[u(victim + TOUCHED)]
        ):
            victim = at
    slots[u(victim + POSITION)] = place
    slots[u(victim + RUN)] = run
    slots[u(victim + ANCHOR)] = NONE
    slots[u(victim + GAP)] = 0
    slots[u(victim + COPIED)] = 0
    slots[u(victim + TOUCHED)] = length


@kernel
def append(store: IntArray, slots: IntArray, row: int, tokens: IntArray, is_output: bool) -> None:
    """Append committed tokens to a request whose extent has room for them.

    Args:
        store: ``(size,)`` int32, changed.
        slots: ``(num_slots * SLOT_SIZE,)`` int32, changed.
        row: the request's.
        tokens: ``(num_new,)`` int32.
        is_output: whether the tokens are followed by the alignments; a prompt is only indexed.
    """
    slot = row * SLOT_SIZE
    text, capacity = int(slots[u(slot + BASE)]), int(slots[u(slot + CAPACITY)])
    start = int(slots[u(slot + LENGTH)])
    stop = start + tokens.size
    for place in range(start, stop):
        store[u(text + place)] = tokens[u(place - start)]
    slots[u(slot + LENGTH)] = stop
    index_tokens(store, text, capacity, start, stop)
    if is_output:
        # That the tokens behind are in the chains already changes nothing: chains lead back.
        for length in range(start + 1, stop + 1):
            follow(store, text, slots, slot, length)
            drop_twins(slots, slot)
            begin_alignment(store, text, capacity, slots, slot, length)


@kernel
def truncate(store: IntArray, slots: IntArray, row: int, length: int) -> None:
    """Forget the tokens from ``length`` on, with all that was concluded from them."""
    slot = row * SLOT_SIZE
    text, capacity = int(slots[u(slot + BASE)]), int(slots[u(slot + CAPACITY)])
    removed = int(slots[u(slot + LENGTH)]) - length
    if removed <= 0:
        return
    for stop in range(length + removed, length, -1):
        for level in range(NUM_LEVELS):
            if stop >= LEVELS[level]:
                bucket = bucket_of(store, text, stop, LEVELS[level], capacity)
                if bucket >= 0:
                    chain = text + (1 + level) * capacity + stop - 1
                    store[u(text + (1 + NUM_LEVELS + level) * capacity + bucket)] = store[u(chain)]
    slots[u(slot + LENGTH)] = length
    slots[u(slot + PROMPT_LENGTH)] = min(int(slots[u(slot + PROMPT_LENGTH)]), length)
    slots[u(slot + NUM_EDITS)] = 0
    slots[u(slot + NUM_SOURCES)] = 0
    for row_of_table in range(NUM_ALIGNMENTS):
        at = slot + ALIGNMENTS_AT + ALIGNMENT_FIELDS * row_of_table
        if slots[u(at + ANCHOR)] < 0 and slots[u(at + RUN)] > removed:
            slots[u(at + POSITION)] -= removed
            slots[u(at + RUN)] -= removed
            slots[u(at + TOUCHED)] = length
        else:
            clear_alignment(slots, at)


def compile_kernels() -> Append:
    """Compile every kernel for its one signature, callees first; return ``append``."""
    compile_once(bucket_of, "int64(int32[::1], int64, int64, int64, int64)")
    compile_once(agreement, "int64(int32[::1], int64, int64, int64)")
    compile_once(index_tokens, "void(int32[::1], int64, int64, int64, int64)")
    compile_once(times_made, "int64(int32[::1], int64, int32[::1], int64, int32[::1])")
    compile_once(remember_edit, "void(int32[::1], int64, int32[::1], int64, int64, int64)")
    compile_once(resume, "void(int32[::1], int64, int32[::1], int64, int64)")
    compile_once(clear_alignment, "void(int32[::1], int64)")
    compile_once(follow, "void(int32[::1], int64, int32[::1], int64, int64)")
    compile_once(drop_twins, "void(int32[::1], int64)")
    compile_once(begin_alignment, "void(int32[::1], int64, int64, int32[::1], int64, int64)")
    compile_once(truncate, "void(int32[::1], int32[::1], int64, int64)")
    return compile_once(append, "void(int32[::1], int32[::1], int64, int32[::1], boolean)")
