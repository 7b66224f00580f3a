"""What speculation is worth on paper: small formulas, each with what it assumes.

Names as everywhere: a the chance that a drafted token is accepted given that the ones before it
were, g the drafted tokens of a step, c the time of drafting one token and T(n) the time of a target
step over n tokens, both in units of T(1), a plain step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..integrations.budget.data_sheets import experts_read

__all__ = [
    "amdahl_speedup",
    "break_even_acceptance",
    "experts_read",
    "moe_growth",
    "predicted_speedup",
    "tokens_per_chain",
    "tokens_per_tree",
    "wall_speedup",
]


def tokens_per_chain(acceptance: float, num_drafted: int) -> float:
    """Return E[N_emit], the tokens that a step with a chain emits: (1 - a^(g+1)) / (1 - a).

    Assumes that each drafted token is accepted with the same chance, whatever came before it, and
    that every step has a full draft: 0.7 and 3 give 2.533, 1 gives g + 1.

    Args:
        acceptance: a, in [0, 1].
        num_drafted: g, at least 0.

    Raises:
        ValueError: a number is out of its range.

    Source: arXiv:2211.17192, equation 1.
    """
    _check(acceptance, num_drafted)
    return float(sum(acceptance**depth for depth in range(num_drafted + 1)))


def wall_speedup(acceptance: float, num_drafted: int, draft_cost: float) -> float:
    """Return E[N_emit] / (1 + g c): the chain's gain with drafting paid for.

    Assumes, beside :func:`tokens_per_chain`, that verifying g + 1 tokens takes as long as one plain
    step: 0.7, 3 and 0.05 give 2.203, not 2.533. Where verification is not free, use
    :func:`predicted_speedup`.

    Args:
        acceptance: a, in [0, 1].
        num_drafted: g, at least 0.
        draft_cost: c, at least 0.

    Source: arXiv:2211.17192, theorem 3.8.
    """
    if draft_cost < 0:
        raise ValueError(f"expected draft_cost >= 0, got {draft_cost}")
    return tokens_per_chain(acceptance, num_drafted) / (1 + num_drafted * draft_cost)


def tokens_per_tree(path_probs: npt.ArrayLike) -> float:
    """Return E[N_emit] of a tree: 1 + the sum of its nodes' path probabilities.

    Assumes only that the probabilities are right: a node is emitted when its whole path is, and the
    expected number of emitted nodes is the sum of their chances. A chain with probabilities a,
    a^2, ... is :func:`tokens_per_chain`.

    Args:
        path_probs: ``(num_nodes,)``, each in [0, 1].

    Raises:
        ValueError: a probability is out of its range.
    """
    probs = np.asarray(path_probs, np.float64)
    if probs.size and not ((probs >= 0) & (probs <= 1)).all():
        raise ValueError(f"expected path probabilities in [0, 1], got {probs.tolist()}")
    return 1.0 + float(probs.sum())


def predicted_speedup(
    tokens_per_step: float, verify_seconds: float, plain_seconds: float, draft_seconds: float = 0.0
) -> float:
    """Return N_emit T(1) / (T_draft + T_verify(n)).

    Assumes that all steps are alike; the ratio of means, not the mean of ratios.

    Args:
        tokens_per_step: emitted tokens over all target steps.
        verify_seconds: mean time of a target step with its draft.
        plain_seconds: time of a target step without one.
        draft_seconds: mean time of drafting a step.

    Raises:
        ValueError: a time is not positive, or fewer than one token a step.
    """
    if tokens_per_step < 1 or min(verify_seconds, plain_seconds) <= 0 or draft_seconds < 0:
        raise ValueError(
            "expected tokens_per_step >= 1, times of steps above 0 and draft_seconds >= 0, got "
            f"{tokens_per_step}, {verify_seconds}, {plain_seconds} and {draft_seconds}"
        )
    return tokens_per_step * plain_seconds / (draft_seconds + verify_seconds)


def break_even_acceptance(cost_ratio: float, draft_cost: float = 0.0) -> float:
    """Return the least a at which one drafted token pays: c + T(2)/T(1) - 1.

    Assumes one drafted token a step. Above 1 nothing pays.

    Args:
        cost_ratio: T(2) / T(1), at least 1.
        draft_cost: c.
    """
    if cost_ratio < 1 or draft_cost < 0:
        raise ValueError(
            f"expected cost_ratio >= 1 and draft_cost >= 0, got {cost_ratio} and {draft_cost}"
        )
    return draft_cost + cost_ratio - 1


def amdahl_speedup(copied_share: float, copied_speedup: float) -> float:
    """Return 1 / ((1 - s) + s / S): only the copied share of the tokens gets faster.

    Assumes that tokens that are not copied take as long as without speculation, and that the times
    of prompts are left out: with half of the tokens copied, no drafter gives more than 2.

    Args:
        copied_share: s, the share of the tokens that stands earlier in the text, in [0, 1].
        copied_speedup: S, how much faster those are emitted; infinity is the limit.

    Raises:
        ValueError: a number is out of its range.

    Source: G. Amdahl, AFIPS 1967.
    """
    if not 0 <= copied_share <= 1 or copied_speedup <= 0:
        raise ValueError(
            "expected copied_share in [0, 1] and copied_speedup above 0, got "
            f"{copied_share} and {copied_speedup}"
        )
    rest = 1 - copied_share + copied_share / copied_speedup
    return float("inf") if rest == 0 else 1 / rest


def moe_growth(
    num_experts: int, num_chosen: int, num_tokens: Sequence[int], shared_share: float = 0.0
) -> list[float]:
    """Return how much more weight a step reads than a step over one token, by number of tokens.

    Assumes that reading weights is what a step takes its time for, and independent choices of
    experts (:func:`experts_read`): neighbouring tokens choose alike in truth, which reads less.

    Args:
        num_experts: routed experts of a layer.
        num_chosen: of them, for each token.
        num_tokens: tokens of the step.
        shared_share: share of one token's weights that every token reads (attention, shared
            experts), in [0, 1].

    Raises:
        ValueError: a number is out of its range.
    """
    if not 0 <= shared_share <= 1:
        raise ValueError(f"expected shared_share in [0, 1], got {shared_share}")
    read = experts_read(num_experts, num_chosen, num_tokens) / num_chosen
    return [float(shared_share + (1 - shared_share) * ratio) for ratio in read]


def _check(acceptance: float, num_drafted: int) -> None:
    if not 0 <= acceptance <= 1 or num_drafted < 0:
        raise ValueError(
            f"expected acceptance in [0, 1] and num_drafted >= 0, got {acceptance} and "
            f"{num_drafted}"
        )
