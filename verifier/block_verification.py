"""Lossless acceptance of a sampled chain as one block, which accepts more than token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..drafters import ROOT
from .rejection import Chance, Draft, FloatArray64, TargetProbs
from .walk import WalkResult


def joint_ratios(
    token_ids: Sequence[int],
    draft: Sequence[FloatArray64 | None],
    target: Sequence[FloatArray64],
) -> list[float]:
    """Return ``num_nodes + 1`` capped ratios of the target's to the draft's path probability.

    Entry 0 is 1; entry i is min(1, entry i-1 times p / q of the i-th token).

    Args:
        token_ids: the chain.
        draft: q that each token was drawn from, ``None`` for a point mass.
        target: p after the root and after each node.
    """
    ratios = [1.0]
    for token, q, p in zip(token_ids, draft, target, strict=False):
        probability = 1.0 if q is None else float(q[token])
        ratios.append(min(1.0, ratios[-1] * float(p[token]) / probability))
    return ratios


def unmet_mass(
    ratio: float, target: FloatArray64, draft: FloatArray64 | None, token: int
) -> FloatArray64:
    """Return ``(vocab_size,)`` (ratio p - q)+, the mass that continuing the draft would miss.

    Args:
        ratio: the path's capped ratio.
        target: p after the path.
        draft: q of the next drafted token, ``None`` for a point mass at ``token``.
        token: the next drafted token.
    """
    left: FloatArray64 = ratio * target
    if draft is None:
        left[token] = max(left[token] - 1, 0.0)
        return left
    return np.maximum(left - draft, 0)


def stop_probability(ratio: float, unmet: float) -> float:
    """Return the probability of accepting a path, given that no longer one was accepted.

    Args:
        ratio: the path's capped ratio.
        unmet: total of :func:`unmet_mass` after the path.
    """
    # Both vanish only where ratio is 1 and p equals q, so the next token is accepted for sure.
    return unmet / (unmet + (1 - ratio)) if unmet > 0 else 0.0


def verify_block(
    draft: Draft,
    target_probs: TargetProbs,
    chance: Chance,
    emit: Callable[[int, int], bool],
) -> WalkResult:
    """Accept the longest prefix of a sampled chain that the joint ratios allow.

    Prefixes are tried from the longest down, which is the method's rule (the last accepted one
    counts) without drawing what cannot matter. No rule that knows only the chain's own p and q
    emits more tokens in expectation. Since the whole chain's p is read before anything is
    emitted, it does not suit processors that keep state.

    Args:
        draft: the candidates; each node has at most one child.
        target_probs: p after a node.
        chance: the randomness. All decisions belong to the step's first position: later steps
            decide about the positions of rejected nodes again, and must not see the same noise.
        emit: given a token and the node that was its source, commits the token and says whether to
            go on, as in :func:`.walk.walk`.

    Raises:
        ValueError: a node has several children.

    Source: Sun et al., arXiv:2403.10444, algorithm 2.
    """
    nodes = _chain_nodes(draft)
    token_ids = [draft.token_id(node) for node in nodes]
    draft_rows = [draft.probs(node) for node in nodes]
    target_rows = [target_probs(node) for node in (ROOT, *nodes)]
    ratios = joint_ratios(token_ids, draft_rows, target_rows)
    length = len(nodes)
    left = target_rows[length]
    if length > 0 and not chance.decide(ratios[length], 0, length):
        while True:
            length -= 1
            left = unmet_mass(
                ratios[length], target_rows[length], draft_rows[length], token_ids[length]
            )
            unmet = float(left.sum())
            if length == 0 or chance.decide(stop_probability(ratios[length], unmet), 0, length):
                # Nothing unmet at the root: p equals q, and only rounding has led here.
                left = left / unmet if unmet > 0 else target_rows[length]
                break
    emitted: list[int] = []
    for index in range(length):
        emitted.append(token_ids[index])
        if not emit(token_ids[index], ROOT if index == 0 else nodes[index - 1]):
            return WalkResult(emitted, nodes[: index + 1])
    emitted.append(chance.draw(left, length))
    emit(emitted[-1], nodes[length - 1] if length else ROOT)
    return WalkResult(emitted, nodes[:length])


def _chain_nodes(draft: Draft) -> list[int]:
    nodes: list[int] = []
    below = draft.children(ROOT)
    while below:
        if len(below) > 1:
            raise ValueError(
                f"expected a chain, got {len(below)} children below node "
                f"{nodes[-1] if nodes else ROOT}: verify trees by rejection"
            )
        nodes.append(below[0])
        below = draft.children(nodes[-1])
    return nodes
