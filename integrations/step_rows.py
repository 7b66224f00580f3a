"""The trees of a step, looked at all together where they lie in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from ..drafters import CandidateTree
from ..drafters.tree_batch import DraftedTree, TreeBatch
from . import _row_kernels as kernels


@cache
def compile_kernels() -> None:
    """Compile what looks at the trees; the second call costs nothing."""
    kernels.compile_kernels()


def rows_of(
    trees: Sequence[CandidateTree],
) -> tuple[TreeBatch, npt.NDArray[np.int64]] | None:
    """Return the batch that the trees are rows of, and which rows; -1 for the empty tree.

    Args:
        trees: of any origin.

    Returns:
        ``None`` where no tree lies in a batch, or not all that have nodes lie in the same.
    """
    batch: TreeBatch | None = None
    empty = CandidateTree.empty()
    rows: list[int] = []
    for tree in trees:
        if type(tree) is DraftedTree:
            found, row = tree.source
            if batch is None:
                batch = found
            elif batch is not found:
                return None
            rows.append(row)
        elif tree is empty:
            rows.append(-1)
        else:
            return None
    return None if batch is None else (batch, np.array(rows, np.int64))


def are_valid(
    trees: Sequence[CandidateTree], vocab_size: int, max_nodes: int, max_depth: int
) -> bool:
    """Return whether all trees are surely valid; otherwise each one's own checks tell.

    Args:
        trees: what a drafter proposed.
        vocab_size: ids lie below it.
        max_nodes: most nodes of a tree.
        max_depth: the deepest node's depth at most.
    """
    found = rows_of(trees)
    if found is None:
        return False
    batch, rows = found
    return kernels.are_valid(batch.nodes, batch.probs, rows, vocab_size, max_nodes, max_depth)


def best_chains(trees: Sequence[CandidateTree]) -> list[CandidateTree]:
    """Return each tree's :meth:`CandidateTree.best_chain`.

    Args:
        trees: valid ones.
    """
    found = rows_of(trees)
    if found is None:
        return [tree.best_chain() for tree in trees]
    batch, rows = found
    chains = TreeBatch.with_room(rows.size, batch.probs.shape[1])
    kernels.best_chains(batch.nodes, batch.probs, rows, chains.nodes, chains.probs)
    return chains.trees()
