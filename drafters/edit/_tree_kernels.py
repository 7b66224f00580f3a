"""Kernels of the edit drafter that grow the tree of a proposal from its sources, best node first.

The odds of a source are those of its kind and its number of agreeing tokens so far. Sources that
agree on the next token share a node; the odds of those that do not are what they compete by.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u
from . import _align_kernels as align
from . import _source_kernels as finder
from . import _substitute_kernels as rivals
from ._align_kernels import (
    LENGTH,
    MAX_MATCH,
    MAX_SOURCES,
    NONE,
    NUM_EDITS,
    NUM_SOURCES,
    SLOT_SIZE,
    SOURCE_FIELDS,
)
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
    STAMP,
    SUBSTITUTE,
    SURE_AGREED,
    ask_for_end,
    find_sources,
)
from ._substitute_kernels import LIVE_AT, begin_tree, substitute

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
GrowTrees = Callable[
    [
        IntArray, IntArray, IntArray, DoubleArray, int, float, IntArray, DoubleArray, IntArray,
        FloatArray,
    ],
    None,
]  # fmt: skip

TOKEN, PARENT, FIRST, LAST, GROUP_FIELDS = 0, 1, 2, 3, 4
"""Group, a node that may be taken next: its token, its parent, the ends of its list of sources,
which is in their order: what was found first also decides ties."""
BEST, SUM, WEIGHT_FIELDS = 0, 1, 2
"""Weights of a group: the best odds and their sum; in the end, BEST holds the probability."""

GROUPS_AT = LIVE_AT + MAX_SOURCES * SOURCE_FIELDS
WORK_SIZE = GROUPS_AT + MAX_SOURCES * GROUP_FIELDS

SECOND_VOICE = 0.5
"""Part of the odds that counts of a source which says what a better one says already."""
RIVALRY = 1.2
"""Power of the odds by which groups share what is certain: above 1 it favours the stronger."""
LEAST_SHARE, LARGEST_SHARE = 0.002, 0.9995
"""Bounds of the share of hits of a kind: no source is quite hopeless or quite sure."""


@kernel
def add_groups(
    store: IntArray, text: int, length: int, work: IntArray, first: int, counts: DoubleArray,
    parent: int, parent_prob: float, min_prob: float, weights: DoubleArray, begin: int,
) -> int:  # fmt: skip
    """Group a node's sources by their next tokens, and return the new number of groups.

    Those that are not probable enough are dropped. All is written out in one kernel, because a call
    that passes arrays costs as much as a group.
    """
    num_groups, link = begin, first
    cell, odds = NONE, 0.0
    while link >= 0:
        live = LIVE_AT + SOURCE_FIELDS * link
        following, place = int(work[u(live + BORN_OF)]), int(work[u(live + PLACE)])
        token = int(store[u(text + place)]) if place < length else NONE
        if token >= 0:
            rival, kind = int(work[u(live + BORN_AT)]), int(work[u(live + KIND)])
            agreed = int(work[u(live + AGREED)])
            if rival > 0:
                kind = CONTESTED + (1 if agreed >= SURE_AGREED else 0)
                agreed = rival
            if kind * (MAX_MATCH + 1) + agreed != cell:  # else those of the source before
                cell = kind * (MAX_MATCH + 1) + agreed
                bucket = BUCKET_OF[u(agreed)]
                share = counts[u(kind), u(bucket), 0] / counts[u(kind), u(bucket), 1]
                share = min(max(share, LEAST_SHARE), LARGEST_SHARE)
                odds = share / (1.0 - share)
            group, new = GROUPS_AT + GROUP_FIELDS * begin, GROUPS_AT + GROUP_FIELDS * num_groups
            weight = WEIGHT_FIELDS * begin
            while group < new and work[u(group + TOKEN)] != token:
                group += GROUP_FIELDS
                weight += WEIGHT_FIELDS
            if group == new:
                work[u(group + TOKEN)] = token
                work[u(group + PARENT)] = parent
                work[u(group + FIRST)] = link
                weights[u(weight + BEST)] = odds
                weights[u(weight + SUM)] = odds
                num_groups += 1
            else:
                last = int(work[u(group + LAST)])
                work[u(LIVE_AT + SOURCE_FIELDS * last + BORN_OF)] = link
                weights[u(weight + BEST)] = max(weights[u(weight + BEST)], odds)
                weights[u(weight + SUM)] += odds
            work[u(live + BORN_OF)] = NONE
            work[u(group + LAST)] = link
        link = following
    total, rivals = 0.0, 0.0
    last_odds, last_power = -1.0, 0.0
    for group in range(begin, num_groups):
        weight = WEIGHT_FIELDS * group
        best = weights[u(weight + BEST)]
        odds = best + SECOND_VOICE * (weights[u(weight + SUM)] - best)
        # alone, a group has all that is certain
        if num_groups == begin + 1:
            last_power = 1.0
        elif odds != last_odds:  # a power takes long, and many groups are of one weak source
            last_odds, last_power = odds, odds**RIVALRY
        weights[u(weight + BEST)] = last_power
        total += odds
        rivals += last_power
    # total / (1 + total): that any of the sources is right
    certain = parent_prob * total / (1.0 + total)
    kept = begin
    for group in range(begin, num_groups):
        prob = certain * weights[u(WEIGHT_FIELDS * group + BEST)] / rivals
        if prob >= min_prob:
            if kept < group:
                for field in range(GROUP_FIELDS):
                    work[u(GROUPS_AT + GROUP_FIELDS * kept + field)] = work[
                        u(GROUPS_AT + GROUP_FIELDS * group + field)
                    ]
            weights[u(WEIGHT_FIELDS * kept + BEST)] = prob
            kept += 1
    return kept


@kernel
def advance(work: IntArray, first: int) -> None:
    """Move a node's sources to their next places."""
    link = first
    while link >= 0:
        live = LIVE_AT + SOURCE_FIELDS * link
        place = int(work[u(live + PLACE)]) + 1
        work[u(live + PLACE)] = (
            int(work[u(live + JUMP_TO)]) if place == work[u(live + JUMP_AT)] else place
        )
        work[u(live + AGREED)] = min(int(work[u(live + AGREED)]) + 1, MAX_MATCH)
        if work[u(live + KIND)] >= SUBSTITUTE:
            work[u(live + KIND)] = COPY_SIDE
        link = int(work[u(live + BORN_OF)])


