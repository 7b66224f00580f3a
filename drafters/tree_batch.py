"""The trees of a batch of requests in two arrays, as kernels write and read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from .base import RequestId
from .tree import CandidateTree, FloatArray, IntArray


@dataclass(slots=True, eq=False)
class TreeBatch:
    """One tree a request.

    Attributes:
        nodes: ``(num_requests, 1 + 2 * max_nodes)`` int32: the number of nodes, then with room for
            ``max_nodes`` each the token ids and the parents.
        probs: ``(num_requests, max_nodes)`` float32, path probabilities.
    """

    nodes: IntArray
    probs: FloatArray

    @classmethod
    def with_room(cls, num_requests: int, max_nodes: int) -> TreeBatch:
        """Return room for trees; what is in it is undefined."""
        return cls(
            np.empty((num_requests, 1 + 2 * max_nodes), np.int32),
            np.empty((num_requests, max_nodes), np.float32),
        )

    def trees(self) -> list[CandidateTree]:
        """Return the trees; their arrays are parts of these."""
        probs, parents_at = self.probs, 1 + self.probs.shape[1]
        trees = []
        for i in range(len(probs)):
            nodes = self.nodes[i]
            size = nodes.item(0)
            parents = nodes[parents_at : parents_at + size]
            trees.append(CandidateTree.trusted(nodes[1 : 1 + size], parents, probs[i, :size]))
        return trees


@runtime_checkable
class DraftsInBatches(Protocol):
    """A drafter that writes its trees into arrays: what merges them needs no objects."""

    def draft_batch(
        self, request_ids: Sequence[RequestId], max_depth: int, batch: TreeBatch
    ) -> None:
        """Write one tree a request into ``batch``, as ``propose`` would return them.

        Args:
            request_ids: at least one; an unknown one gets no nodes.
            max_depth: the deepest level, at least 1.
            batch: overwritten; its room, at least one node a tree, is the most that a tree takes.
        """
        ...
