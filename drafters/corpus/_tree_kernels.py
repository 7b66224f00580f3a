"""Kernels of the corpus drafter's tree: what follows the places, the most probable path first.

A group is a set of places that read the same tokens so far. Each vote goes to the token that its
place reads next; the shares of the votes, less an escape for what no place reads, make the
probabilities of the steps, and their products those of the paths. A calibration then maps these to
what was seen lately (``calibration``), without changing their order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

TOKEN, PARENT, DEPTH, START, STOP, QUEUE = 0, 1, 2, 3, 4, 5
"""Columns of the groups: the token that the places read, the parent node, the depth, the range of
places. The last column is no part of a group: the groups that wait, the best at the end."""
GROUP_FIELDS = 6

NUM_PLACES, LONGEST = 0, 1
"""Columns of what the search found."""
NUM_NODES, MATCH_CLASS = 0, 1
"""Columns of what is said about a tree: its size, and the class of its longest match."""
NUM_CLASSES = 6
"""Matches of 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31 tokens, and longer ones."""


@kernel
def _split(
    text: IntArray, places: IntArray, votes: DoubleArray, start: int, stop: int, depth: int,
    node: int, factor: float, floor: float, groups: LongArray, paths: DoubleArray, used: int,
) -> int:  # fmt: skip
    """Sort a range of places by the token they read, add the groups, return how many there are.

    Args:
        text: int32, the corpus; barriers are -1.
        places: int32; those of the range change their order.
        votes: float64 of the places, likewise.
        start: the first place of the range.
        stop: behind its last place.
        depth: tokens from a place to the one that is read.
        node: the groups' parent.
        factor: probability of a group's path for each unit of its votes.
        floor: groups of at most this probability are not added.
        groups: ``(num_rows, GROUP_FIELDS)`` int64, written from row ``used`` on.
        paths: ``(num_rows,)`` float64, the probabilities of the groups' paths, likewise.
        used: how many groups there were.
    """
    while start < stop:
        token = text[places[start] + depth]
        votes_here = votes[start]
        end = start + 1
        for i in range(start + 1, stop):
            if text[places[i] + depth] == token:
                votes_here += votes[i]
                places[i], places[end] = places[end], places[i]
                votes[i], votes[end] = votes[end], votes[i]
                end += 1
        if token >= 0 and votes_here * factor > floor:  # a barrier ends the document
            groups[used, TOKEN] = token
            groups[used, PARENT] = node
            groups[used, DEPTH] = depth + 1
            groups[used, START] = start
            groups[used, STOP] = end
            paths[used] = votes_here * factor
            used += 1
        start = end
    return used


@kernel
def _enqueue(groups: LongArray, paths: DoubleArray, waiting: int, room: int, group: int) -> int:
    """Let a group wait, in place of the worst if there is no room; return how many wait.

    Among equals the older comes first.
    """
    at = waiting
    while at > 0 and paths[groups[at - 1, QUEUE]] >= paths[group]:
        at -= 1
    if waiting < room:
        for i in range(waiting, at, -1):
            groups[i, QUEUE] = groups[i - 1, QUEUE]
        groups[at, QUEUE] = group
        return waiting + 1
    if at > 0:
        for i in range(1, at):
            groups[i - 1, QUEUE] = groups[i, QUEUE]
        groups[at - 1, QUEUE] = group
    return waiting


@kernel
def _grow(
    text: IntArray, num_places: int, longest: int, max_depth: int, floor: float,
    escapes: DoubleArray, places: IntArray, votes: DoubleArray, groups: LongArray,
    paths: DoubleArray, nodes: IntArray, raw: FloatArray,
) -> int:  # fmt: skip
    """Write one tree and return its number of nodes.

    Args:
        text: see ``_split``, as for those not named here.
        num_places: places that were found.
        longest: the longest match.
        max_depth: the deepest node's depth.
        floor: paths of at most this probability are not proposed.
        escapes: ``(max_match + 1,)`` float64 by length of match, votes for what no place reads.
        places: permuted.
        votes: permuted.
        groups: scratch of ``(max_nodes + 1) * max_places`` rows.
        paths: scratch, likewise.
        nodes: ``(2, max_nodes)`` int32, tokens and parents, overwritten.
        raw: ``(max_nodes,)`` float32, path probabilities, overwritten.
    """
    max_nodes = nodes.shape[1]
    size, waiting, first = 0, 0, 0
    used = _split(text, places, votes, 0, num_places, 0, -1, 1.0, floor, groups, paths, 0)
    while True:
        for group in range(first, used):
            waiting = _enqueue(groups, paths, waiting, max_nodes - size, group)
        if waiting == 0:
            return size
        waiting -= 1
        best = groups[waiting, QUEUE]
        start, stop, depth = groups[best, START], groups[best, STOP], groups[best, DEPTH]
        nodes[0, size] = groups[best, TOKEN]
        nodes[1, size] = groups[best, PARENT]
        raw[size] = paths[best]
        size += 1
        if size == max_nodes:
            return size
        first = used
        if depth < max_depth:
            total = 0.0
            for i in range(start, stop):
                total += votes[i]
            escape = escapes[min(longest + depth, escapes.size - 1)]
            kept = (stop - start) / (stop - start + escape)
            used = _split(
                text, places, votes, start, stop, depth, size - 1, paths[best] * kept / total,
                floor, groups, paths, used,
            )  # fmt: skip


@kernel
def grow(
    text: IntArray, max_depth: int, floor: float, escapes: DoubleArray, knots: DoubleArray,
    found: LongArray, places: IntArray, votes: DoubleArray, groups: LongArray,
    paths: DoubleArray, nodes: IntArray, raw: FloatArray, probs: FloatArray, drawn: LongArray,
) -> None:  # fmt: skip
    """Write each request's tree.

    Args:
        text: read-only, see ``_grow``, as for the next three.
        max_depth: the deepest node's depth.
        floor: least probability.
        escapes: by length of match.
        knots: ``(NUM_CLASSES, num_knots)`` float64, the calibration's maps.
        found: ``(batch, 2)`` int64: NUM_PLACES and LONGEST.
        places: ``(batch, max_places)`` int32, permuted.
        votes: ``(batch, max_places)`` float64, permuted.
        groups: scratch, see ``_grow``.
        paths: scratch.
        nodes: ``(batch, 2, max_nodes)`` int32, tokens and parents, overwritten.
        raw: ``(batch, max_nodes)`` float32, probabilities before calibration, overwritten.
        probs: ``(batch, max_nodes)`` float32, probabilities, overwritten.
        drawn: ``(batch, 2)`` int64, overwritten: NUM_NODES and MATCH_CLASS.
    """
    num_gaps = knots.shape[1] - 1
    for index in range(found.shape[0]):
        num_places, longest = found[index, NUM_PLACES], found[index, LONGEST]
        group = 0
        while group < NUM_CLASSES - 1 and longest >= 2 << group:
            group += 1
        size = 0
        if num_places > 0:
            size = _grow(
                text, num_places, longest, max_depth, floor, escapes, places[index],
                votes[index], groups, paths, nodes[index], raw[index],
            )  # fmt: skip
        for node in range(size):
            scaled = float(raw[index, node]) * num_gaps
            knot = min(int(scaled), num_gaps - 1)
            rise = knots[group, knot + 1] - knots[group, knot]
            probs[index, node] = knots[group, knot] + rise * (scaled - knot)
        drawn[index, NUM_NODES] = size
        drawn[index, MATCH_CLASS] = group


@kernel
def settle(
    nodes: IntArray, raw: FloatArray, size: int, tokens: IntArray, tally: DoubleArray
) -> None:
    """Count which nodes of a draft came true; those that are not known yet are left out.

    Args:
        nodes: ``(2, max_nodes)`` int32, tokens and parents.
        raw: ``(max_nodes,)`` float32, probabilities before calibration.
        size: number of nodes.
        tokens: ``(num_new,)`` int32, what was committed.
        tally: ``(num_knots, 2)`` float64, uses and summed residuals at each knot, added to.
    """
    depths = np.zeros(size, np.int64)  # 0 for a node that did not come true
    num_gaps = tally.shape[0] - 1
    for node in range(size):
        parent = int(nodes[1, node])
        depth = 1
        if parent >= 0:
            depth = depths[parent] + 1 if depths[parent] > 0 else 0
        if depth > tokens.size:
            depths[node] = depth
            continue
        right = depth > 0 and nodes[0, node] == tokens[depth - 1]
        if right:
            depths[node] = depth
        predicted = float(raw[node])
        scaled = predicted * num_gaps
        knot = min(int(scaled), num_gaps - 1)
        part = scaled - knot
        residual = (1.0 if right else 0.0) - predicted
        tally[knot, 0] += 1.0 - part
        tally[knot, 1] += (1.0 - part) * residual
        tally[knot + 1, 0] += part
        tally[knot + 1, 1] += part * residual


_TEXT = "Array(int32, 1, 'C', readonly=True)"


def compile_kernels() -> None:
    """Compile each kernel for its one signature; a mapped file's arrays are read-only."""
    compile_once(
        _split,
        f"int64({_TEXT}, int32[::1], float64[::1], int64, int64, int64, int64, float64, float64, "
        "int64[:,::1], float64[::1], int64)",
    )
    compile_once(_enqueue, "int64(int64[:,::1], float64[::1], int64, int64, int64)")
    compile_once(
        _grow,
        f"int64({_TEXT}, int64, int64, int64, float64, float64[::1], int32[::1], float64[::1], "
        "int64[:,::1], float64[::1], int32[:,::1], float32[::1])",
    )
    compile_once(
        grow,
        f"void({_TEXT}, int64, float64, float64[::1], float64[:,::1], int64[:,::1], int32[:,::1], "
        "float64[:,::1], int64[:,::1], float64[::1], int32[:,:,::1], float32[:,::1], "
        "float32[:,::1], int64[:,::1])",
    )
    compile_once(settle, "void(int32[:,::1], float32[::1], int64, int32[::1], float64[:,::1])")