@kernel
def grow(
    store: IntArray, slots: IntArray, row: int, counts: DoubleArray, max_depth: int,
    min_prob: float, work: IntArray, weights: DoubleArray, out: int, nodes: IntArray,
    probs: FloatArray,
) -> None:  # fmt: skip
    """Write the most probable nodes of a request into row ``out`` of ``nodes`` and ``probs``."""
    slot = row * SLOT_SIZE
    text, length = int(slots[u(slot + align.BASE)]), int(slots[u(slot + LENGTH)])
    max_nodes = probs.shape[1]
    depths = WEIGHT_FIELDS * MAX_SOURCES
    first = begin_tree(store, text, slots, slot, work)
    num_nodes, num_groups, node, depth, prob = 0, 0, NONE, 0, 1.0
    while True:
        if slots[u(slot + NUM_EDITS)] > 0:
            substitute(store, text, slots, slot, work, first, depth)
        num_groups = add_groups(
            store, text, length, work, first, counts, node, prob, min_prob, weights, num_groups
        )
        if num_groups == 0:
            break
        best = 0
        for group in range(1, num_groups):
            if weights[u(WEIGHT_FIELDS * group)] > weights[u(WEIGHT_FIELDS * best)] or (
                weights[u(WEIGHT_FIELDS * group)] == weights[u(WEIGHT_FIELDS * best)]
                and work[u(GROUPS_AT + GROUP_FIELDS * group + FIRST)]
                < work[u(GROUPS_AT + GROUP_FIELDS * best + FIRST)]
            ):
                best = group
        taken = GROUPS_AT + GROUP_FIELDS * best
        node, prob = num_nodes, weights[u(WEIGHT_FIELDS * best)]
        first, parent = int(work[u(taken + FIRST)]), int(work[u(taken + PARENT)])
        depth = 1 if parent < 0 else 1 + int(weights[u(depths + parent)])
        weights[u(depths + node)] = depth
        num_nodes += 1
        nodes[u(out), u(num_nodes)] = work[u(taken + TOKEN)]
        nodes[u(out), u(max_nodes + num_nodes)] = parent
        probs[u(out), u(node)] = prob
        if num_nodes == max_nodes:
            break
        num_groups -= 1
        if best < num_groups:
            for field in range(GROUP_FIELDS):
                work[u(taken + field)] = work[u(GROUPS_AT + GROUP_FIELDS * num_groups + field)]
            weights[u(WEIGHT_FIELDS * best)] = weights[u(WEIGHT_FIELDS * num_groups)]
        if depth < max_depth:
            advance(work, first)
        else:
            first = NONE
    nodes[u(out), 0] = num_nodes


