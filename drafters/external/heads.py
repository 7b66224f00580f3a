"""The tree of several prediction heads, each of which guesses one position ahead."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from ..tree import ROOT, CandidateTree


def tree_from_heads(
    token_ids: npt.ArrayLike, probs: npt.ArrayLike, max_nodes: int
) -> CandidateTree:
    """Return the most probable paths through the heads' guesses.

    The heads do not see each other's choice, so a path's probability is the product of its tokens'.
    Nodes are taken best first, which gives the tree of that size with the most expected tokens.

    Args:
        token_ids: ``(num_heads, k)`` integers, each head's guesses.
        probs: ``(num_heads, k)`` their probabilities, falling along each row.
        max_nodes: most nodes.

    Raises:
        ValueError: shapes that differ, or probabilities that rise along a row or leave [0, 1].

    Source: the trees of Medusa, arXiv:2401.10774, chosen greedily by estimated accuracy.
    """
    ids, chances = np.asarray(token_ids), np.asarray(probs, np.float64)
    if ids.ndim != 2 or ids.shape != chances.shape:
        raise ValueError(
            f"expected token_ids and probs of one shape (num_heads, k), got {ids.shape} and "
            f"{chances.shape}"
        )
    if chances.size and (chances.min() < 0 or chances.max() > 1 or (np.diff(chances) > 0).any()):
        raise ValueError("expected probs in [0, 1] that fall along each row, got others")
    num_heads, width = ids.shape
    tokens: list[int] = []
    parents: list[int] = []
    path_probs: list[float] = []
    # (-path probability, order, parent, depth, rank): what may come next, best first
    waiting: list[tuple[float, int, int, int, int]] = []

    def wait(above: float, parent: int, depth: int, rank: int) -> None:
        if depth < num_heads and rank < width and chances[depth, rank] > 0:
            prob = above * chances[depth, rank]
            heapq.heappush(waiting, (-prob, len(tokens), parent, depth, rank))

    wait(1.0, ROOT, 0, 0)
    while waiting and len(tokens) < max_nodes:
        prob, _, parent, depth, rank = heapq.heappop(waiting)
        above = 1.0 if parent == ROOT else path_probs[parent]
        tokens.append(int(ids[depth, rank]))
        parents.append(parent)
        path_probs.append(-prob)
        wait(-prob, len(tokens) - 1, depth + 1, 0)
        wait(above, parent, depth, rank + 1)
    return CandidateTree.from_arrays(tokens, parents, path_probs)
