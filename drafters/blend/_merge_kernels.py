"""Merges several sources' trees of a batch of requests, and settles what they had promised.

How probable a token is behind what comes before it, if several sources say so: the logarithm of the
odds is the mean of what they say, a quarter of the way to the one whose path is the most probable,
less a little for each source that knows what comes before and does not say this (a logarithmic
opinion pool, Genest and Zidek, 1986). The largest of several estimates would be too large for most.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

MergeTrees = Callable[[Ints, Floats, Floats, Ints, Floats], None]
SettleTrees = Callable[[Ints, Floats, int, Ints, Ints, Doubles], None]

PROMISED, CAME_TRUE = 0, 1
"""What became of a tree: how many tokens it promised (-1 without a tree), how many came true."""

MEAN_SHARE, SILENCE = 0.75, 0.28
"""The share of the mean in the logarithm of the odds, and what is taken off for a silent source:
fitted by maximum likelihood on the first two thirds of each replay trace, warm and cold, with the
n-gram, the suffix and the edit drafter as sources."""
LEAST_SHARE = 1e-3
"""No source is taken to be surer than that of anything."""
TINY = 1e-30
"""Divided by in the place of 0."""

FEW = 128
"""Nodes that are put in order one by one; where there are more, a merge sort is faster."""


@kernel
def _sort(best: Floats, num: int, order: Longs) -> None:
    """Write the places of the first ``num`` probabilities to ``order``, the largest first.

    Of equal ones the earlier comes first, so that a parent comes before its child. What is merged
    is nearly in order, and there are few.
    """
    for node in range(num):
        place = node
        while place > 0 and best[u(order[u(place - 1)])] < best[u(node)]:
            order[u(place)] = order[u(place - 1)]
            place -= 1
        order[u(place)] = node


@kernel
def _odds(share: float) -> float:
    """Return the odds of a share of what the parent has."""
    share = min(max(share, LEAST_SHARE), 1.0 - LEAST_SHARE)
    return share / (1.0 - share)


@kernel
def _pool(
    top: Floats, parents: Ints, saying: Ints, products: Doubles, num: int, num_trees: int,
    pooled: Floats,
) -> None:  # fmt: skip
    """Write the pooled path probabilities of the first ``num`` merged nodes.

    Args:
        top: the largest path probability that a source gives.
        parents: of the nodes, each before its children, or -1.
        saying: how many sources have the node.
        products: of its odds, behind its parent, by these sources.
        num: how many nodes there are.
        num_trees: how many sources have a tree at all.
        pooled: overwritten.
    """
    for node in range(num):
        above = parents[u(node)]
        knowing, whole, share = num_trees, 1.0, float(top[u(node)])
        if above >= 0:
            knowing, whole = int(saying[u(above)]), float(pooled[u(above)])
            share /= max(float(top[u(above)]), TINY)
        num_saying = int(saying[u(node)])
        if knowing > 1:
            logit = MEAN_SHARE * math.log(products[u(node)]) / num_saying
            logit += (1.0 - MEAN_SHARE) * math.log(_odds(share))
            logit -= SILENCE * max(knowing - num_saying, 0)
            share = 1.0 / (1.0 + math.exp(-logit))
        pooled[u(node)] = whole * share


@kernel
def merge_trees(
    nodes: Ints, probs: Floats, trust: Floats, out_nodes: Ints, out_probs: Floats
) -> None:
    """Merge each request's trees; equal paths become one node, its probability pooled.

    The most probable nodes are kept, up to the room in ``out_nodes``. They are connected, since
    probabilities never grow going down and a parent stands before its child.

    Args:
        nodes: ``(num_sources, num_requests, 1 + 2 * max_nodes)``: each source's trees
            (``TreeBatch``).
        probs: ``(num_sources, num_requests, max_nodes)`` path probabilities.
        trust: ``(num_sources, num_requests)`` factors on the probabilities.
        out_nodes: ``(num_requests, 1 + 2 * max_kept)``, overwritten (``TreeBatch``).
        out_probs: ``(num_requests, max_kept)``, overwritten.
    """
    num_sources, num_requests, max_nodes = probs.shape
    max_kept = out_probs.shape[1]
    capacity = num_sources * max_nodes
    table_size = 4
    while table_size < 2 * capacity:
        table_size *= 2
    mask = np.uint64(table_size - 1)
    table = np.empty(table_size, np.int32)
    tokens = np.empty(capacity, np.int32)
    parents = np.empty(capacity, np.int32)
    top = np.empty(capacity, np.float32)
    saying = np.empty(capacity, np.int32)
    products = np.empty(capacity, np.float64)
    pooled = np.empty(capacity, np.float32)
    placed = np.empty(max_nodes, np.int32)
    new_index = np.empty(capacity, np.int32)
    order = np.empty(capacity, np.int64)
    for request in range(num_requests):
        table[:] = -1
        merged = num_trees = 0
        for source in range(num_sources):
            num_trees += nodes[u(source), u(request), 0] > 0
            factor = trust[u(source), u(request)]
            for node in range(nodes[u(source), u(request), 0]):
                token = nodes[u(source), u(request), u(1 + node)]
                parent = nodes[u(source), u(request), u(1 + max_nodes + node)]
                above = placed[u(parent)] if parent >= 0 else np.int32(-1)
                # Both fit in 32 bits, so the key names the edge exactly.
                key = (np.uint64(above + 1) << np.uint64(32)) | np.uint64(token)
                key ^= key >> np.uint64(29)
                slot = (key ^ (key >> np.uint64(7))) & mask
                while True:
                    found = table[slot]
                    if found < 0 or (tokens[u(found)] == token and parents[u(found)] == above):
                        break
                    slot = (slot + np.uint64(1)) & mask
                prob = probs[u(source), u(request), u(node)] * factor
                share = float(prob)
                if parent >= 0:
                    share /= max(float(probs[u(source), u(request), u(parent)] * factor), TINY)
                odds = _odds(share)
                if found < 0:
                    found = np.int32(merged)
                    table[slot] = found
                    tokens[u(merged)] = token
                    parents[u(merged)] = above
                    top[u(merged)] = prob
                    saying[u(merged)] = 1
                    products[u(merged)] = odds
                    merged += 1
                else:
                    top[u(found)] = max(top[u(found)], prob)
                    saying[u(found)] += 1
                    products[u(found)] *= odds
                placed[u(node)] = found
        _pool(top, parents, saying, products, merged, num_trees, pooled)
        kept = min(merged, max_kept)
        if merged <= FEW:
            _sort(pooled, merged, order)
        else:
            order[:merged] = np.argsort(-pooled[:merged], kind="mergesort")
        for rank in range(kept):
            node = order[u(rank)]
            new_index[u(node)] = rank
            out_nodes[u(request), u(1 + rank)] = tokens[u(node)]
            above = parents[u(node)]
            parent = new_index[u(above)] if above >= 0 else np.int32(-1)
            out_nodes[u(request), u(1 + max_kept + rank)] = parent
            out_probs[u(request), u(rank)] = pooled[u(node)]
        out_nodes[u(request), 0] = kept


@kernel
def settle_trees(
    nodes: Ints, probs: Floats, request: int, tokens: Ints, depths: Ints, outcomes: Doubles
) -> None:
    """Say of each source's tree how many tokens it promised and how many came true.

    Nodes deeper than the committed tokens are left out: what they said is not known yet.

    Args:
        nodes: ``(num_sources, num_requests, 1 + 2 * max_nodes)``, as for ``merge_trees``.
        probs: ``(num_sources, num_requests, max_nodes)`` path probabilities.
        request: which of the requests.
        tokens: ``(num_new,)`` what was committed, at least one.
        depths: ``(max_nodes,)`` to work in.
        outcomes: ``(num_sources, 2)``, overwritten.
    """
    max_nodes = probs.shape[2]
    for source in range(probs.shape[0]):
        promised, came_true, tip = 0.0, 0, -1
        for node in range(nodes[u(source), u(request), 0]):
            parent = nodes[u(source), u(request), u(1 + max_nodes + node)]
            depth = 1 if parent < 0 else depths[u(parent)] + 1
            depths[u(node)] = depth
            if depth > tokens.size:
                continue
            promised += probs[u(source), u(request), u(node)]
            # one pass is enough: a child stands after its parent
            if parent == tip and nodes[u(source), u(request), u(1 + node)] == tokens[u(depth - 1)]:
                came_true, tip = depth, node
        outcomes[source, PROMISED] = promised if nodes[u(source), u(request), 0] else -1.0
        outcomes[source, CAME_TRUE] = came_true


def compile_kernels() -> tuple[MergeTrees, SettleTrees]:
    """Compile for the signatures that the drafter uses, and return both."""
    compile_once(_sort, "void(float32[::1], int64, int64[::1])")
    merge = compile_once(
        merge_trees,
        "void(int32[:,:,::1], float32[:,:,::1], float32[:,::1], int32[:,::1], float32[:,::1])",
    )
    settle = compile_once(
        settle_trees,
        "void(int32[:,:,::1], float32[:,:,::1], int64, int32[::1], int32[::1], float64[:,::1])",
    )
    return merge, settle
