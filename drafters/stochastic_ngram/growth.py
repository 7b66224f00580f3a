"""How a drawn tree grows: one slot after the other, chosen before its token is known.

Which slot comes next depends on what was drawn before, never on the token that it will hold, and a
drawn node is never taken back. So each node's token is distributed as its row of ``draft_probs``
says, given all that was drawn earlier, and the verifier's rejection leaves the target's
distribution untouched.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..tree import ROOT, CandidateTree, FloatArray, IntArray

DoubleArray = npt.NDArray[np.float64]
Successors = Callable[[IntArray], tuple[IntArray, DoubleArray, int]]
"""Given ``(length,)`` int32 tokens, the last one first: ``(n,)`` distinct tokens, ``(n,)``
probabilities to draw with (all positive), and the class of the context."""
Draw = Callable[[DoubleArray], int]
"""Given ``(n,)`` probabilities that sum to 1, an index drawn with them."""


@dataclass(frozen=True, slots=True)
class DrawnTree:
    """A drawn tree, and how its nodes came about.

    Attributes:
        tree: with ``draft_probs``; ``probs`` are the estimated chances that a node is accepted.
        groups: class of the context above each node.
        ranks: how many siblings each node has before it.
    """

    tree: CandidateTree
    groups: list[int]
    ranks: list[int]


@dataclass(slots=True)
class _Source:
    """What a node's children are drawn from."""

    context: IntArray
    tokens: IntArray
    left: DoubleArray  # what no child has taken yet, not normalised
    group: int
    reach: float  # chance that the walk comes here
    depth: int
    missed: float = 1.0  # chance that it then accepts none of the children drawn so far
    rank: int = 0


@dataclass(slots=True)
class _Growth:
    """A tree that grows."""

    acceptance: DoubleArray
    max_depth: int
    min_prob: float
    successors: Successors
    slots: list[tuple[float, int, int]] = field(default_factory=list)  # -value, serial, node
    sources: dict[int, _Source] = field(default_factory=dict)  # by node, ROOT for the root
    serial: int = 0

    def open(self, node: int, context: IntArray, reach: float, depth: int) -> None:
        """Offer a slot below a node, if anything is known of what follows it."""
        if depth >= self.max_depth:
            return
        tokens, probs, group = self.successors(context)
        if tokens.size:
            self.sources[node] = _Source(context, tokens, probs.copy(), group, reach, depth)
            self.offer(node)

    def offer(self, node: int) -> None:
        """Put a node's next slot into the queue, unless nothing is left or it promises little."""
        source = self.sources[node]
        if source.rank >= self.acceptance.shape[1] or not source.left.any():
            return
        value = source.reach * source.missed * float(self.acceptance[source.group, source.rank])
        if value >= self.min_prob:
            heapq.heappush(self.slots, (-value, self.serial, node))
            self.serial += 1


def grow_drawn_tree(
    context: IntArray,
    successors: Successors,
    draw: Draw,
    acceptance: DoubleArray,
    *,
    vocab_size: int,
    max_nodes: int,
    max_depth: int,
    min_prob: float,
) -> DrawnTree:
    """Draw a tree, siblings without replacement, the most promising slot first.

    Args:
        context: ``(length,)`` int32 tokens before the tree, the last one first.
        successors: what the tokens below a context are drawn from.
        draw: the randomness.
        acceptance: ``(num_groups, max_siblings)`` chance that a child of that rank is accepted when
            those before it were not, by the class of the context.
        vocab_size: columns of ``draft_probs``.
        max_nodes: most nodes.
        max_depth: deepest node.
        min_prob: chance of acceptance below which nothing is drawn.

    Source: arXiv:2506.04708 (STAND): drafts sampled from stored n-gram distributions. Its
    Gumbel-top-k is the same as drawing one after the other without replacement.
    """
    growth = _Growth(acceptance, max_depth, min_prob, successors)
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    groups: list[int] = []
    ranks: list[int] = []
    rows: FloatArray = np.zeros((max_nodes, vocab_size), np.float32)
    growth.open(ROOT, context, 1.0, 0)
    while growth.slots and len(tokens) < max_nodes:
        negative_value, _, parent = heapq.heappop(growth.slots)
        source, node = growth.sources[parent], len(tokens)
        # Drawn with the very numbers that the verifier will see.
        row = (source.left / source.left.sum()).astype(np.float32)
        exact = row.astype(np.float64)
        index = draw(exact / exact.sum())
        token = int(source.tokens[index])
        rows[node, source.tokens] = row
        tokens.append(token)
        parents.append(parent)
        probs.append(-negative_value)
        groups.append(source.group)
        ranks.append(source.rank)
        below = np.concatenate((np.array([token], np.int32), source.context[:-1]))
        growth.open(node, below, -negative_value, source.depth + 1)
        source.left[index] = 0
        source.missed *= 1 - float(acceptance[source.group, source.rank])
        source.rank += 1
        growth.offer(parent)
    tree = CandidateTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(probs, np.float32),
        rows[: len(tokens)],
    )
    return DrawnTree(tree, groups, ranks)
