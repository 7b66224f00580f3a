"""Merges several sources' trees of a batch of requests into one tree each, best-first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

TOKEN, PARENT = 0, 1


@kernel
def merge_trees(
    nodes: Ints, probs: Floats, counts: Ints, out_nodes: Ints, out_probs: Floats, out_counts: Ints
) -> None:
    """Merge each request's trees; equal paths become one node with the largest probability.

    The most probable nodes are kept, up to the room in ``out_nodes``. They are connected, since
    probabilities never grow going down and a parent stands before its child.

    Args:
        nodes: ``(num_requests, num_sources, 2, max_nodes)`` token ids and parents of each tree.
        probs: ``(num_requests, num_sources, max_nodes)`` path probabilities.
        counts: ``(num_requests, num_sources)`` nodes of each tree.
        out_nodes: ``(num_requests, 2, max_kept)``, overwritten.
        out_probs: ``(num_requests, max_kept)``, overwritten.
        out_counts: ``(num_requests,)`` kept nodes, overwritten.
    """
    num_requests, num_sources, _, max_nodes = nodes.shape
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
            for node in range(counts[request, source]):
                token = nodes[request, source, TOKEN, node]
                parent = nodes[request, source, PARENT, node]
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
                prob = probs[request, source, node]
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
        kept = min(merged, out_probs.shape[1])
        # Stable, so that of equal probabilities a parent comes before its child.
        order = np.argsort(-best[:merged], kind="mergesort")
        for rank in range(kept):
            node = order[rank]
            new_index[node] = rank
            out_nodes[request, TOKEN, rank] = tokens[node]
            above = parents[node]
            out_nodes[request, PARENT, rank] = new_index[above] if above >= 0 else np.int32(-1)
            out_probs[request, rank] = best[node]
        out_counts[request] = kept


def compile_kernels() -> None:
    """Compile for the one signature that the drafter uses."""
    compile_once(
        merge_trees,
        "void(int32[:,:,:,::1], float32[:,:,::1], int32[:,::1], int32[:,:,::1], float32[:,::1], "
        "int32[::1])",
    )
