"""One step of the blend: what each request's sources proposed, on its way to one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base import RequestId
from ..tree import ROOT, CandidateTree
from . import _merge_kernels as kernels


@dataclass(slots=True)
class Record:
    """How one request has fared with each source."""

    expected: list[float]  # of each source, promised tokens, fading
    accepted: list[float]  # tokens that came true, fading
    idle_steps: list[int]  # steps since it last proposed what came true
    step: int = 0
    trees: list[CandidateTree | None] = field(default_factory=list)  # what each last proposed


class Step:
    """The trees of one step as the merging kernel takes them.

    Attributes:
        request_ids: the requests of the step.
        rows: which of them are known.
        max_nodes: most nodes of a tree.
        max_depth: deepest node.
        drawn: each request's drawn tree, which is kept out of the merge.
    """

    def __init__(
        self,
        request_ids: Sequence[RequestId],
        records: Sequence[Record | None],
        num_sources: int,
        max_nodes: int,
        max_depth: int,
    ) -> None:
        """Begin without trees.

        Args:
            request_ids: the requests of the step.
            records: their records, ``None`` for an unknown request.
            num_sources: trees a request at most.
            max_nodes: most nodes of each tree, and of a merged one.
            max_depth: deepest node.
        """
        self.request_ids = request_ids
        self.rows = [row for row, record in enumerate(records) if record is not None]
        self._records = records
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self.drawn: list[CandidateTree | None] = [None] * len(records)
        self._nodes = np.empty((len(records), num_sources, 2, max_nodes), np.int32)
        self._probs = np.empty((len(records), num_sources, max_nodes), np.float32)
        self._counts = np.zeros((len(records), num_sources), np.int32)
        self._is_empty = True

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

    def add(self, row: int, index: int, tree: CandidateTree, trust: float) -> None:
        """Take in a source's tree for one request.

        Of several drawn trees the first is kept: they cannot be merged.
        """
        if tree.draft_probs is not None:
            if tree.num_nodes and self.drawn[row] is None:
                probs = (tree.probs * trust).astype(np.float32)
                self.drawn[row] = CandidateTree(
                    tree.token_ids, tree.parents, probs, tree.draft_probs
                )
            return
        size = tree.num_nodes
        self._is_empty = False
        self._counts[row, index] = size
        self._nodes[row, index, kernels.TOKEN, :size] = tree.token_ids
        self._nodes[row, index, kernels.PARENT, :size] = tree.parents
        self._probs[row, index, :size] = tree.probs * trust

    def merge(self) -> list[CandidateTree]:
        """Return one tree a request of all that was added, drawn trees left out."""
        num_requests, _, _, max_nodes = self._nodes.shape
        if self._is_empty:
            return [CandidateTree.empty()] * num_requests
        nodes = np.empty((num_requests, 2, max_nodes), np.int32)
        probs = np.empty((num_requests, max_nodes), np.float32)
        counts = np.empty(num_requests, np.int32)
        kernels.merge_trees(self._nodes, self._probs, self._counts, nodes, probs, counts)
        return [
            CandidateTree(nodes[row, 0, :size], nodes[row, 1, :size], probs[row, :size])
            for row, size in enumerate(counts.tolist())
        ]


def outcome_of(tree: CandidateTree, tokens: list[int]) -> tuple[float, int]:
    """Return how many tokens a tree promised and how many came true.

    Nodes deeper than the committed tokens are left out: what they said is not known yet.
    """
    if len(tokens) == 1:  # the usual step: only the root's children are known
        first = tree.parents == ROOT
        hit = (tree.token_ids[first] == tokens[0]).any()
        return float(tree.probs[first].sum()), int(hit)
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
