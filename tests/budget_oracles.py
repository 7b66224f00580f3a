"""The pooled choice by trying every count, and a padded batch's end by trying every fate."""

from __future__ import annotations

import itertools
import math
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


def batch_seconds(num_left: Sequence[float], row_costs: Sequence[float]) -> float:
    """Return how long a padded batch takes without drafts, row after row dropping out.

    Args:
        num_left: tokens that each row has left.
        row_costs: time of a step of 1 to all rows.
    """
    total, done = 0.0, 0.0
    for num_running, left in zip(range(len(num_left), 0, -1), sorted(num_left), strict=True):
        total += row_costs[num_running - 1] * (left - done)
        done = left
    return total


def step_value(
    grown: Sequence[float],
    num_left: Sequence[float],
    row_costs: Sequence[float],
    change_rates: Sequence[float],
) -> float:
    """Return what a step saves, over all that may happen to the rows, weighed by its probability.

    Where k rows stay as they are, the k last ones are those that they seem; the others are any.
    """
    num_rows = len(grown)
    order = sorted(num_left, reverse=True)
    after = sorted((left - more for left, more in zip(num_left, grown, strict=True)), reverse=True)
    mean = sum(grown) / num_rows
    stays = [math.exp(-rate * left) for rate, left in zip(change_rates, num_left, strict=True)]
    total = 0.0
    for fates in itertools.product((False, True), repeat=num_rows):
        chance = math.prod(p if fate else 1 - p for p, fate in zip(stays, fates, strict=True))
        for place in range(num_rows):
            share = row_costs[place] - (row_costs[place - 1] if place else 0.0)
            known = place < sum(fates)
            total += chance * share * (order[place] - after[place] if known else mean)
    return total / row_costs[-1]
