"""Lossless acceptance of drafts that were sampled: rejection with a residual, down a tree.

A drafter that samples says from which distribution q each node came; the target's p decides how
much of it stays. Nodes that were chosen and not drawn are the special case of a point mass, so
trees may mix both kinds, also under one parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..drafters import ROOT, CandidateTree
from .noise import NoiseKey, philox
from .sampling import choose_token
from .walk import WalkResult

FloatArray64 = npt.NDArray[np.float64]
TargetProbs = Callable[[int], FloatArray64]
"""Given a node (-1 for the root): ``(vocab_size,)`` float64, p after it, after all processors."""

ACCEPT_DRAW = 1
"""Purpose (:func:`.noise.uniform_noise`) of the noise behind the decisions to accept a node."""
DRAFT_DRAW = 2
"""Purpose of the noise that a drafter samples with, keyed by the step's first position, so that
what one step has looked at is never drawn again by a later one."""

_MAX_SUM_ERROR = 1e-3  # a row of float16 probabilities may be off by about this much


class Draft(Protocol):
    """A tree of candidates as the acceptance rules read it."""

    def children(self, node: int) -> Sequence[int]:
        """Return the children of ``node`` (-1 for the root) in the order they were drawn."""
        ...

    def token_id(self, node: int) -> int:
        """Return the token of ``node``."""
        ...

    def probs(self, node: int) -> FloatArray64 | None:
        """Return ``(vocab_size,)`` q that the node was drawn from, ``None`` for a point mass."""
        ...


class Chance(Protocol):
    """The random events of a rule; a test may enumerate them instead of drawing."""

    def decide(self, probability: float, offset: int, attempt: int) -> bool:
        """Say yes with the given probability.

        Args:
            probability: in [0, 1].
            offset: the decision is about the step's token of this index, 0 for the first.
            attempt: separates the decisions about one token.
        """
        ...

    def draw(self, probs: FloatArray64, offset: int) -> int:
        """Return a token drawn from ``(vocab_size,)`` probs for the step's token ``offset``."""
        ...


class PositionChance:
    """Events that are a function of the request's key and the position alone.

    The last draw of a step uses the noise of plain decoding, so an empty tree samples exactly the
    token that plain decoding samples.
    """

    def __init__(self, key: NoiseKey, position: int) -> None:
        """Set the place.

        Args:
            key: the request's noise.
            position: absolute position of the first token that the step emits.
        """
        self._key = key
        self._position = position

    def decide(self, probability: float, offset: int, attempt: int) -> bool:
        """Say yes with the given probability; see :class:`Chance`."""
        return uniform_number(self._key, self._position + offset, attempt) < probability

    def draw(self, probs: FloatArray64, offset: int) -> int:
        """Return a token drawn from ``probs``; see :class:`Chance`."""
        scores = torch.from_numpy(probs).log()
        return choose_token(scores, self._key, self._position + offset)


def uniform_number(key: NoiseKey, position: int, index: int, purpose: int = ACCEPT_DRAW) -> float:
    """Return what :func:`.noise.uniform_noise` holds for one index, a hundred times faster.

    Args:
        key: the request's noise.
        position: absolute position of the token that is decided about.
        index: in place of the token id.
        purpose: separates independent uses at the same position.
    """
    words = [word & 0xFFFFFFFF for word in (index, position, key.stream, purpose)]
    # The generator's arithmetic is the same for Python's integers, without a tensor's overhead.
    counter = cast(tuple[Tensor, Tensor, Tensor, Tensor], tuple(words))
    high, low, _, _ = philox(counter, (key.seed & 0xFFFFFFFF, (key.seed >> 32) & 0xFFFFFFFF))
    bits = (int(high) >> 5) * 2.0**26 + (int(low) >> 6)
    return (bits + 0.5) * 2.0**-53


