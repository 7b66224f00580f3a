"""Merges several sources' trees of a batch of requests, and settles what they had promised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

PROMISED, CAME_TRUE = 0, 1
"""What became of a tree: how many tokens it promised (-1 without a tree), how many came true."""


@kernel
def merge_trees(
    nodes: Ints, probs: Floats, trust: Floats, out_nodes: Ints, out_probs: Floats
) -> None:
    """Merge each request's trees; equal paths become one node with the largest probability.

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
    best = np.empty(capacity, np.float32)
    placed = np.empty(max_nodes, np.int32)
    new_index = np.empty(capacity, np.int32)
    for request in range(num_requests):
        table[:] = -1
        merged = 0
        for source in range(num_sources):
            for node in range(nodes[source, request, 0]):
                token = nodes[source, request, 1 + node]
                parent = nodes[source, request, 1 + max_nodes + node]
                above = placed[parent] if parent >= 0 else np.int32(-1)
                # Both fit in 32 bits, so the key names the edge exactly.
                key = (np.uint64(above + 1) << np.uint64(32)) | np.uint64(token)
                key ^= key >> np.uint64(29)
                slot = (key ^ (key >> np.uint64(7))) & mask
                while True:
                    found = table[np.int64(slot)]
                    if found < 0 or (tokens[found] == token and parents[found] == above):
                        break
                    slot = (slot + np.uint64(1)) & mask
                prob = probs[source, request, node] * trust[source, request]
                if found < 0:
                    found = np.int32(merged)
                    table[np.int64(slot)] = found
                    tokens[merged] = token
                    parents[merged] = above
                    best[merged] = prob
                    merged += 1
                elif prob > best[found]:
                    best[found] = prob
                placed[node] = found
        kept = min(merged, max_kept)
        # Stable, so that of equal probabilities a parent comes before its child.
        order = np.argsort(-best[:merged], kind="mergesort")
        for rank in range(kept):
            node = order[rank]
            new_index[node] = rank
            out_nodes[request, 1 + rank] = tokens[node]
            above = parents[node]
            parent = new_index[above] if above >= 0 else np.int32(-1)
            out_nodes[request, 1 + max_kept + rank] = parent
            out_probs[request, rank] = best[node]
        out_nodes[request, 0] = kept


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
        for node in range(nodes[source, request, 0]):
            parent = nodes[source, request, 1 + max_nodes + node]
            depth = 1 if parent < 0 else depths[parent] + 1
            depths[node] = depth
            if depth > tokens.size:
                continue
            promised += probs[source, request, node]
            # one pass is enough: a child stands after its parent
            if parent == tip and nodes[source, request, 1 + node] == tokens[depth - 1]:
                came_true, tip = depth, node
        outcomes[source, PROMISED] = promised if nodes[source, request, 0] else -1.0
        outcomes[source, CAME_TRUE] = came_true


def compile_kernels() -> None:
    """Compile for the signatures that the drafter uses."""
    compile_once(
        merge_trees,
        "void(int32[:,:,::1], float32[:,:,::1], float32[:,::1], int32[:,::1], float32[:,::1])",
    )
    compile_once(
        settle_trees,
        "void(int32[:,:,::1], float32[:,:,::1], int64, int32[::1], int32[::1], float64[:,::1])",
    )
