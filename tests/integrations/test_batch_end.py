from __future__ import annotations

import itertools

import budget_oracles
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft import CandidateTree
from freedraft.integrations.budget import PADDED, BudgetConfig, PooledBudget, StepCosts, step_values
from freedraft.integrations.budget.calibration_file import MEASURED, Calibration

EMPTY = CandidateTree.empty()
ROWS = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.floats(1, 9), min_size=3, max_size=3), min_size=n, max_size=n),
        st.lists(st.integers(1, 60), min_size=n, max_size=n),
        st.lists(st.floats(0.01, 2), min_size=n, max_size=n),
        st.lists(st.floats(0, 0.2), min_size=n, max_size=n),
    )
)


@given(ROWS)
def test_values_equal_trying_all_that_may_happen(
    case: tuple[list[list[float]], list[int], list[float], list[float]],
) -> None:
    grown, num_left, increments, rates = case
    row_costs = list(itertools.accumulate(increments))
    values = step_values(grown, num_left, row_costs, rates)
    assert values.shape == (3,)
    for step in range(3):
        column = [row[step] for row in grown]
        expected = budget_oracles.step_value(column, num_left, row_costs, rates)
        assert values[step] == pytest.approx(expected)


@given(ROWS)
def test_where_nothing_changes_a_value_is_the_time_that_the_batch_saves(
    case: tuple[list[list[float]], list[int], list[float], list[float]],
) -> None:
    grown, num_left, increments, _ = case
    row_costs = list(itertools.accumulate(increments))
    values = step_values(grown, num_left, row_costs, [0.0] * len(num_left))
    before = budget_oracles.batch_seconds(num_left, row_costs)
    for step in range(3):
        left = [tokens - row[step] for tokens, row in zip(num_left, grown, strict=True)]
        saved = before - budget_oracles.batch_seconds(left, row_costs)
        assert values[step] == pytest.approx(saved / row_costs[-1])


def test_a_plain_step_is_worth_one_whatever_happens() -> None:
    for rate in (0.0, 0.01, 1.0):
        assert step_values(np.ones(4), [5, 9, 9, 2], [1, 2, 2, 3], [rate] * 4) == pytest.approx(1.0)


def chains(tokens: list[int], probs: list[float]) -> list[CandidateTree]:
    return [
        CandidateTree.from_chain(range(n), [prob] * n) if n else EMPTY
        for n, prob in zip(tokens, probs, strict=True)
    ]


def padded(cost_a_node: float, num_rows: int) -> PooledBudget:
    nodes = (0, 1, 31)
    rows = tuple(range(1, num_rows + 1))
    seconds = np.array([[[1 + cost_a_node * n for n in nodes] for _ in rows]])
    known = Calibration("m", "e", "d", MEASURED, (1,), rows, nodes, seconds)
    return PooledBudget(StepCosts(known), BudgetConfig(PADDED))


def test_a_row_that_runs_ahead_does_not_hold_up_the_others() -> None:
    trees = chains([8, *[0] * 7], [0.9] * 8)  # one row copies, seven have nothing
    ids = list(range(8))

    def verified(num_left: list[int]) -> int:
        return padded(0.12, 8).cut(ids, trees, num_left)[0].num_nodes

    assert verified([20, *[60] * 7]) == 0
    assert verified([60, *[20] * 7]) == 8  # it is the last one
    assert verified([60] * 8) == 0  # seven others are as late
    assert padded(0.12, 8).cut(ids, trees)[0].num_nodes == 0
    assert padded(0.12, 1).cut([0], trees[:1], [3])[0].num_nodes == 8


def test_rows_that_all_get_ahead_at_times_count_even_where_they_do_not_now() -> None:
    budget = padded(0.01, 4)
    ids = list(range(4))
    verified = []
    for step in range(60):  # in each step another row copies
        trees = chains([8 * (step % 4 == row) for row in ids], [0.9] * 4)
        kept = budget.cut(ids, trees, [80] * 4)
        verified.append(max(tree.num_nodes for tree in kept))
        for row, tree in zip(ids, kept, strict=True):
            budget.record_outcome(row, tree, tree.num_nodes, [0])
        budget.record_step(4, 4 * verified[-1], 1 + 0.01 * verified[-1])
    assert verified[0] == 0
    assert all(verified[-8:])


def test_rows_of_a_batch_nap_together_and_wake_together() -> None:
    budget = PooledBudget(config=BudgetConfig(PADDED))
    ids = ["a", "b", "c"]
    asked = []
    for _ in range(96):
        allowed = budget.allowances(ids, 16)
        assert allowed in ([16] * 3, [0] * 3)
        assert (allowed == [0] * 3) == all(budget.sleepers(ids))
        asked.append(allowed[0] > 0)
        budget.cut(ids, [EMPTY] * 3, [90] * 3)
        for request_id in ids:
            budget.record_outcome(request_id, EMPTY, 0, [7])
    assert all(asked[:12])
    assert [sum(asked[start : start + 8]) for start in (12, 24, 32, 88)] == [4, 2, 1, 1]
    (tree,) = chains([3], [0.9])
    budget.record_outcome("b", tree, 3, [0, 1, 2, 5])
    assert budget.allowances(ids, 16) == [16] * 3
