"""Kernels of the edit drafter that say where the output may go on: the sources of a proposal.

A source is a place of the text that the output may copy from now: where an alignment stands, where
it may resume, where the last tokens stood before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, prefetch, u
from . import _align_kernels as align
from ._align_kernels import (
    ALIGNMENT_FIELDS,
    ALIGNMENTS_AT,
    ANCHOR,
    COPIED,
    GAP,
    LENGTH,
    LEVELS,
    MAX_MATCH,
    MAX_SOURCES,
    NONE,
    NUM_ALIGNMENTS,
    NUM_LEVELS,
    NUM_SOURCES,
    POSITION,
    PROMPT_LENGTH,
    RUN,
    SOURCE_FIELDS,
    SOURCES_AT,
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
STAMP, MARKS, NUM_MARKS = 0, 1, 256
"""In the room to work in: what marks hold that were set for the request at hand, and a mark for
each class of places. Where there is none, no source has such a place."""
LAST_STAMP = (1 << 30) - 1


@kernel
def agreement(store: IntArray, text: int, one: int, other: int) -> int:
    """Return how many tokens before ``one`` equal those before ``other``, at most MAX_MATCH."""
    # Once more as in _align_kernels: Numba's cache does not see edits in another file.
    length = 0
    limit = min(MAX_MATCH, one, other)
    while length < limit:
        token = store[u(text + one - 1 - length)]
        if token < 0 or token != store[u(text + other - 1 - length)]:
            break
        length += 1
    return length


@kernel
def add_source(
    store: IntArray, text: int, slots: IntArray, slot: int, work: IntArray, place: int, kind: int,
    agreed: int,
) -> None:  # fmt: skip
    """Add a place to the sources of a request unless it is there already.

    Args:
        store: the texts.
        text: where the request's begins.
        slots: the table, changed.
        slot: where the request's row begins.
        work: what places have been met, changed.
        place: the place.
        kind: how it was found.
        agreed: tokens that agree before it.
    """
    count, length = int(slots[u(slot + NUM_SOURCES)]), int(slots[u(slot + LENGTH)])
    if count >= MAX_SOURCES or place < 0 or place >= length or store[u(text + place)] < 0:
        return
    source = slot + SOURCES_AT
    stop = source + SOURCE_FIELDS * count
    mark = MARKS + (place & (NUM_MARKS - 1))
    if work[u(mark)] == work[u(STAMP)]:
        while source < stop:
            if slots[u(source + PLACE)] == place:
                return
            source += SOURCE_FIELDS
    work[u(mark)] = work[u(STAMP)]
    slots[u(stop + PLACE)] = place
    slots[u(stop + KIND)] = kind
    slots[u(stop + AGREED)] = agreed
    # What reaches the end of the text goes on from its own beginning: a period.
    slots[u(stop + JUMP_AT)] = length
    slots[u(stop + JUMP_TO)] = place
    slots[u(stop + BORN_OF)] = NONE
    slots[u(stop + BORN_AT)] = 0
    slots[u(slot + NUM_SOURCES)] = count + 1


@kernel
def add_alignment(
    store: IntArray, text: int, slots: IntArray, slot: int, work: IntArray, at: int
) -> None:
    """Add the places where the alignment at ``at`` goes on or resumes."""
    length = int(slots[u(slot + LENGTH)])
    anchor, gap = int(slots[u(at + ANCHOR)]), int(slots[u(at + GAP)])
    side = 0 if slots[u(at + COPIED)] >= MAIN_COPIED else 1
    place = int(slots[u(at + POSITION)])
    if place >= 0:
        run = min(int(slots[u(at + RUN)]), MAX_MATCH)
        add_source(store, text, slots, slot, work, place, COPY_MAIN + side, run)
    if anchor < 0:
        return
    kind = INSERTED_MAIN + side
    if side == 0 and gap >= LONG_GAP:
        kind = INSERTED_LONG
    agreed = agreement(store, text, anchor, length)
    add_source(store, text, slots, slot, work, anchor, kind, agreed)
    if gap <= (MAX_REPLACED_SIDE if side else MAX_REPLACED_MAIN):
        place = anchor + gap
        agreed = agreement(store, text, place, length)
        add_source(store, text, slots, slot, work, place, REPLACED_MAIN + side, agreed)
    if side == 0:
        last = store[u(text + length - 1)]
        stop = min(anchor + align.MAX_WINDOW, length)
        found = 0
        for place in range(anchor + 1, stop):
            if store[u(text + place - 1)] == last:
                kind = DELETED if found == 0 else DELETED_FURTHER
                agreed = agreement(store, text, place, length)
                add_source(store, text, slots, slot, work, place, kind, agreed)
                found += 1
                if found == MAX_AHEAD:
                    break


@kernel
def ask_for_chains(store: IntArray, text: int, capacity: int, place: int) -> None:
    """Ask for the places that the chains of ``place`` lead to."""
    for level in range(NUM_LEVELS):
        chain = text + (1 + level) * capacity
        earlier = int(store[u(chain + place)])
        if earlier >= 0:
            prefetch(store, u(chain + earlier))
            prefetch(store, u(text + earlier))


@kernel
def add_earlier_places(
    store: IntArray, text: int, capacity: int, slots: IntArray, slot: int, work: IntArray
) -> None:
    """Add the newest places where the last tokens stood before, longest k-grams first."""
    length, prompt_length = int(slots[u(slot + LENGTH)]), int(slots[u(slot + PROMPT_LENGTH)])
    for level in range(NUM_LEVELS):
        chain = text + (1 + level) * capacity
        place = int(store[u(chain + length - 1)])
        visits = 0
        while place >= 0 and visits < MAX_VISITS and slots[u(slot + NUM_SOURCES)] < MAX_PLACES:
            following = int(store[u(chain + place)])
            prefetch(store, u(chain + max(following, 0)))
            prefetch(store, u(text + max(following, 0)))
            agreed = agreement(store, text, place + 1, length)
            if agreed >= LEVELS[level]:  # else another k-gram of the same bucket
                kind = IN_PROMPT if place + 1 < prompt_length else IN_OUTPUT
                add_source(store, text, slots, slot, work, place + 1, kind, agreed)
                visits += 1
            place = following
        if slots[u(slot + NUM_SOURCES)] >= ENOUGH_SOURCES:
            break


@kernel
def add_fillers(
    store: IntArray, text: int, capacity: int, slots: IntArray, slot: int, work: IntArray
) -> None:
    """Add weak sources: places that follow the tokens before the last one, and recent tokens.

    In new text a word is often replaced and the next one kept, or a recent one used again.
    """
    length = int(slots[u(slot + LENGTH)])
    for level in range(NUM_LEVELS):
        chain = text + (1 + level) * capacity
        place = int(store[u(chain + length - 2)]) if length >= 2 else NONE
        visits = 0
        while place >= 0 and visits < MAX_BUT_LAST and slots[u(slot + NUM_SOURCES)] < MAX_PLACES:
            following = int(store[u(chain + place)])
            prefetch(store, u(chain + max(following, 0)))
            prefetch(store, u(text + max(following, 0)))
            agreed = agreement(store, text, place + 1, length - 1)
            if agreed >= LEVELS[level]:
                add_source(store, text, slots, slot, work, place + 2, BUT_LAST, agreed)
                visits += 1
            place = following
    for back in range(NUM_RECENT):
        add_source(store, text, slots, slot, work, length - 1 - back, RECENT, 0)


@kernel
def sure_alignment(slots: IntArray, slot: int) -> int:
    """Return where the alignment is that agrees longest if that is beyond doubt, or NONE."""
    best = NONE
    for row in range(NUM_ALIGNMENTS):
        at = slot + ALIGNMENTS_AT + ALIGNMENT_FIELDS * row
        if (
            slots[u(at + ANCHOR)] < 0
            and slots[u(at + POSITION)] >= 0
            and slots[u(at + RUN)] >= SURE_RUN
            and (best < 0 or slots[u(at + RUN)] > slots[u(best + RUN)])
        ):
            best = at
    return best


@kernel
def judge(
    slots: IntArray, slot: int, index: int, depth: int, kind: int, agreed: int, first_born: int
) -> tuple[int, int]:
    """Return the kind and the number of tokens by which a source's next token is judged.

    Args:
        slots: the table.
        slot: where the request's row begins.
        index: the source.
        depth: how deep in the tree.
        kind: its kind by then.
        agreed: how many tokens agree by then.
        first_born: no source before this one was born of another.
    """
    rivalled = agreed
    for other in range(max(index + 1, first_born), int(slots[u(slot + NUM_SOURCES)])):
        rival = slot + SOURCES_AT + SOURCE_FIELDS * other
        if slots[u(rival + BORN_OF)] == index and slots[u(rival + BORN_AT)] == depth:
            kind = CONTESTED + (1 if agreed >= SURE_AGREED else 0)
            rivalled = int(slots[u(rival + AGREED)])
    return kind, rivalled


@kernel
def learn(store: IntArray, text: int, slots: IntArray, slot: int, counts: DoubleArray) -> None:
    """Compare the sources of the last proposal with the tokens that came since.

    A source is asked for token after token as long as it was right; each answer is a trial of its
    kind at the number of tokens that agreed by then.
    """
    num_sources = int(slots[u(slot + NUM_SOURCES)])
    start = int(slots[u(slot + align.PROPOSED_AT)])
    depth_limit = min(int(slots[u(slot + LENGTH)]) - start, MAX_LESSON)
    if depth_limit <= 0 or num_sources == 0:
        return
    sources = slot + SOURCES_AT
    first_born = 0
    while first_born < num_sources and (
        slots[u(sources + SOURCE_FIELDS * first_born + BORN_OF)] < 0
    ):
        first_born += 1
    reached = np.empty(MAX_SOURCES, np.int64)
    for index in range(num_sources):
        source = sources + SOURCE_FIELDS * index
        depth, parent = int(slots[u(source + BORN_AT)]), int(slots[u(source + BORN_OF)])
        reached[u(index)] = 0
        if parent >= 0 and reached[u(parent)] < depth:
            continue
        place, kind = int(slots[u(source + PLACE)]), int(slots[u(source + KIND)])
        agreed = int(slots[u(source + AGREED)])
        jump_at = int(slots[u(source + JUMP_AT)])
        while depth < depth_limit and place < start and store[u(text + place)] >= 0:
            row, column = judge(slots, slot, index, depth, kind, agreed, first_born)
            bucket = BUCKET_OF[u(column)]
            if counts[u(row), u(bucket), 1] >= MEMORY:
                counts[u(row), u(bucket), 0] *= 0.5
                counts[u(row), u(bucket), 1] *= 0.5
            counts[u(row), u(bucket), 1] += 1.0
            if store[u(text + place)] != store[u(text + start + depth)]:
                break
            counts[u(row), u(bucket), 0] += 1.0
            depth += 1
            place += 1
            if place == jump_at:
                place = int(slots[u(source + JUMP_TO)])
            agreed = min(agreed + 1, MAX_MATCH)
            if kind >= SUBSTITUTE:
                kind = COPY_SIDE
        reached[u(index)] = depth


@kernel
def ask_for_end(store: IntArray, slots: IntArray, slot: int) -> None:
    """Ask for the end of a request's text and of its chains."""
    text, capacity = int(slots[u(slot + align.BASE)]), int(slots[u(slot + align.CAPACITY)])
    length = int(slots[u(slot + LENGTH)])
    for field in range(1 + NUM_LEVELS):
        prefetch(store, u(text + field * capacity + max(length - 1, 0)))


