"""One row's part in a step that has been scored: which tokens the target says, emitted in order.

This is the walk on the host, one row after the other, for whatever a row may ask for. Where it is
possible, :mod:`.device_walk` does the same for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...drafters import CandidateTree
from ...drafters.tree import FloatArray, IntArray
from ...verifier import WalkResult, walk
from ...verifier.block_verification import verify_block
from ...verifier.rejection import PositionChance, TreeDraft, verify_by_rejection
from .decode_row import DecodeRow

TopIds = tuple[IntArray, FloatArray]
"""``(num_nodes + 1, k)`` token ids and log-probabilities, the best first."""


class RowWalk(Protocol):
    """One row's part in a step that has been scored."""

    @property
    def choices(self) -> IntArray:
        """``(num_nodes + 1,)`` int32, the argmax after the root and after each node."""
        ...

    def emit(self) -> WalkResult:
        """Commit the row's tokens of the step; called once."""
        ...

    def top_ids(self, num_ids: int) -> TopIds:
        """Return the most likely tokens after the root and after each node.

        Args:
            num_ids: at most the number that the step was made for.
        """
        ...


@dataclass(frozen=True, slots=True)
class HostWalk:
    """A row that is walked on the host; see :class:`RowWalk`.

    Attributes:
        row: whose tokens are emitted.
        tree: what was verified.
        logits: ``(width, vocab_size)``, raw, after the root and after each node.
        best: their argmax, and that of padding behind.
    """

    row: DecodeRow
    tree: CandidateTree
    logits: Tensor
    best: list[int]

    @property
    def choices(self) -> IntArray:
        return np.array(self.best[: self.tree.num_nodes + 1], np.int32)

    def emit(self) -> WalkResult:
        """Commit one step's tokens by the rule that fits the draft and the row."""
        row, tree, logits = self.row, self.tree, self.logits
        if tree.draft_probs is None or row.key is None:
            # A greedy target is a point mass: the walk is exact however a draft was made.
            return walk(tree, self._chooser(), lambda token, _: row.emit(token))
        chance = PositionChance(row.key, row.position)
        if tree.is_chain and row.reads_no_history:
            return verify_block(
                TreeDraft(tree),
                lambda node: row.peek_probs(logits[node + 1]),
                chance,
                lambda token, node: row.emit_after(token, logits[node + 1]),
            )
        return verify_by_rejection(
            TreeDraft(tree),
            lambda node: row.target_probs(logits[node + 1]),
            chance,
            lambda token, _: row.emit(token),
        )

    def top_ids(self, num_ids: int) -> TopIds:
        # Faster than the log-sum-exp of the rows, though it writes them all.
        logprobs = self.logits[: self.tree.num_nodes + 1].float().log_softmax(-1)
        top = logprobs.topk(num_ids, -1)
        return top.indices.int().cpu().numpy(), top.values.cpu().numpy()

    def _chooser(self) -> Callable[[int], int]:
        if self.row.takes_argmax:
            return lambda node: self.best[node + 1]
        return lambda node: self.row.choose(self.logits[node + 1])


def host_walks(
    rows: Sequence[DecodeRow], trees: Sequence[CandidateTree], logits: Tensor
) -> list[HostWalk]:
    """Return each row's part in a step.

    Args:
        rows: the rows of the step.
        trees: one a row.
        logits: ``(num_rows, width, vocab_size)``.
    """
    # Plain decoding in transformers rounds to float32 before it chooses; so do we.
    rounded = logits.float() if logits.dtype == torch.float64 else logits
    best = rounded.argmax(-1).tolist()
    return [HostWalk(*parts) for parts in zip(rows, trees, logits, best, strict=True)]
