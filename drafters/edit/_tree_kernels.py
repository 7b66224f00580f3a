"""Kernels of the edit drafter that grow the tree of a proposal from its sources, best node first.

The odds of a source are those of its kind and its number of agreeing tokens so far. Sources that
agree on the next token share a node; the odds of those that do not are what they compete by.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel
from . import _align_kernels as align
from ._align_kernels import LENGTH, MAX_MATCH, MAX_SOURCES, NONE, NUM_EDITS, NUM_SOURCES
from ._source_kernels import (
    AGREED,
    BORN_AT,
    BORN_OF,
    BUCKET_OF,
    CONTESTED,
    COPY_SIDE,
    JUMP_AT,
    JUMP_TO,
    KIND,
    PLACE,
    SUBSTITUTE,
    SURE_AGREED,
    SURE_SUBSTITUTE,
)

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
Request = tuple[IntArray, IntArray, IntArray, IntArray, IntArray]
"""Of one request: tokens, header, edits, sources as they begin, sources as they stand now."""

TOKEN, PARENT, FIRST, LAST, GROUP_FIELDS = 0, 1, 2, 3, 4
"""Group, a node that may be taken next: its token, its parent, the ends of its list of sources,
which is in their order: what was found first also decides ties."""
BEST, SUM, WEIGHT_FIELDS = 0, 1, 2
"""Weights of a group: the best odds and their sum; in the end, BEST holds the probability."""

MIN_CONTEXT = 3
"""Tokens, replaced ones included, that must agree before an edit is made again."""
REPEAT = 4
"""Tokens of agreement that it is worth to have made the same edit once more."""
SECOND_VOICE = 0.5
"""Part of the odds that counts of a source which says what a better one says already."""
RIVALRY = 1.2
"""Power of the odds by which groups share what is certain: above 1 it favours the stronger."""
LEAST_SHARE, LARGEST_SHARE = 0.002, 0.9995
"""Bounds of the share of hits of a kind: no source is quite hopeless or quite sure."""


@kernel
def edit_context(tokens: IntArray, length: int, edit: IntArray, place: int) -> int:
    """Return how many tokens agree, the replaced ones included; 0 if the edit does not fit."""
    start = edit[0]
    size = edit[1] - start
    if place == start or place + size >= length:
        return 0
    same = 0
    while same < size and tokens[place + same] == tokens[start + same]:
        same += 1
    if same < size:
        return 0
    context = 0
    limit = min(MAX_MATCH - size, place, start)
    while context < limit:
        token = tokens[place - 1 - context]
        if token < 0 or token != tokens[start - 1 - context]:
            break
        context += 1
    return context + size if context >= 1 and context + size >= MIN_CONTEXT else 0


@kernel
def add_substitute(
    request: Request,
    first: int,
    parent: int,
    depth: int,
    place: int,
    begun: int,
) -> int:
    """Add the newest edit that fits at ``place`` as a source.

    Args:
        request: gets the source.
        first: the node's list of sources.
        parent: the source that it competes with, or NONE at the root.
        depth: of the node where it does, 0 at the root.
        place: where the replaced tokens begin.
        begun: tokens of the replacement that the output has written already.

    Returns:
        The index of the source; NONE when no edit fits or there is no room.
    """
    tokens, header, edits, sources, live = request
    length = header[LENGTH]
    index = int(header[NUM_SOURCES])
    if index >= MAX_SOURCES:
        return NONE
    number = header[NUM_EDITS]
    for back in range(min(number, align.MAX_EDITS)):
        row = (number - 1 - back) % align.MAX_EDITS
        # most edits are ruled out by one token: the first replaced one, or the one before
        beside = 0 if edits[row, 1] > edits[row, 0] else 1
        if place < beside or tokens[place - beside] != tokens[edits[row, 0] - beside]:
            continue
        edit = edits[row]
        if begun > edit[3] - edit[2]:
            continue
        agreed = edit_context(tokens, length, edit, place)
        for token in range(begun):
            if tokens[edit[2] + token] != tokens[length - begun + token]:
                agreed = 0
        if agreed == 0:
            continue
        target = place + edit[1] - edit[0]
        begin = edit[2] + begun if edit[2] + begun < edit[3] else target
        link = first
        while link >= 0:  # another source of the node may have met the same edit
            if (
                sources[link, KIND] >= SUBSTITUTE
                and sources[link, BORN_AT] == depth
                and sources[link, PLACE] == begin
                and sources[link, JUMP_TO] == target
            ):
                return NONE
            link = live[link, BORN_OF]
        source = sources[index]
        sure = parent >= 0 and live[parent, AGREED] >= SURE_AGREED
        source[KIND] = SURE_SUBSTITUTE if sure else SUBSTITUTE
        source[AGREED] = min(agreed + begun + REPEAT * edit[4], MAX_MATCH)
        source[JUMP_AT] = edit[3]
        source[JUMP_TO] = target
        source[PLACE] = begin
        source[BORN_OF] = parent
        source[BORN_AT] = depth
        live[index] = source
        live[index, BORN_AT] = 0
        header[NUM_SOURCES] += 1
        return index
    return NONE


@kernel
def substitute(
    request: Request,
    first: int,
    depth: int,
) -> None:
    """Let the sources of a node compete with the edits that fit there: those end its list."""
    _, _, _, sources, live = request
    last = first
    while last >= 0 and live[last, BORN_OF] >= 0:
        last = live[last, BORN_OF]
    link = first
    while link >= 0:
        live[link, BORN_AT] = 0
        if live[link, KIND] < SUBSTITUTE and live[link, AGREED] >= align.MIN_RESUME:
            place = live[link, PLACE]
            added = add_substitute(request, first, link, depth, place, 0)
            if added >= 0:
                live[link, BORN_AT] = sources[added, AGREED]
                live[last, BORN_OF] = added
                live[added, BORN_OF] = NONE
                last = added
        link = live[link, BORN_OF]


@kernel
def add_groups(
    tokens: IntArray,
    length: int,
    live: IntArray,
    first: int,
    counts: DoubleArray,
    parent: int,
    parent_prob: float,
    min_prob: float,
    groups: IntArray,
    weights: DoubleArray,
    num_groups: int,
) -> int:
    """Group a node's sources by their next tokens, and return the new number of groups."""
    begin = num_groups
    link = first
    while link >= 0:
        following = live[link, BORN_OF]
        place = live[link, PLACE]
        token = tokens[place] if place < length else NONE
        if token >= 0:
            rival = live[link, BORN_AT]
            kind = live[link, KIND]
            bucket = BUCKET_OF[live[link, AGREED]]
            if rival > 0:
                kind = CONTESTED + (1 if live[link, AGREED] >= SURE_AGREED else 0)
                bucket = BUCKET_OF[rival]
            share = counts[kind, bucket, 0] / counts[kind, bucket, 1]
            share = min(max(share, LEAST_SHARE), LARGEST_SHARE)
            odds = share / (1.0 - share)
            group = begin
            while group < num_groups and groups[group, TOKEN] != token:
                group += 1
            if group == num_groups:
                groups[group, TOKEN] = token
                groups[group, PARENT] = parent
                groups[group, FIRST] = link
                weights[group, BEST] = 0.0
                weights[group, SUM] = 0.0
                num_groups += 1
            else:
                live[groups[group, LAST], BORN_OF] = link
            live[link, BORN_OF] = NONE
            groups[group, LAST] = link
            weights[group, BEST] = max(weights[group, BEST], odds)
            weights[group, SUM] += odds
        link = following
    total = 0.0
    rivals = 0.0
    for group in range(begin, num_groups):
        best = weights[group, BEST]
        odds = best + SECOND_VOICE * (weights[group, SUM] - best)
        # alone, a group has all that is certain
        weights[group, BEST] = odds**RIVALRY if num_groups > begin + 1 else 1.0
        total += odds
        rivals += weights[group, BEST]
    # total / (1 + total): that any of the sources is right
    certain = parent_prob * total / (1.0 + total)
    kept = begin
    for group in range(begin, num_groups):
        prob = certain * weights[group, BEST] / rivals
        if prob >= min_prob:
            if kept < group:
                groups[kept] = groups[group]
            weights[kept, BEST] = prob
            kept += 1
    return kept