@kernel
def find_sources(
    store: IntArray, slots: IntArray, row: int, counts: DoubleArray, work: IntArray
) -> None:
    """Learn from the last proposal of a request and find the sources of the next one.

    Args:
        store: ``(size,)`` int32.
        slots: ``(num_slots * SLOT_SIZE,)`` int32, changed.
        row: the request's.
        counts: ``(NUM_KINDS, NUM_BUCKETS, 2)`` float64, hits and trials, changed.
        work: int32, room to work in, see STAMP.
    """
    slot = row * align.SLOT_SIZE
    text, capacity = int(slots[u(slot + align.BASE)]), int(slots[u(slot + align.CAPACITY)])
    learn(store, text, slots, slot, counts)
    slots[u(slot + NUM_SOURCES)] = 0
    work[u(STAMP)] = int(work[u(STAMP)]) % LAST_STAMP + 1
    length = int(slots[u(slot + LENGTH)])
    sure = sure_alignment(slots, slot)
    if sure >= 0:
        add_alignment(store, text, slots, slot, work, sure)
    elif length > 0:
        aligned = False
        ask_for_chains(store, text, capacity, length - 1)
        for index in range(NUM_ALIGNMENTS):
            at = slot + ALIGNMENTS_AT + ALIGNMENT_FIELDS * index
            if slots[u(at + POSITION)] >= 0 or slots[u(at + ANCHOR)] >= 0:
                if not aligned and length >= 2:
                    ask_for_chains(store, text, capacity, length - 2)
                aligned = True
                add_alignment(store, text, slots, slot, work, at)
        add_earlier_places(store, text, capacity, slots, slot, work)
        if aligned:
            add_fillers(store, text, capacity, slots, slot, work)
    slots[u(slot + align.PROPOSED_AT)] = length


def compile_kernels() -> None:
    """Compile every kernel for its one signature, callees first."""
    texts, table = "int32[::1], int64", "int32[::1], int64"
    counts, work = "float64[:, :, ::1]", "int32[::1]"
    compile_once(agreement, f"int64({texts}, int64, int64)")
    compile_once(add_source, f"void({texts}, {table}, {work}, int64, int64, int64)")
    compile_once(add_alignment, f"void({texts}, {table}, {work}, int64)")
    compile_once(ask_for_chains, f"void({texts}, int64, int64)")
    compile_once(add_earlier_places, f"void({texts}, int64, {table}, {work})")
    compile_once(add_fillers, f"void({texts}, int64, {table}, {work})")
    compile_once(sure_alignment, f"int64({table})")
    compile_once(judge, f"UniTuple(int64, 2)({table}, int64, int64, int64, int64, int64)")
    compile_once(learn, f"void({texts}, {table}, {counts})")
    compile_once(ask_for_end, f"void(int32[::1], {table})")
    compile_once(find_sources, f"void(int32[::1], {table}, {counts}, {work})")
