"""One step of the blend: what each request's sources proposed, on its way to one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base import RequestId
from ..tree import ROOT, CandidateTree, IntArray
from ..tree_batch import TreeBatch
from ._merge_kernels import MergeTrees, SettleTrees


@dataclass(slots=True)
class Record:
    """How one request has fared with each source."""

    expected: list[float]  # of each source, promised tokens, fading
    accepted: list[float]  # tokens that came true, fading
    idle_steps: list[int]  # steps since it last proposed what came true
    trusts: list[float]  # the factor on its probabilities that follows from this
    num_steps: int = 0
    step: Step | None = None  # the last one, until the tokens come that settle it
    row: int = 0  # of the request in it
    drawn: dict[int, CandidateTree] = field(default_factory=dict)  # drawn trees by source
    asked: set[int] = field(default_factory=set)  # the fallbacks that were asked


class Step:
    """The trees of one step as the merging kernel takes them.

    Attributes:
        request_ids: the requests of the step.
        rows: which of them are known.
        known: their records.
        max_nodes: most nodes of a tree.
        max_depth: deepest node.
        drawn: each request's drawn tree, which is kept out of the merge.
    """

    def __init__(
        self,
        request_ids: Sequence[RequestId],
        records: Sequence[Record | None],
        kernels: tuple[MergeTrees, SettleTrees],
        num_sources: int,
        max_nodes: int,
        max_depth: int,
    ) -> None:
        """Begin without trees.

        Args:
            request_ids: the requests of the step.
            records: their records, ``None`` for an unknown request.
            kernels: what merges and what settles.
            num_sources: trees a request at most.
            max_nodes: most nodes of each tree, and of a merged one.
            max_depth: deepest node.
        """
        num_requests = len(records)
        self.request_ids = request_ids
        self.rows = [row for row, record in enumerate(records) if record is not None]
        self.known = [record for record in records if record is not None]
        self._records = records
        self._merge, self._settle = kernels
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self.drawn: list[CandidateTree | None] = [None] * num_requests
        self._nodes = np.empty((num_sources, num_requests, 1 + 2 * max_nodes), np.int32)
        self._nodes[:, :, 0] = 0
        self._probs = np.empty((num_sources, num_requests, max_nodes), np.float32)
        self._trust = np.empty((num_sources, num_requests), np.float32)
        self._depths = np.empty(max_nodes, np.int32)
        self._outcomes = np.empty((num_sources, 2))

    def record(self, row: int) -> Record:
        """Return the record of one of ``rows``, the known requests."""
        record = self._records[row]
        assert record is not None
        return record

    def promise(self, row: int, merged: Sequence[CandidateTree]) -> float:
        """Return how many tokens a request's trees are expected to bring."""
        drawn = self.drawn[row]
        promised = 0.0 if drawn is None else float(drawn.probs.sum())
        return promised + float(merged[row].probs.sum())

    def room_of(self, index: int) -> TreeBatch:
        """Return the room for a source's trees, one for each request of the step."""
        return TreeBatch(self._nodes[index], self._probs[index])

    def add(self, row: int, index: int, tree: CandidateTree) -> None:
        """Take in a source's tree for one request."""
        size = tree.num_nodes
        self._nodes[index, row, 0] = size
        self._nodes[index, row, 1 : 1 + size] = tree.token_ids
        self._nodes[index, row, 1 + self.max_nodes : 1 + self.max_nodes + size] = tree.parents
        self._probs[index, row, :size] = tree.probs

    def add_drawn(self, row: int, index: int, tree: CandidateTree, trust: float) -> None:
        """Take in a drawn tree; of several the first is kept: they cannot be merged."""
        self.record(row).drawn[index] = tree
        if self.drawn[row] is None:
            probs = (tree.probs * trust).astype(np.float32)
            self.drawn[row] = CandidateTree(tree.token_ids, tree.parents, probs, tree.draft_probs)

    def set_trusts(self, rows: list[int], index: int, trusts: list[float]) -> None:
        """Set the factors on a source's probabilities for the requests that it is asked about."""
        if len(rows) == 1:
            self._trust[index, rows[0]] = trusts[0]
        elif len(rows) == len(self._records):
            self._trust[index] = trusts
        else:
            self._trust[index, rows] = trusts

    def merge(self) -> list[CandidateTree]:
        """Return one tree a request of all that was added, drawn trees left out."""
        batch = TreeBatch.with_room(len(self._records), self.max_nodes)
        self._merge(self._nodes, self._probs, self._trust, batch.nodes, batch.probs)
        return batch.trees()

    def outcomes(self, row: int, tokens: IntArray) -> list[list[float]]:
        """Return of each source how many tokens it promised and how many came true.

        A source without a tree promised -1.
        """
        outcomes = self._outcomes
        self._settle(self._nodes, self._probs, row, tokens, self._depths, outcomes)
        for index, tree in self.record(row).drawn.items():
            outcomes[index] = outcome_of(tree, tokens.tolist())
        rows: list[list[float]] = outcomes.tolist()
        return rows


def outcome_of(tree: CandidateTree, tokens: list[int]) -> tuple[float, int]:
    """Return how many tokens a tree promised and how many came true.

    Nodes deeper than the committed tokens are left out: what they said is not known yet.
    """
    promised, came_true, tip = 0.0, 0, ROOT
    depths: list[int] = []
    nodes = zip(tree.parents.tolist(), tree.token_ids.tolist(), tree.probs.tolist(), strict=True)
    # one pass is enough: a child stands after its parent
    for node, (parent, token, prob) in enumerate(nodes):
        depth = 1 if parent == ROOT else depths[parent] + 1
        depths.append(depth)
        if depth > len(tokens):
            continue
        promised += prob
        if parent == tip and token == tokens[depth - 1]:
            came_true, tip = depth, node
    return promised, came_true