@kernel
def advance(live: IntArray, first: int) -> None:
    """Move a node's sources to their next places."""
    link = first
    while link >= 0:
        live[link, PLACE] += 1
        if live[link, PLACE] == live[link, JUMP_AT]:
            live[link, PLACE] = live[link, JUMP_TO]
        live[link, AGREED] = min(live[link, AGREED] + 1, MAX_MATCH)
        if live[link, KIND] >= SUBSTITUTE:
            live[link, KIND] = COPY_SIDE
        link = live[link, BORN_OF]


@kernel
def grow(
    request: Request,
    counts: DoubleArray,
    max_depth: int,
    min_prob: float,
    groups: IntArray,
    weights: DoubleArray,
    nodes: IntArray,
    probs: FloatArray,
) -> int:
    """Write the most probable nodes of one request, and return how many there are."""
    tokens, header, _, sources, live = request
    length = header[LENGTH]
    max_nodes = probs.size
    depths = np.empty(max_nodes, np.int64)
    first = NONE
    for index in range(header[NUM_SOURCES] - 1, -1, -1):
        live[index] = sources[index]
        live[index, BORN_OF] = first
        first = index
    num_nodes = 0
    num_groups = 0
    node = NONE
    prob = 1.0
    depth = 0
    while True:
        if header[NUM_EDITS] > 0:
            substitute(request, first, depth)
        num_groups = add_groups(
            tokens, length, live, first, counts, node, prob, min_prob, groups, weights, num_groups
        )
        if num_groups == 0:
            return num_nodes
        best = 0
        for group in range(1, num_groups):
            if weights[group, BEST] > weights[best, BEST] or (
                weights[group, BEST] == weights[best, BEST]
                and groups[group, FIRST] < groups[best, FIRST]
            ):
                best = group
        node = num_nodes
        prob = weights[best, BEST]
        first = groups[best, FIRST]
        parent = groups[best, PARENT]
        depth = 1 if parent < 0 else int(depths[parent]) + 1
        nodes[0, node] = groups[best, TOKEN]
        nodes[1, node] = parent
        probs[node] = prob
        depths[node] = depth
        num_nodes += 1
        if num_nodes == max_nodes:
            return num_nodes
        num_groups -= 1
        if best < num_groups:
            groups[best] = groups[num_groups]
            weights[best] = weights[num_groups]
        if depth < max_depth:
            advance(live, first)
        else:
            first = NONE


