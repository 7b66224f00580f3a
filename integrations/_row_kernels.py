"""Kernels over the trees of a step that lie in rows of one batch: are they valid, their chains."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..drafters._jit import compile_once, kernel, u

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

MOST_COMPARED = 64
"""Nodes of a tree that are compared with each other; of larger ones nothing is said."""


@kernel
def are_valid(
    nodes: Ints, probs: Floats, rows: Rows, vocab_size: int, max_nodes: int, max_depth: int
) -> bool:
    """Return whether all trees are surely what ``CandidateTree.validate`` asks for, and no larger.

    Args:
        nodes: ``(num_rows, 1 + 2 * room)`` int32 (``TreeBatch``).
        probs: ``(num_rows, room)`` float32, path probabilities.
        rows: ``(num_trees,)`` int64, which rows; -1 for a tree without nodes.
        vocab_size: ids lie below it.
        max_nodes: most nodes of a tree.
        max_depth: the deepest node's depth at most.
    """
    parents_at = 1 + probs.shape[1]
    depths = np.empty(MOST_COMPARED, np.int64)
    for index in range(rows.size):
        row = int(rows[u(index)])
        if row < 0:
            continue
        size = int(nodes[u(row), 0])
        if size < 0 or size > min(max_nodes, MOST_COMPARED, probs.shape[1]):
            return False
        for node in range(size):
            token = int(nodes[u(row), u(1 + node)])
            parent = int(nodes[u(row), u(parents_at + node)])
            if not (-1 <= parent < node and 0 <= token < vocab_size):
                return False
            depth, above = 1, np.float32(1)
            if parent >= 0:
                depth, above = 1 + depths[u(parent)], probs[u(row), u(parent)]
            depths[u(node)] = depth
            prob = probs[u(row), u(node)]
            if depth > max_depth or not (prob >= 0 and prob <= above):  # not a number: neither
                return False
            for other in range(node):
                if (
                    nodes[u(row), u(1 + other)] == token
                    and nodes[u(row), u(parents_at + other)] == parent
                ):
                    return False
    return True


@kernel
def best_chains(nodes: Ints, probs: Floats, rows: Rows, out_nodes: Ints, out_probs: Floats) -> None:
    """Write of each tree the path with the largest sum of probabilities; a chain stays whole.

    Args:
        nodes: as for ``are_valid``; the trees are valid.
        probs: as for ``are_valid``.
        rows: as for ``are_valid``.
        out_nodes: ``(num_trees, 1 + 2 * room)`` int32, overwritten (``TreeBatch``).
        out_probs: ``(num_trees, room)`` float32, overwritten.
    """
    room = probs.shape[1]
    parents_at = 1 + room
    gains = np.empty(room, np.float64)
    for index in range(rows.size):
        row = int(rows[u(index)])
        size = 0 if row < 0 else int(nodes[u(row), 0])
        best, is_chain = 0, True
        for node in range(size):
            parent = int(nodes[u(row), u(parents_at + node)])
            gain = float(probs[u(row), u(node)])
            if parent >= 0:
                gain += gains[u(parent)]
            gains[u(node)] = gain
            is_chain = is_chain and parent == node - 1
            if gain > gains[u(best)]:
                best = node
        if is_chain:
            best = size - 1
        length, node = 0, best if size > 0 else -1
        while node >= 0:
            length += 1
            node = int(nodes[u(row), u(parents_at + node)])
        out_nodes[u(index), 0] = length
        node = best
        for place in range(length - 1, -1, -1):
            out_nodes[u(index), u(1 + place)] = nodes[u(row), u(1 + node)]
            out_nodes[u(index), u(parents_at + place)] = place - 1
            out_probs[u(index), u(place)] = probs[u(row), u(node)]
            node = int(nodes[u(row), u(parents_at + node)])


def compile_kernels() -> None:
    """Compile each kernel for its one signature; a process does so once."""
    batch = "int32[:,::1], float32[:,::1], int64[::1]"
    compile_once(are_valid, f"boolean({batch}, int64, int64, int64)")
    compile_once(best_chains, f"void({batch}, int32[:,::1], float32[:,::1])")
