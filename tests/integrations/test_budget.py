from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft import CandidateTree
from freedraft.integrations.budget import NodeBudget, StepCosts, choose_num_nodes


@given(
    st.lists(st.floats(0, 1), max_size=12),
    st.integers(1, 8),
    st.lists(st.floats(0.01, 2), min_size=13, max_size=13),
)
def test_choice_equals_trying_every_count(
    probs: list[float], num_requests: int, increments: list[float]
) -> None:
    costs = np.cumsum(increments)[: len(probs) + 1]
    ordered = sorted(probs, reverse=True)
    rates = [(num_requests + sum(ordered[:n])) / costs[n] for n in range(len(probs) + 1)]
    chosen = choose_num_nodes(probs, num_requests, costs)
    assert rates[chosen] == pytest.approx(max(rates))


def test_nothing_profitable_means_nothing() -> None:
    assert choose_num_nodes([0.3, 0.2], 1, [1.0, 1.5, 1.6]) == 0
    assert choose_num_nodes([0.9, 0.9], 1, [1.0, 1.5, 1.6]) == 2
    assert choose_num_nodes([], 1, [1.0]) == 0


def test_costs_follow_what_is_measured() -> None:
    costs = StepCosts()
    for _ in range(60):
        for width, seconds in ((1, 0.010), (2, 0.011), (4, 0.011), (8, 0.012), (16, 0.013)):
            costs.record(width, seconds)
    relative = costs.relative(16)
    assert relative[0] == 1.0
    assert relative[15] == pytest.approx(1.3, rel=0.05)
    assert (np.diff(relative) >= 0).all()


def test_the_level_may_drift_without_tipping_the_ratios() -> None:
    costs = StepCosts()
    for step in range(300):
        level = 0.010 * 1.01**step  # the context grows
        costs.record(1, level)
        costs.record(16, 1.5 * level)
    assert costs.relative(16)[15] == pytest.approx(1.5, rel=0.1)


def test_one_slow_step_is_forgotten() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.record(1, 0.010)
        costs.record(16, 0.013)
    costs.record(16, 10.0)
    assert costs.relative(16)[15] < 2.0
    for _ in range(400):
        costs.record(1, 0.010)  # the width is not used any more, its memory fades
    assert costs.relative(16)[15] == pytest.approx(StepCosts().relative(16)[15], rel=0.05)


def sure(num_nodes: int, prob: float) -> CandidateTree:
    return CandidateTree.from_chain(range(num_nodes), [prob] * num_nodes)


def test_budget_cuts_all_rows_to_one_count() -> None:
    budget = NodeBudget()
    for _ in range(40):
        for width, seconds in ((1, 0.010), (8, 0.011), (16, 0.030)):
            budget.costs.record(width, seconds)
    cut = budget.cut([0, 1], [sure(15, 0.9), sure(3, 0.9)])
    assert 0 < cut[0].num_nodes <= 8
    assert cut[1].num_nodes == 3
    assert budget.cut([0], [CandidateTree.empty()])[0].num_nodes == 0


def test_a_row_whose_drafts_fail_is_given_up_and_comes_back() -> None:
    budget = NodeBudget()
    for _ in range(20):
        budget.record(0, sure(10, 0.8), 0)
    assert budget.correction(0) < 0.3
    assert budget.correction(1) == 1.0
    assert budget.cut([0], [sure(10, 0.3)])[0].num_nodes == 0
    assert budget.cut([1], [sure(10, 0.3)])[0].num_nodes > 0
    for _ in range(1000):
        budget.record(0, CandidateTree.empty(), 0)
    assert budget.correction(0) > 0.9
