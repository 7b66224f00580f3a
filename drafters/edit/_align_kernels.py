"""Kernels of the edit drafter that run when tokens are committed: index, alignments, edits.

One request lives in two places. Its **text** is an extent of the store: ``capacity`` tokens, then
for each level the place before each place with the same k-gram, then the newest place of each
hash bucket. Its **slot** is one row of a table: a header, the alignments, the edits seen so far
and the sources of the last proposal.

An alignment follows one earlier stretch of the text that the output copies. It has a position (the
token it expects next) while the copy goes on. Where the output leaves it, the expected place
becomes its anchor, and the alignment looks ahead from there for the place where the copy resumes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

IntArray = npt.NDArray[np.int32]

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
MAX_REPLACED = 12
MAX_REPLACEMENT = 16
"""Longest edit that is remembered, in tokens."""


@kernel
def bucket_of(tokens: IntArray, stop: int, length: int, capacity: int) -> int:
    """Return the bucket of the k-gram before ``stop``; NONE when it holds a negative id."""
    mixed = np.int64(0)
    for place in range(stop - length, stop):
        token = np.int64(tokens[place])
        if token < 0:
            return NONE
        # below 2**31 times below 2**32: never overflows an int64
        mixed = ((mixed ^ token) * np.int64(0x9E3779B1)) & np.int64(0x7FFFFFFF)
        mixed ^= mixed >> np.int64(15)
    return int(mixed & (capacity - 1))


@kernel
def agreement(tokens: IntArray, one: int, other: int) -> int:
    """Return how many tokens before ``one`` equal those before ``other``, at most MAX_MATCH."""
    length = 0
    limit = min(MAX_MATCH, one, other)
    while length < limit:
        token = tokens[one - 1 - length]
        if token < 0 or token != tokens[other - 1 - length]:
            break
        length += 1
    return length


@kernel
def index_token(text: IntArray, stop: int) -> None:
    """Enter the k-grams that end before ``stop`` into the chains."""
    capacity = text.shape[1]
    for level in range(NUM_LEVELS):
        length = LEVELS[level]
        text[1 + level, stop - 1] = NONE
        if stop >= length:
            bucket = bucket_of(text[0], stop, length, capacity)
            if bucket >= 0:
                text[1 + level, stop - 1] = text[1 + NUM_LEVELS + level, bucket]
                text[1 + NUM_LEVELS + level, bucket] = stop - 1


@kernel
def times_made(tokens: IntArray, header: IntArray, edits: IntArray, edit: IntArray) -> int:
    """Return how many times the tokens that ``edit`` replaces were replaced by the same before."""
    number = header[NUM_EDITS]
    for back in range(min(number, MAX_EDITS)):
        other = edits[(number - 1 - back) % MAX_EDITS]
        same = True
        for side in range(0, 4, 2):
            size = edit[side + 1] - edit[side]
            same = same and size == other[side + 1] - other[side]
            for index in range(size if same else 0):
                same = same and tokens[edit[side] + index] == tokens[other[side] + index]
        if same:
            return int(other[4]) + 1
    return 0


@kernel
def remember_edit(tokens: IntArray, alignment: IntArray, header: IntArray, edits: IntArray) -> None:
    """Note what the output put in place of what, now that the copy has resumed for certain."""
    length = header[LENGTH]
    start = alignment[ANCHOR]
    stop = alignment[POSITION] - alignment[RUN]
    new_start = length - alignment[GAP]
    new_stop = length - alignment[RUN]
    # The tokens that agree may reach back over the edit where a text repeats itself: the same
    # edit, told as one that begins at the anchor.
    if stop < start:
        new_stop += start - stop
        stop = start
    if new_stop < new_start:
        stop += new_start - new_stop
        new_stop = new_start
    alignment[ANCHOR] = NONE
    alignment[GAP] = 0
    replaced = stop - start
    replacement = new_stop - new_start
    if replaced + replacement > 0 and replaced <= MAX_REPLACED and replacement <= MAX_REPLACEMENT:
        edit = np.array([start, stop, new_start, new_stop, 0], np.int32)
        edit[4] = times_made(tokens, header, edits, edit)
        edits[header[NUM_EDITS] % MAX_EDITS] = edit
        header[NUM_EDITS] += 1


@kernel
def resume(alignment: IntArray, tokens: IntArray, length: int) -> None:
    """Look from the anchor on for the place that the output copies now."""
    anchor = alignment[ANCHOR]
    stop = min(anchor + min(MAX_WINDOW, MIN_PATIENCE + alignment[COPIED]), length)
    last = tokens[length - 1]
    best_score = 0
    for place in range(max(anchor, 1), stop):
        if tokens[place - 1] == last:
            run = agreement(tokens, place, length)
            score = 64 * run - (place - anchor)
            if run >= MIN_RESUME and score > best_score:
                best_score = score
                alignment[POSITION] = place
                alignment[RUN] = run


@kernel
def follow(tokens: IntArray, header: IntArray, alignments: IntArray, edits: IntArray) -> None:
    """Move every alignment over the last token."""
    length = header[LENGTH]
    last = tokens[length - 1]
    for row in range(NUM_ALIGNMENTS):
        alignment = alignments[row]
        position = alignment[POSITION]
        if position < 0 and alignment[ANCHOR] < 0:
            continue
        if position >= 0 and last >= 0 and tokens[position] == last:
            alignment[POSITION] += 1
            alignment[RUN] += 1
            alignment[COPIED] += 1
            alignment[TOUCHED] = length
            if alignment[ANCHOR] >= 0:
                alignment[GAP] += 1
        else:
            if alignment[ANCHOR] < 0:
                alignment[ANCHOR] = position
            alignment[GAP] += 1
            alignment[POSITION] = NONE
            alignment[RUN] = 0
            if alignment[GAP] > MIN_PATIENCE + alignment[COPIED]:
                alignment[:] = NONE
                continue
            resume(alignment, tokens, length)
        if alignment[ANCHOR] >= 0 and alignment[RUN] >= TRUSTED_RUN:
            remember_edit(tokens, alignment, header, edits)


@kernel
def drop_twins(alignments: IntArray) -> None:
    """Where two alignments have met, keep the one that has predicted more."""
    for row in range(NUM_ALIGNMENTS):
        for other in range(NUM_ALIGNMENTS):
            if (
                row != other
                and alignments[row, POSITION] >= 0
                and alignments[row, POSITION] == alignments[other, POSITION]
                and alignments[row, COPIED] >= alignments[other, COPIED]
            ):
                alignments[other, :] = NONE


@kernel
def begin_alignment(text: IntArray, length: int, alignments: IntArray) -> None:
    """Follow the newest place of the longest k-gram, unless it is followed or agrees too little.

    It takes the row that predicted nothing for the longest time, but never the one that has
    predicted most: that is the original.
    """
    place = text[1, length - 1] + 1
    while place > 0 and agreement(text[0], place, length) < LEVELS[0]:
        place = text[1, place - 1] + 1  # another k-gram of the same bucket
    run = agreement(text[0], place, length)
    if run < MIN_START:
        return
    most = 0
    for row in range(NUM_ALIGNMENTS):
        if alignments[row, POSITION] == place:
            return
        if alignments[row, COPIED] > alignments[most, COPIED]:
            most = row
    victim = NONE
    for row in range(NUM_ALIGNMENTS):
        if (row != most or alignments[row, COPIED] < 0) and (
            victim < 0 or alignments[row, TOUCHED] < alignments[victim, TOUCHED]
        ):
            victim = row
    alignment = alignments[victim]
    alignment[POSITION] = place
    alignment[RUN] = run
    alignment[ANCHOR] = NONE
    alignment[GAP] = 0
    alignment[COPIED] = 0
    alignment[TOUCHED] = length


@kernel
def append(store: IntArray, slots: IntArray, slot: int, tokens: IntArray, is_output: bool) -> None:
    """Append committed tokens to a request whose extent has room for them.

    Args:
        store: ``(size,)`` int32, changed.
        slots: ``(num_slots, SLOT_SIZE)`` int32, changed.
        slot: the request's row.
        tokens: ``(num_new,)`` int32.
        is_output: whether the tokens are followed by the alignments; a prompt is only indexed.
    """
    header = slots[slot, :HEADER_SIZE]
    capacity = np.int64(header[CAPACITY])
    start = header[BASE]
    text = store[start : start + NUM_FIELDS * capacity].reshape((NUM_FIELDS, capacity))
    alignments = slots[slot, ALIGNMENTS_AT:EDITS_AT].reshape((NUM_ALIGNMENTS, ALIGNMENT_FIELDS))
    edits = slots[slot, EDITS_AT:SOURCES_AT].reshape((MAX_EDITS, EDIT_FIELDS))
    for token in tokens:
        text[0, header[LENGTH]] = token
        header[LENGTH] += 1
        index_token(text, header[LENGTH])
        if is_output:
            follow(text[0], header, alignments, edits)
            drop_twins(alignments)
            begin_alignment(text, header[LENGTH], alignments)


@kernel
def truncate(store: IntArray, slots: IntArray, slot: int, length: int) -> None:
    """Forget the tokens from ``length`` on, with all that was concluded from them."""
    header = slots[slot, :HEADER_SIZE]
    removed = header[LENGTH] - length
    if removed <= 0:
        return
    capacity = np.int64(header[CAPACITY])
    start = header[BASE]
    text = store[start : start + NUM_FIELDS * capacity].reshape((NUM_FIELDS, capacity))
    for stop in range(header[LENGTH], length, -1):
        for level in range(NUM_LEVELS):
            if stop >= LEVELS[level]:
                bucket = bucket_of(text[0], stop, LEVELS[level], text.shape[1])
                if bucket >= 0:
                    text[1 + NUM_LEVELS + level, bucket] = text[1 + level, stop - 1]
    header[LENGTH] = length
    header[PROMPT_LENGTH] = min(header[PROMPT_LENGTH], length)
    header[NUM_EDITS] = 0
    header[NUM_SOURCES] = 0
    alignments = slots[slot, ALIGNMENTS_AT:EDITS_AT].reshape((NUM_ALIGNMENTS, ALIGNMENT_FIELDS))
    for row in range(NUM_ALIGNMENTS):
        alignment = alignments[row]
        if alignment[ANCHOR] < 0 and alignment[RUN] > removed:
            alignment[POSITION] -= removed
            alignment[RUN] -= removed
            alignment[TOUCHED] = length
        else:
            alignment[:] = NONE


def compile_kernels() -> None:
    """Compile every kernel for its one signature, callees first."""
    compile_once(bucket_of, "int64(int32[::1], int64, int64, int64)")
    compile_once(agreement, "int64(int32[::1], int64, int64)")
    compile_once(index_token, "void(int32[:, ::1], int64)")
    compile_once(times_made, "int64(int32[::1], int32[::1], int32[:, ::1], int32[::1])")
    compile_once(remember_edit, "void(int32[::1], int32[::1], int32[::1], int32[:, ::1])")
    compile_once(resume, "void(int32[::1], int32[::1], int64)")
    compile_once(follow, "void(int32[::1], int32[::1], int32[:, ::1], int32[:, ::1])")
    compile_once(drop_twins, "void(int32[:, ::1])")
    compile_once(begin_alignment, "void(int32[:, ::1], int64, int32[:, ::1])")
    compile_once(append, "void(int32[::1], int32[:, ::1], int64, int32[::1], boolean)")
    compile_once(truncate, "void(int32[::1], int32[:, ::1], int64, int64)")
