"""The trees of a batch of requests in two arrays, as kernels write and read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .base import RequestId
from .tree import CandidateTree, FloatArray, IntArray

# Trees are frozen, so that their own constructor sets every field by a detour; these are its slots.
_set_token_ids = CandidateTree.__dict__["token_ids"].__set__
_set_parents = CandidateTree.__dict__["parents"].__set__
_set_probs = CandidateTree.__dict__["probs"].__set__
_set_draft_probs = CandidateTree.__dict__["draft_probs"].__set__


@dataclass(slots=True, eq=False)
class TreeBatch:
    """One tree a row.

    Attributes:
        nodes: ``(num_rows, 1 + 2 * max_nodes)`` int32: the number of nodes, then with room for
            ``max_nodes`` each the token ids and the parents.
        probs: ``(num_rows, max_nodes)`` float32, path probabilities.
    """

    nodes: IntArray
    probs: FloatArray

    @classmethod
    def with_room(cls, num_rows: int, max_nodes: int) -> TreeBatch:
        """Return room for trees; what is in it is undefined."""
        return cls(
            np.empty((num_rows, 1 + 2 * max_nodes), np.int32),
            np.empty((num_rows, max_nodes), np.float32),
        )

    @classmethod
    def within(cls, cells: IntArray, num_rows: int) -> TreeBatch:
        """Return room for trees in ``(num_rows * (1 + 3 * max_nodes),)`` int32, nodes first."""
        max_nodes = (cells.size // num_rows - 1) // 3
        num_ints = num_rows * (1 + 2 * max_nodes)
        return cls(
            cells[:num_ints].reshape(num_rows, -1),
            cells[num_ints:].view(np.float32).reshape(num_rows, max_nodes),
        )

    def trees(self) -> list[CandidateTree]:
        """Return the trees; their arrays are parts of these."""
        num_rows = len(self.probs)
        trees: list[Any] = [new_tree() for _ in range(num_rows)]
        # Python's own loop would take twice as long.
        deque(map(set_batch, trees, repeat(self)), maxlen=0)
        deque(map(set_row, trees, range(num_rows)), maxlen=0)
        return trees


class DraftedTree(CandidateTree):
    """A tree in a row of a batch, which nobody may write to any more.

    Its arrays are cut out of the batch's when one of them is asked for: most of what a short
    proposal costs is Python objects, and where several drafters are merged nobody looks at these.
    """

    __slots__ = ("_batch", "_row")

    _batch: TreeBatch
    _row: int

    @property
    def source(self) -> tuple[TreeBatch, int]:
        """The batch and the row that the tree lies in."""
        return self._batch, self._row

    def __getattr__(self, name: str) -> Any:
        """Cut the arrays out and return one; called only while they are missing."""
        if name not in CandidateTree.__slots__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        batch, row = self._batch, self._row
        nodes, probs = batch.nodes[row], batch.probs[row]
        size = nodes.item(0)
        parents_at = 1 + probs.size
        _set_token_ids(self, nodes[1 : 1 + size])
        _set_parents(self, nodes[parents_at : parents_at + size])
        _set_probs(self, probs[:size])
        _set_draft_probs(self, None)
        return object.__getattribute__(self, name)


new_tree: Callable[[], DraftedTree] = partial(object.__new__, DraftedTree)
set_batch: Callable[[DraftedTree, TreeBatch], None] = DraftedTree.__dict__["_batch"].__set__
set_row: Callable[[DraftedTree, int], None] = DraftedTree.__dict__["_row"].__set__
"""What makes a tree of a row, for who cannot spare a call. Two slots, not one pair: a tuple more is
made of memory that the caches have lost since the last step."""


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
