"""Kernels of the edit drafter that say where the output may go on: the sources of a proposal.

A source is a place of the text that the output may copy from now: where an alignment stands, where
it may resume, where the last tokens stood before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel
from . import _align_kernels as align
from ._align_kernels import (
    ANCHOR,
    COPIED,
    GAP,
    LENGTH,
    LEVELS,
    MAX_MATCH,
    MAX_SOURCES,
    NONE,
    NUM_ALIGNMENTS,
    NUM_FIELDS,
    NUM_LEVELS,
    NUM_SOURCES,
    POSITION,
    PROMPT_LENGTH,
    RUN,
)

IntArray = npt.NDArray[np.int32]
DoubleArray = npt.NDArray[np.float64]

PLACE, KIND, AGREED, JUMP_AT, JUMP_TO, BORN_OF, BORN_AT = 0, 1, 2, 3, 4, 5, 6
"""Source: the place of its next token, its kind, the tokens that agree before; where it jumps and
whereto; the source that it split from and how deep in the tree that was (NONE and 0 at the root).
While a tree grows, BORN_OF links the sources of one node, and BORN_AT holds how much agrees before
the edit that one competes with, 0 without."""

COPY_MAIN, COPY_SIDE = 0, 1
"""Kinds: an alignment goes on, one that has predicted much, or little."""
INSERTED_MAIN, INSERTED_SIDE, INSERTED_LONG = 2, 3, 4
"""Kinds: it resumes at its anchor; LONG: after many tokens."""
REPLACED_MAIN, REPLACED_SIDE = 5, 6
"""Kinds: it resumes as far behind the anchor as the output has gone since."""
DELETED, DELETED_FURTHER = 7, 8
"""Kinds: it resumes behind the anchor after the first, or a later, place of the last token."""
IN_PROMPT, IN_OUTPUT = 9, 10
"""Kinds: the last tokens stood here before."""
BUT_LAST = 11
"""Kind: the tokens before the last one stood here before."""
RECENT = 12
"""Kind: one of the last tokens, again."""
SUBSTITUTE, SURE_SUBSTITUTE, CONTESTED, SURE_CONTESTED = 13, 14, 15, 16
"""Kinds: an edit that was seen begins again here (behind its first token, it is a COPY_SIDE); a
source that this competes with, counted by what agrees before the edit. SURE: much agrees before
that source."""
NUM_KINDS = 17
NUM_BUCKETS = 10
BUCKET_OF = np.array([0, 1, 2, 3, 4, 5, 5, 6, 6, 6] + [7] * 6 + [8] * 16 + [9])
"""Class of each number of tokens that agree, 0 to MAX_MATCH."""

MAIN_COPIED = 64
"""Tokens that an alignment has predicted when it counts as the original."""
SURE_RUN = 32
"""Tokens that must agree before nothing but the alignment is asked."""
SURE_AGREED = 16
"""Tokens that must agree before an edit that competes is another matter."""
LONG_GAP = 50
MAX_REPLACED_MAIN, MAX_REPLACED_SIDE = 64, 8
MAX_AHEAD = 4
MAX_VISITS = 12
ENOUGH_SOURCES = 12
"""Sources that must be known before shorter k-grams are left alone."""
MAX_PLACES = 24
MAX_BUT_LAST = 8
NUM_RECENT = 24
MEMORY = 4000.0
"""Trials after which all earlier ones count half."""
MAX_LESSON = 64
"""Tokens after a proposal that are compared with it."""


@kernel
def agreement(tokens: IntArray, one: int, other: int) -> int:
    """Return how many tokens before ``one`` equal those before ``other``, at most MAX_MATCH."""
    # Once more as in _align_kernels: Numba's cache does not see edits in another file.
    length = 0
    limit = min(MAX_MATCH, one, other)
    while length < limit:
        token = tokens[one - 1 - length]
        if token < 0 or token != tokens[other - 1 - length]:
            break
        length += 1
    return length


@kernel
def add_source(
    tokens: IntArray, length: int, sources: IntArray, count: int, place: int, kind: int, agreed: int
) -> int:
    """Add a place unless it is there already, and return the new number of sources."""
    if count >= MAX_SOURCES or place < 0 or place >= length or tokens[place] < 0:
        return count
    for index in range(count):
        if sources[index, PLACE] == place:
            return count
    source = sources[count]
    source[PLACE] = place
    source[KIND] = kind
    source[AGREED] = agreed
    # What reaches the end of the text goes on from its own beginning: a period.
    source[JUMP_AT] = length
    source[JUMP_TO] = place
    source[BORN_OF] = NONE
    source[BORN_AT] = 0
    return count + 1


@kernel
def add_alignment(
    tokens: IntArray,
    header: IntArray,
    alignment: IntArray,
    sources: IntArray,
    count: int,
) -> int:
    """Add the places where an alignment goes on or resumes."""
    length = header[LENGTH]
    anchor = alignment[ANCHOR]
    gap = alignment[GAP]
    side = 0 if alignment[COPIED] >= MAIN_COPIED else 1
    place = alignment[POSITION]
    if place >= 0:
        run = min(alignment[RUN], MAX_MATCH)
        count = add_source(tokens, length, sources, count, place, COPY_MAIN + side, run)
    if anchor < 0:
        return count
    kind = INSERTED_MAIN + side
    if side == 0 and gap >= LONG_GAP:
        kind = INSERTED_LONG
    agreed = agreement(tokens, anchor, length)
    count = add_source(tokens, length, sources, count, anchor, kind, agreed)
    if gap <= (MAX_REPLACED_SIDE if side else MAX_REPLACED_MAIN):
        place = anchor + gap
        agreed = agreement(tokens, place, length)
        kind = REPLACED_MAIN + side
        count = add_source(tokens, length, sources, count, place, kind, agreed)
    if side == 0:
        last = tokens[length - 1]
        stop = min(anchor + align.MAX_WINDOW, length)
        found = 0
        for place in range(anchor + 1, stop):
            if tokens[place - 1] == last:
                kind = DELETED if found == 0 else DELETED_FURTHER
                agreed = agreement(tokens, place, length)
                count = add_source(tokens, length, sources, count, place, kind, agreed)
                found += 1
                if found == MAX_AHEAD:
                    break
    return count


@kernel
def add_earlier_places(text: IntArray, header: IntArray, sources: IntArray, count: int) -> int:
    """Add the newest places where the last tokens stood before, longest k-grams first."""
    tokens = text[0]
    length = header[LENGTH]
    for level in range(NUM_LEVELS):
        place = text[1 + level, length - 1]
        visits = 0
        while place >= 0 and visits < MAX_VISITS and count < MAX_PLACES:
            agreed = agreement(tokens, place + 1, length)
            if agreed >= LEVELS[level]:  # else another k-gram of the same bucket
                kind = IN_PROMPT if place + 1 < header[PROMPT_LENGTH] else IN_OUTPUT
                count = add_source(tokens, length, sources, count, place + 1, kind, agreed)
                visits += 1
            place = text[1 + level, place]
        if count >= ENOUGH_SOURCES:
            break
    return count


@kernel
def add_fillers(text: IntArray, header: IntArray, sources: IntArray, count: int) -> int:
    """Add weak sources: places that follow the tokens before the last one, and recent tokens.

    In new text a word is often replaced and the next one kept, or a recent one used again.
    """
    tokens = text[0]
    length = header[LENGTH]
    for level in range(NUM_LEVELS):
        place = text[1 + level, length - 2] if length >= 2 else NONE
        visits = 0
        while place >= 0 and visits < MAX_BUT_LAST and count < MAX_PLACES:
            agreed = agreement(tokens, place + 1, length - 1)
            if agreed >= LEVELS[level]:
                count = add_source(tokens, length, sources, count, place + 2, BUT_LAST, agreed)
                visits += 1
            place = text[1 + level, place]
    for back in range(NUM_RECENT):
        count = add_source(tokens, length, sources, count, length - 1 - back, RECENT, 0)
    return count


@kernel
def sure_alignment(alignments: IntArray) -> int:
    """Return the alignment that agrees longest if that is beyond doubt, or NONE."""
    best = NONE
    for row in range(NUM_ALIGNMENTS):
        if (
            alignments[row, ANCHOR] < 0
            and alignments[row, POSITION] >= 0
            and alignments[row, RUN] >= SURE_RUN
            and (best < 0 or alignments[row, RUN] > alignments[best, RUN])
        ):
            best = row
    return best


@kernel
def learn(tokens: IntArray, header: IntArray, sources: IntArray, counts: DoubleArray) -> None:
    """Compare the sources of the last proposal with the tokens that came since.

    A source is asked for token after token as long as it was right; each answer is a trial of its
    kind at the number of tokens that agreed by then.
    """
    reached = np.zeros(MAX_SOURCES, np.int64)
    start = header[align.PROPOSED_AT]
    depth_limit = min(header[LENGTH] - start, MAX_LESSON)
    for index in range(header[NUM_SOURCES]):
        source = sources[index]
        depth = np.int64(source[BORN_AT])
        parent = source[BORN_OF]
        if parent >= 0 and reached[parent] < depth:
            continue
        place = source[PLACE]
        kind = source[KIND]
        agreed = source[AGREED]
        while depth < depth_limit and place < start and tokens[place] >= 0:
            count = counts[kind, BUCKET_OF[agreed]]
            for other in range(index + 1, header[NUM_SOURCES]):
                if sources[other, BORN_OF] == index and sources[other, BORN_AT] == depth:
                    rivalled = CONTESTED + (1 if agreed >= SURE_AGREED else 0)
                    count = counts[rivalled, BUCKET_OF[sources[other, AGREED]]]
            if count[1] >= MEMORY:
                count[:] *= 0.5
            count[1] += 1.0
            if tokens[place] != tokens[start + depth]:
                break
            count[0] += 1.0
            depth += 1
            place += 1
            if place == source[JUMP_AT]:
                place = source[JUMP_TO]
            agreed = min(agreed + 1, MAX_MATCH)
            if kind >= SUBSTITUTE:
                kind = COPY_SIDE
        reached[index] = depth


@kernel
def find_sources(store: IntArray, slots: IntArray, rows: IntArray, counts: DoubleArray) -> None:
    """Learn from the last proposals of a batch of requests and find the sources of the next ones.

    Args:
        store: ``(size,)`` int32.
        slots: ``(num_slots, SLOT_SIZE)`` int32, changed.
        rows: ``(batch,)`` int32, the slot of each request; negative: none.
        counts: ``(NUM_KINDS, NUM_BUCKETS, 2)`` float64, hits and trials, changed.
    """
    for row in rows:
        if row < 0:
            continue
        header = slots[row, : align.HEADER_SIZE]
        alignments = slots[row, align.ALIGNMENTS_AT : align.EDITS_AT].reshape(
            (NUM_ALIGNMENTS, align.ALIGNMENT_FIELDS)
        )
        sources = slots[row, align.SOURCES_AT :].reshape((MAX_SOURCES, align.SOURCE_FIELDS))
        start = header[align.BASE]
        capacity = np.int64(header[align.CAPACITY])
        text = store[start : start + NUM_FIELDS * capacity].reshape((NUM_FIELDS, capacity))
        learn(text[0], header, sources, counts)
        count = 0
        sure = sure_alignment(alignments)
        if sure >= 0:
            count = add_alignment(text[0], header, alignments[sure], sources, count)
        elif header[LENGTH] > 0:
            aligned = False
            for index in range(NUM_ALIGNMENTS):
                if alignments[index, POSITION] >= 0 or alignments[index, ANCHOR] >= 0:
                    aligned = True
                    count = add_alignment(text[0], header, alignments[index], sources, count)
            count = add_earlier_places(text, header, sources, count)
            if aligned:
                count = add_fillers(text, header, sources, count)
        header[NUM_SOURCES] = count
        header[align.PROPOSED_AT] = header[LENGTH]


def compile_kernels() -> None:
    """Compile every kernel for its one signature, callees first."""
    compile_once(agreement, "int64(int32[::1], int64, int64)")
    compile_once(add_source, "int64(int32[::1], int64, int32[:, ::1], int64, int64, int64, int64)")
    compile_once(add_alignment, "int64(int32[::1], int32[::1], int32[::1], int32[:, ::1], int64)")
    compile_once(add_earlier_places, "int64(int32[:, ::1], int32[::1], int32[:, ::1], int64)")
    compile_once(add_fillers, "int64(int32[:, ::1], int32[::1], int32[:, ::1], int64)")
    compile_once(sure_alignment, "int64(int32[:, ::1])")
    compile_once(learn, "void(int32[::1], int32[::1], int32[:, ::1], float64[:, :, ::1])")
    compile_once(find_sources, "void(int32[::1], int32[:, ::1], int32[::1], float64[:, :, ::1])")