class TreeDraft:
    """A :class:`CandidateTree` as a :class:`Draft`.

    Row i of ``draft_probs`` is the distribution that node i was really drawn from, given its path
    and its earlier siblings: for draws without replacement the row of the second sibling lacks
    the first one's token (:func:`without_replacement`). A row of zeros says that the node was
    chosen, not drawn; so does a tree without ``draft_probs``.

    Whether a node is in the tree may depend on its ancestors and earlier siblings, never on its own
    token: dropping drawn nodes that look unlikely biases the output.
    """

    def __init__(self, tree: CandidateTree) -> None:
        """Index the tree's children."""
        self._tree = tree
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            self._children.setdefault(parent, []).append(node)

    def children(self, node: int) -> Sequence[int]:
        """Return the children of ``node`` in index order, which is the order of the draws."""
        return self._children.get(node, ())

    def token_id(self, node: int) -> int:
        """Return the token of ``node``."""
        return int(self._tree.token_ids[node])

    def probs(self, node: int) -> FloatArray64 | None:
        """Return the node's q in float64, normalised, or ``None`` for a point mass.

        Raises:
            ValueError: the row does not sum to 1 or gives the node's own token no probability.
        """
        if self._tree.draft_probs is None:
            return None
        row = self._tree.draft_probs[node].astype(np.float64)
        total = float(row.sum())
        if total == 0:
            return None
        if not abs(total - 1) <= _MAX_SUM_ERROR or row.min() < 0:
            raise ValueError(
                f"expected draft_probs row {node} to be a distribution (or zeros for a chosen "
                f"node), got a sum of {total:g} and a minimum of {float(row.min()):g}"
            )
        if row[self.token_id(node)] == 0:
            raise ValueError(
                f"expected draft_probs of node {node} to allow its token {self.token_id(node)}, "
                f"got 0: pass the distribution that was sampled, after the draft's processors"
            )
        normalised: FloatArray64 = row / total
        return normalised


def without_replacement(probs: FloatArray64, drawn: Sequence[int]) -> FloatArray64:
    """Return ``(vocab_size,)`` the distribution of the next sibling when tokens may not repeat.

    Args:
        probs: ``(vocab_size,)`` q of the first sibling.
        drawn: tokens of the earlier siblings.

    Raises:
        ValueError: nothing is left to draw.
    """
    left = probs.astype(np.float64)
    left[list(drawn)] = 0
    total = left.sum()
    if total <= 0:
        raise ValueError(f"expected a token left to draw, got {len(drawn)} drawn and none left")
    normalised: FloatArray64 = left / total
    return normalised


def acceptance_probability(target: FloatArray64, draft: FloatArray64 | None, token: int) -> float:
    """Return the probability of accepting ``token``: min(1, p / q).

    Args:
        target: ``(vocab_size,)`` float64, p or what earlier siblings have left of it.
        draft: ``(vocab_size,)`` float64, q, or ``None`` for a point mass at ``token``.
        token: the node's token, which q allows.
    """
    if draft is None:
        return float(target[token])
    return min(1.0, float(target[token] / draft[token]))


def residual(target: FloatArray64, draft: FloatArray64 | None, token: int) -> FloatArray64:
    """Return ``(vocab_size,)`` what is left of p after ``token`` was rejected: norm((p - q)+).

    Args:
        target: ``(vocab_size,)`` float64, p or what earlier siblings have left of it.
        draft: ``(vocab_size,)`` float64, q, or ``None`` for a point mass at ``token``.
        token: the rejected token.
    """
    if draft is None:
        left = target.copy()
        left[token] = 0
    else:
        left = np.maximum(target - draft, 0)
    total = left.sum()
    # Nothing is left only where p equals q, and then nothing is rejected but by rounding.
    normalised: FloatArray64 = left / total if total > 0 else target
    return normalised


def verify_by_rejection(
    draft: Draft,
    target_probs: TargetProbs,
    chance: Chance,
    emit: Callable[[int, int], bool],
) -> WalkResult:
    """Walk down the tree, trying each node's children in turn against what is left of p.

    Each child c is accepted with min(1, r(c) / q(c)), where r starts as the target's p; a rejected
    child leaves r = norm((r - q)+) to the next one, and the last r gives the recovered token. The
    emitted tokens are distributed as the target's, whatever q is.

    Args:
        draft: the candidates, see :class:`TreeDraft`.
        target_probs: p after a node; asked once for each emitted token, in order.
        chance: the randomness.
        emit: given a token and the node that was its source, commits the token and says whether to
            go on, as in :func:`.walk.walk`.

    Source: arXiv:2211.17192 (chains), arXiv:2305.09781 and arXiv:2402.14160 (several children).
    """
    token_ids: list[int] = []
    accepted: list[int] = []
    node = ROOT
    while True:
        offset = len(token_ids)
        child, left = _try_children(draft, node, target_probs(node), chance, offset)
        if child is None:
            token = chance.draw(left, offset)
        else:
            token = draft.token_id(child)
            accepted.append(child)
        token_ids.append(token)
        if not emit(token, node) or child is None:
            return WalkResult(token_ids, accepted)
        node = child


def _try_children(
    draft: Draft, node: int, left: FloatArray64, chance: Chance, offset: int
) -> tuple[int | None, FloatArray64]:
    """Return the accepted child of ``node``, or ``None`` and what its children have left of p."""
    for child in draft.children(node):
        token, probs = draft.token_id(child), draft.probs(child)
        if chance.decide(acceptance_probability(left, probs, token), offset, child):
            return child, left
        left = residual(left, probs, token)
    return None, left
