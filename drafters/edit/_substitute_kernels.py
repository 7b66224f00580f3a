"""Kernels of the edit drafter that make an edit once more: the sources of a node get rivals.

An edit that was seen, with the same tokens before it and in its place, may begin again where a
source stands. It becomes a source itself, which jumps behind what it replaces at its end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u
from . import _align_kernels as align
from ._align_kernels import (
    EDIT_FIELDS,
    EDITS_AT,
    LENGTH,
    MAX_MATCH,
    MAX_SOURCES,
    NONE,
    NUM_EDITS,
    NUM_SOURCES,
    SOURCE_FIELDS,
    SOURCES_AT,
)
from ._source_kernels import (
    AGREED,
    BORN_AT,
    BORN_OF,
    JUMP_AT,
    JUMP_TO,
    KIND,
    MARKS,
    NUM_MARKS,
    PLACE,
    STAMP,
    SUBSTITUTE,
    SURE_AGREED,
    SURE_SUBSTITUTE,
)

IntArray = npt.NDArray[np.int32]

EDIT_MARKS = MARKS + NUM_MARKS
"""In the room to work in: a mark for each class of tokens with which the replaced part of an edit
begins, then one for each class of tokens before a mere insertion. Where there is none, no edit
fits."""
LIVE_AT = EDIT_MARKS + 2 * NUM_MARKS
"""There: the sources as they stand at the nodes that they have reached."""
MIN_CONTEXT = 3
"""Tokens, replaced ones included, that must agree before an edit is made again."""
REPEAT = 4
"""Tokens of agreement that it is worth to have made the same edit once more."""


@kernel
def edit_context(
    store: IntArray, text: int, slots: IntArray, edit: int, length: int, place: int
) -> int:
    """Return how many tokens agree, the replaced ones included; 0 if the edit does not fit."""
    start = int(slots[u(edit)])
    size = int(slots[u(edit + 1)]) - start
    if place == start or place + size >= length:
        return 0
    same = 0
    while same < size and store[u(text + place + same)] == store[u(text + start + same)]:
        same += 1
    if same < size:
        return 0
    context = 0
    limit = min(MAX_MATCH - size, place, start)
    while context < limit:
        token = store[u(text + place - 1 - context)]
        if token < 0 or token != store[u(text + start - 1 - context)]:
            break
        context += 1
    return context + size if context >= 1 and context + size >= MIN_CONTEXT else 0


@kernel
def mark_edits(store: IntArray, text: int, slots: IntArray, slot: int, work: IntArray) -> None:
    """Mark the tokens by which most edits are ruled out: the first replaced, or the one before."""
    for row in range(min(int(slots[u(slot + NUM_EDITS)]), align.MAX_EDITS)):
        edit = slot + EDITS_AT + EDIT_FIELDS * row
        start = int(slots[u(edit)])
        beside = 0 if slots[u(edit + 1)] > start else 1
        if start >= beside:
            token = int(store[u(text + start - beside)]) & (NUM_MARKS - 1)
            work[u(EDIT_MARKS + beside * NUM_MARKS + token)] = work[u(STAMP)]


@kernel
def may_fit(store: IntArray, text: int, work: IntArray, place: int) -> bool:
    """Return whether some edit may begin at ``place``."""
    token = int(store[u(text + place)]) & (NUM_MARKS - 1)
    if work[u(EDIT_MARKS + token)] == work[u(STAMP)]:
        return True
    if place == 0:
        return False
    token = int(store[u(text + place - 1)]) & (NUM_MARKS - 1)
    return bool(work[u(EDIT_MARKS + NUM_MARKS + token)] == work[u(STAMP)])


@kernel
def is_known(
    slots: IntArray, slot: int, work: IntArray, first: int, depth: int, begin: int, target: int
) -> bool:
    """Return whether a source of the list from ``first`` on has met the same edit already."""
    link = first
    while link >= 0:
        source = slot + SOURCES_AT + SOURCE_FIELDS * link
        if (
            slots[u(source + KIND)] >= SUBSTITUTE
            and slots[u(source + BORN_AT)] == depth
            and slots[u(source + PLACE)] == begin
            and slots[u(source + JUMP_TO)] == target
        ):
            return True
        link = int(work[u(LIVE_AT + SOURCE_FIELDS * link + BORN_OF)])
    return False


@kernel
def add_substitute(
    store: IntArray, text: int, slots: IntArray, slot: int, work: IntArray, first: int,
    parent: int, depth: int, place: int, begun: int,
) -> int:  # fmt: skip
    """Add the newest edit that fits at ``place`` as a source.

    Args:
        store: the texts.
        text: where the request's begins.
        slots: the table; the request gets the source.
        slot: where the request's row begins.
        work: room to work in; has the source too, as it stands now.
        first: the node's list of sources.
        parent: the source that it competes with, or NONE at the root.
        depth: of the node where it does, 0 at the root.
        place: where the replaced tokens begin.
        begun: tokens of the replacement that the output has written already.

    Returns:
        The index of the source; NONE when no edit fits or there is no room.
    """
    length, index = int(slots[u(slot + LENGTH)]), int(slots[u(slot + NUM_SOURCES)])
    if index >= MAX_SOURCES or place >= length:
        return NONE
    number = int(slots[u(slot + NUM_EDITS)])
    for back in range(min(number, align.MAX_EDITS)):
        edit = slot + EDITS_AT + EDIT_FIELDS * ((number - 1 - back) % align.MAX_EDITS)
        start, stop = int(slots[u(edit)]), int(slots[u(edit + 1)])
        beside = 0 if stop > start else 1
        if min(place, start) < beside or (
            store[u(text + place - beside)] != store[u(text + start - beside)]
        ):
            continue
        new_start, new_stop = int(slots[u(edit + 2)]), int(slots[u(edit + 3)])
        if begun > new_stop - new_start:
            continue
        agreed = edit_context(store, text, slots, edit, length, place)
        for token in range(begun):
            if store[u(text + new_start + token)] != store[u(text + length - begun + token)]:
                agreed = 0
        if agreed == 0:
            continue
        target = place + stop - start
        begin = new_start + begun if new_start + begun < new_stop else target
        if is_known(slots, slot, work, first, depth, begin, target):
            return NONE
        sure = parent >= 0 and (
            work[u(LIVE_AT + SOURCE_FIELDS * max(parent, 0) + AGREED)] >= SURE_AGREED
        )
        source, live = slot + SOURCES_AT + SOURCE_FIELDS * index, LIVE_AT + SOURCE_FIELDS * index
        slots[u(source + PLACE)] = begin
        slots[u(source + KIND)] = SURE_SUBSTITUTE if sure else SUBSTITUTE
        agreed += begun + REPEAT * int(slots[u(edit + 4)])
        slots[u(source + AGREED)] = min(agreed, MAX_MATCH)
        slots[u(source + JUMP_AT)] = new_stop
        slots[u(source + JUMP_TO)] = target
        slots[u(source + BORN_OF)] = parent
        slots[u(source + BORN_AT)] = depth
        for field in range(SOURCE_FIELDS):
            work[u(live + field)] = slots[u(source + field)]
        work[u(live + BORN_AT)] = 0
        slots[u(slot + NUM_SOURCES)] = index + 1
        return index
    return NONE


@kernel
def substitute(
    store: IntArray, text: int, slots: IntArray, slot: int, work: IntArray, first: int, depth: int
) -> None:
    """Let the sources of a node compete with the edits that fit there: those end its list."""
    length = int(slots[u(slot + LENGTH)])
    link = first
    while link >= 0:
        live = LIVE_AT + SOURCE_FIELDS * link
        work[u(live + BORN_AT)] = 0
        place = int(work[u(live + PLACE)])
        if (
            work[u(live + KIND)] < SUBSTITUTE
            and work[u(live + AGREED)] >= align.MIN_RESUME
            and place < length
            and may_fit(store, text, work, place)
        ):
            added = add_substitute(store, text, slots, slot, work, first, link, depth, place, 0)
            if added >= 0:
                source = slot + SOURCES_AT + SOURCE_FIELDS * added
                work[u(live + BORN_AT)] = slots[u(source + AGREED)]
                last = live
                while work[u(last + BORN_OF)] >= 0:
                    last = LIVE_AT + SOURCE_FIELDS * int(work[u(last + BORN_OF)])
                work[u(last + BORN_OF)] = added
                work[u(LIVE_AT + SOURCE_FIELDS * added + BORN_OF)] = NONE
        link = int(work[u(live + BORN_OF)])


@kernel
def begin_tree(store: IntArray, text: int, slots: IntArray, slot: int, work: IntArray) -> int:
    """Bring the sources to the root; return the first of their list, or NONE."""
    if slots[u(slot + NUM_EDITS)] > 0:
        mark_edits(store, text, slots, slot, work)
        # an edit may have been begun again where the output left
        for row in range(align.NUM_ALIGNMENTS):
            at = slot + align.ALIGNMENTS_AT + align.ALIGNMENT_FIELDS * row
            anchor, gap = int(slots[u(at + align.ANCHOR)]), int(slots[u(at + align.GAP)])
            if anchor >= 0:
                add_substitute(store, text, slots, slot, work, NONE, NONE, 0, anchor, gap)
    first = NONE
    for index in range(int(slots[u(slot + NUM_SOURCES)]) - 1, -1, -1):
        source, live = slot + SOURCES_AT + SOURCE_FIELDS * index, LIVE_AT + SOURCE_FIELDS * index
        for field in range(SOURCE_FIELDS):
            work[u(live + field)] = slots[u(source + field)]
        work[u(live + BORN_OF)] = first
        first = index
    return first


def compile_kernels() -> None:
    """Compile every kernel for its one signature, callees first."""
    request, work = "int32[::1], int64, int32[::1], int64", "int32[::1]"
    compile_once(edit_context, "int64(int32[::1], int64, int32[::1], int64, int64, int64)")
    compile_once(mark_edits, f"void({request}, {work})")
    compile_once(may_fit, f"boolean(int32[::1], int64, {work}, int64)")
    compile_once(is_known, f"boolean(int32[::1], int64, {work}, int64, int64, int64, int64)")
    compile_once(add_substitute, f"int64({request}, {work}, int64, int64, int64, int64, int64)")
    compile_once(substitute, f"void({request}, {work}, int64, int64)")
    compile_once(begin_tree, f"int64({request}, {work})")
