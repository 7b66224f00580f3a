from __future__ import annotations

import numpy as np
import pytest

from freedraft import CandidateTree
from freedraft.integrations.budget import PADDED, BudgetConfig, PooledBudget, RegretAccount

PLAIN, WIDE = 0.010, 0.022  # seconds of a step without drafts, and of one with
CHAIN = CandidateTree.from_chain(range(12), [0.95] * 12)


def test_losses_call_for_caution_and_time_or_gains_end_it() -> None:
    account = RegretAccount(0.01)
    calm = account.caution
    account.record(value=1.0, cost=3.0)
    assert account.loss == 2.0 and account.bound == pytest.approx(1.03)
    assert account.caution > 2 * calm
    for _ in range(400):
        account.record(1.0, 1.0)
    assert account.caution == calm
    account.record(1.0, 5.0)
    account.record(9.0, 2.0)
    assert account.loss == -1.0 and account.caution == calm


def test_credit_is_not_kept_for_long_losses() -> None:
    account = RegretAccount(0.01)
    for _ in range(100):
        account.record(9.0, 1.0)
    for _ in range(5):
        account.record(1.0, 4.0)
    assert account.loss > account.bound


def decode(budget: PooledBudget, num_steps: int, hits: int) -> tuple[float, int, int]:
    """Return the time of steps whose drafts are all wrong but the first, or all right."""
    seconds, emitted, num_wide = 0.0, 0, 0
    for _ in range(num_steps):
        is_asked = budget.allowances([0], 16)[0] > 0
        (tree,) = budget.cut([0], [CHAIN if is_asked else CandidateTree.empty()], [100])
        num_accepted = min(tree.num_nodes, hits)
        tokens = [*range(num_accepted), 0 if hits and not tree.num_nodes else 99]
        budget.record_outcome(0, tree, num_accepted, tokens)
        took = WIDE if tree.num_nodes else PLAIN
        budget.record_step(1, tree.num_nodes, took)
        seconds, emitted = seconds + took, emitted + len(tokens)
        num_wide += tree.num_nodes > 0
    return seconds, emitted, num_wide


def test_drafts_that_lie_cost_half_a_percent_and_are_tried_again() -> None:
    budget = PooledBudget(config=BudgetConfig(PADDED, max_loss=0.005))
    seconds, emitted, num_wide = decode(budget, 2000, 0)
    assert emitted == 2000 and 1 < num_wide < 20
    assert seconds <= PLAIN * (1.005 * emitted + 4)
    # Whatever was lost: where drafts come true, they are back.
    _, emitted, num_wide = decode(budget, 150, 12)
    assert num_wide > 100 and emitted > 1000


def test_drafts_that_are_always_right_at_first_and_always_wrong_behind_lose_within_limits() -> None:
    budget = PooledBudget(config=BudgetConfig(PADDED, max_loss=0.005))
    seconds, emitted, num_wide = decode(budget, 4000, 1)
    assert num_wide < 1000
    assert seconds <= PLAIN * (1.03 * emitted + 4)


def test_without_a_bound_the_margin_decides() -> None:
    loose = PooledBudget(config=BudgetConfig(PADDED, margin=0.0))
    strict = PooledBudget(config=BudgetConfig(PADDED, margin=2.0))
    modest = CandidateTree.from_chain(range(3), np.full(3, 0.9))
    for budget in (loose, strict):
        budget.record_step(1, 0, PLAIN)
    assert loose.cut([0], [modest])[0].num_nodes == 3
    assert strict.cut([0], [modest])[0].num_nodes == 0