@kernel
def grow_trees(
    store: IntArray,
    slots: IntArray,
    rows: IntArray,
    counts: DoubleArray,
    max_depth: int,
    min_prob: float,
    nodes: IntArray,
    probs: FloatArray,
) -> None:
    """Grow the trees of a batch of requests whose sources were found just now.

    Args:
        store: as in find_sources, with slots, rows and counts.
        slots: edits made again are added to the sources.
        rows: the slot of each request; negative: none.
        counts: hits and trials of each kind and bucket.
        max_depth: of the trees, at least 1.
        min_prob: path probability below which nothing is proposed.
        nodes: ``(batch, 1 + 2 * max_nodes)`` int32, overwritten (``TreeBatch``).
        probs: ``(batch, max_nodes)`` float32, overwritten; max_nodes is at least 1.
    """
    live = np.empty((MAX_SOURCES, align.SOURCE_FIELDS), np.int32)
    groups = np.empty((MAX_SOURCES, GROUP_FIELDS), np.int32)
    weights = np.empty((MAX_SOURCES, WEIGHT_FIELDS), np.float64)
    for index in range(rows.size):
        row = rows[index]
        nodes[index, 0] = 0
        if row < 0 or slots[row, NUM_SOURCES] == 0:
            continue
        header = slots[row, : align.HEADER_SIZE]
        alignments = slots[row, align.ALIGNMENTS_AT : align.EDITS_AT].reshape(
            (align.NUM_ALIGNMENTS, align.ALIGNMENT_FIELDS)
        )
        edits = slots[row, align.EDITS_AT : align.SOURCES_AT].reshape(
            (align.MAX_EDITS, align.EDIT_FIELDS)
        )
        sources = slots[row, align.SOURCES_AT :].reshape((MAX_SOURCES, align.SOURCE_FIELDS))
        start = header[align.BASE]
        tokens = store[start : start + header[align.CAPACITY]]
        request = (tokens, header, edits, sources, live)
        for alignment in alignments:  # an edit may have been begun again where the output left
            anchor = alignment[align.ANCHOR]
            if anchor >= 0:
                add_substitute(request, NONE, NONE, 0, anchor, alignment[align.GAP])
        tree = nodes[index, 1:].reshape((2, probs.shape[1]))
        nodes[index, 0] = grow(
            request, counts, max_depth, min_prob, groups, weights, tree, probs[index]
        )


def compile_kernels() -> None:
    """Compile every kernel for its one signature, callees first."""
    table = "int32[:, ::1]"
    request = f"Tuple((int32[::1], int32[::1], {table}, {table}, {table}))"
    counts = "float64[:, :, ::1]"
    weights = "float64[:, ::1]"
    compile_once(edit_context, "int64(int32[::1], int64, int32[::1], int64)")
    compile_once(add_substitute, f"int64({request}, int64, int64, int64, int64, int64)")
    compile_once(substitute, f"void({request}, int64, int64)")
    compile_once(
        add_groups,
        f"int64(int32[::1], int64, {table}, int64, {counts}, int64, float64, float64, {table}, "
        f"{weights}, int64)",
    )
    compile_once(advance, f"void({table}, int64)")
    compile_once(
        grow,
        f"int64({request}, {counts}, int64, float64, {table}, {weights}, {table}, float32[::1])",
    )
    compile_once(
        grow_trees,
        f"void(int32[::1], {table}, int32[::1], {counts}, int64, float64, {table}, "
        "float32[:, ::1])",
    )
