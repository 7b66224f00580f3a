"""Grows candidate trees with a model, level by level, for a batch of rows at once.

At each level the most probable of the newest nodes are run, and each gets its children. Drawn nodes
keep the verifier's rule that whether a node exists never depends on its own token: which nodes are
run is decided by themselves and their ancestors, and all children drawn for them stay.

Source: arXiv:2211.17192 (the draft model), arXiv:2406.16858 (trees by path probability),
arXiv:2309.08168 (the stop by confidence).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ..tree import ROOT, CandidateTree, FloatArray
from .choices import Children, Draws, choose_children, draw_children, stacked_rows
from .config import ModelDraftConfig
from .runner import NO_NODES, NewNodes, TreeRunner

AdaptLogits = Callable[[Tensor], Tensor]
"""``(num_rows, vocab_size)`` logits of the drafting model to those over the target's ids."""
ToDraftIds = Callable[[Sequence[int]], Sequence[int]]
"""Token ids of the target to the drafting model's."""
Calibrate = Callable[[float], float]
"""The model's probability of a token to the probability that it comes true."""


@dataclass(slots=True)
class RowDraft:
    """One row's draft while it grows.

    Attributes:
        pending: committed tokens that the cache does not hold yet, at least one: the last is the
            root. In the target's ids.
        max_nodes: most nodes.
        max_depth: deepest node.
        draws: the row's randomness in this step.
    """

    pending: Sequence[int]
    max_nodes: int
    max_depth: int
    draws: Draws
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    """Of each node, the model's probability of its token after its parent."""
    rows: list[FloatArray] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    """Of each node that was run, and of the root (-1), its number with the runner."""
    pending_numbers: list[int] = field(default_factory=list)
    newest: list[int] = field(default_factory=list)
    """Nodes that are run next."""

    def tree(self) -> CandidateTree:
        """Return the candidates."""
        return CandidateTree(
            np.array(self.token_ids, np.int32),
            np.array(self.parents, np.int32),
            np.array(self.probs, np.float32),
            stacked_rows(self.rows),
        )


class Expansion:
    """Grows drafts by one configuration."""

    def __init__(
        self,
        config: ModelDraftConfig,
        calibrate: Calibrate,
        adapt_logits: AdaptLogits = lambda logits: logits,
        to_draft_ids: ToDraftIds = lambda ids: ids,
    ) -> None:
        """Put the parts together.

        Args:
            config: the settings.
            calibrate: makes the model's probabilities honest.
            adapt_logits: of a model with another vocabulary.
            to_draft_ids: for a model with another vocabulary.
        """
        self._config = config
        self._calibrate = calibrate
        self._adapt_logits = adapt_logits
        self._to_draft_ids = to_draft_ids

    def run(
        self, runner: TreeRunner, drafts: Sequence[RowDraft | None], min_confidence: float
    ) -> None:
        """Grow the drafts of all rows of ``runner``; the cache holds what was run.

        Args:
            runner: without a tree.
            drafts: one a row, ``None`` for rows that draft nothing.
            min_confidence: nodes whose parent's distribution has no probability as high as this
                are not run.
        """
        nodes = [
            NO_NODES
            if draft is None
            else NewNodes(self._to_draft_ids(draft.pending), range(-1, len(draft.pending) - 1))
            for draft in drafts
        ]
        if not any(row.token_ids for row in nodes):
            return
        logits, first = runner.grow(nodes)
        for draft in drafts:
            if draft is not None:
                draft.pending_numbers = list(range(first, first + len(draft.pending)))
                draft.numbers[ROOT] = draft.pending_numbers[-1]
                draft.newest = [ROOT]
        for depth in range(1, self._config.max_depth + 1):
            for row, draft in enumerate(drafts):
                if draft is not None and draft.newest:
                    self._add_level(draft, logits[row], first, depth, min_confidence)
            nodes = [NO_NODES if draft is None else _newest(draft) for draft in drafts]
            if not any(row.token_ids for row in nodes):
                return
            nodes = [NewNodes(self._to_draft_ids(n.token_ids), n.parents) for n in nodes]
            logits, first = runner.grow(nodes)
            for draft in drafts:
                if draft is not None:
                    draft.numbers |= {node: first + i for i, node in enumerate(draft.newest)}

    def _add_level(
        self, draft: RowDraft, logits: Tensor, first: int, depth: int, min_confidence: float
    ) -> None:
        """Give the newest nodes their children, and choose which of those are run next.

        Args:
            draft: the row's draft.
            logits: ``(width, vocab_size)`` of the row's last forward.
            first: the number of that forward's first token.
            depth: of the children.
            min_confidence: see :meth:`run`.
        """
        config = self._config
        places = [draft.numbers[node] - first for node in draft.newest]
        adapted = self._adapt_logits(logits[places])
        sure: list[int] = []
        for node, scores in zip(draft.newest, adapted, strict=True):
            if config.temperature > 0:
                room = min(config.branches, draft.max_nodes - len(draft.token_ids))
                children = draw_children(scores, room, config, draft.draws)
            else:
                children = choose_children(scores, config.branches)
            added = self._add_children(draft, node, children)
            if children.confidence >= min_confidence:
                sure.extend(added)
        full = len(draft.token_ids) >= draft.max_nodes
        if depth >= min(draft.max_depth, config.max_depth) or (full and config.temperature > 0):
            draft.newest = []
            return
        sure.sort(key=lambda node: -draft.probs[node])
        draft.newest = sure[: config.width]
        if full:
            # Chosen nodes may still displace less probable ones when the tree is cut.
            least = sorted(draft.probs, reverse=True)[draft.max_nodes - 1]
            draft.newest = [node for node in draft.newest if draft.probs[node] > least]

    def _add_children(self, draft: RowDraft, node: int, children: Children) -> list[int]:
        above = 1.0 if node == ROOT else draft.probs[node]
        added = range(len(draft.token_ids), len(draft.token_ids) + len(children.token_ids))
        draft.token_ids.extend(children.token_ids)
        draft.parents.extend([node] * len(children.token_ids))
        draft.chances.extend(children.chances)
        draft.probs.extend(above * self._calibrate(chance) for chance in children.chances)
        draft.rows.extend(children.rows)
        return list(added)


def _newest(draft: RowDraft) -> NewNodes:
    """Return the nodes that are run next, below what was run before."""
    return NewNodes(
        [draft.token_ids[node] for node in draft.newest],
        [draft.numbers[draft.parents[node]] for node in draft.newest],
    )