@kernel
def grow_trees(
    store: IntArray, slots: IntArray, rows: IntArray, counts: DoubleArray, max_depth: int,
    min_prob: float, work: IntArray, weights: DoubleArray, nodes: IntArray, probs: FloatArray,
) -> None:  # fmt: skip
    """Find the sources of a batch of requests and grow their trees.

    Args:
        store: as in find_sources, with slots, counts and work.
        slots: the sources are overwritten, those of edits made again included.
        rows: ``(batch,)`` int32, the row of each request in the table; negative: none.
        counts: hits and trials of each kind and bucket, changed.
        max_depth: of the trees, at least 1.
        min_prob: path probability below which nothing is proposed.
        work: ``(WORK_SIZE,)`` int32, room to work in.
        weights: float64, room for the weights of MAX_SOURCES groups and the depths of all nodes.
        nodes: ``(batch, 1 + 2 * max_nodes)`` int32, overwritten (``TreeBatch``).
        probs: ``(batch, max_nodes)`` float32, overwritten; max_nodes is at least 1.
    """
    for index in range(rows.size):
        if index + 1 < rows.size and rows[u(index + 1)] >= 0:
            ask_for_end(store, slots, int(rows[u(index + 1)]) * SLOT_SIZE)
        if rows[u(index)] >= 0:
            find_sources(store, slots, int(rows[u(index)]), counts, work)
    for index in range(rows.size):
        row = int(rows[u(index)])
        nodes[u(index), 0] = 0
        if row >= 0 and slots[u(row * SLOT_SIZE + NUM_SOURCES)] > 0:
            work[u(STAMP)] = int(work[u(STAMP)]) % finder.LAST_STAMP + 1
            grow(store, slots, row, counts, max_depth, min_prob, work, weights, index, nodes, probs)


def compile_kernels() -> GrowTrees:
    """Compile every kernel for its one signature, callees first; return ``grow_trees``."""
    finder.compile_kernels()
    rivals.compile_kernels()
    work, counts, weights = "int32[::1]", "float64[:, :, ::1]", "float64[::1]"
    node = f"int32[::1], int64, int64, {work}, int64, {counts}, int64"
    compile_once(add_groups, f"int64({node}, float64, float64, {weights}, int64)")
    compile_once(advance, f"void({work}, int64)")
    compile_once(
        grow,
        f"void(int32[::1], int32[::1], int64, {counts}, int64, float64, {work}, {weights}, int64, "
        "int32[:, ::1], float32[:, ::1])",
        calls=(begin_tree, substitute),
    )
    return compile_once(
        grow_trees,
        f"void(int32[::1], int32[::1], int32[::1], {counts}, int64, float64, {work}, {weights}, "
        "int32[:, ::1], float32[:, ::1])",
        calls=(find_sources, ask_for_end, grow),
    )
