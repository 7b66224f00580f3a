"""The pooled choice by exact arithmetic, trying every count."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def pooled_choice(probs: Sequence[Sequence[float]], costs: Sequence[float]) -> list[int]:
    """Return how many nodes of each request belong to the best step; the fewest of equals.

    Args:
        probs: path probabilities of each request's nodes.
        costs: time of a step with 0, 1, ... nodes in all.
    """
    ranked = sorted(
        ((Fraction(prob), request) for request, row in enumerate(probs) for prob in row),
        key=lambda pair: (-pair[0], pair[1]),
    )
    best_rate, best = Fraction(len(probs)) / Fraction(costs[0]), 0
    tokens = Fraction(len(probs))
    for count, (prob, _) in enumerate(ranked, 1):
        tokens += prob
        rate = tokens / Fraction(costs[count])
        if rate > best_rate:
            best_rate, best = rate, count
    counts = [0] * len(probs)
    for _, request in ranked[:best]:
        counts[request] += 1
    return counts
