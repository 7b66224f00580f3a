from __future__ import annotations

import budget_oracles
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft import CandidateTree
from freedraft.integrations.budget import (
    PADDED,
    BudgetConfig,
    PooledBudget,
    StepCosts,
    TokenCosts,
    choose_num_nodes,
    pooled_choice,
)
from freedraft.integrations.budget.calibration_file import MEASURED, Calibration
from freedraft.integrations.budget.monotone import isotonic

EMPTY = CandidateTree.empty()


def test_the_pooled_choice_equals_the_exact_oracle_on_ten_thousand_cases() -> None:
    generator = np.random.default_rng(7)
    totals = []
    for case in range(10_000):
        num_requests = int(generator.integers(1, 7))
        sizes = generator.integers(0, 8, num_requests)
        # Sixteenths make many equal nodes and equal rates; float32 has few.
        grain = 16 if case % 2 else 2**24
        probs = [
            np.sort(generator.integers(0, grain + 1, size) / grain).astype(np.float32)[::-1]
            for size in sizes
        ]
        increments = generator.integers(0, 65, int(sizes.sum())) / (64 * generator.integers(1, 5))
        costs = num_requests * np.concatenate([[1.0], 1.0 + np.cumsum(increments)])
        expected = budget_oracles.pooled_choice([row.tolist() for row in probs], costs.tolist())
        chosen = pooled_choice(np.concatenate(probs), sizes, costs)
        assert chosen.tolist() == expected, case
        totals.append(sum(expected))
    assert totals.count(0) > 500 and sum(total > 3 for total in totals) > 500


@given(
    st.lists(st.floats(0, 1, width=32), max_size=12),
    st.integers(1, 8),
    st.lists(st.floats(0.01, 2), min_size=13, max_size=13),
)
def test_choice_equals_trying_every_count(
    gains: list[float], num_requests: int, increments: list[float]
) -> None:
    costs = np.cumsum(increments)[: len(gains) + 1]
    ordered = sorted(gains, reverse=True)
    rates = [(num_requests + sum(ordered[:n])) / costs[n] for n in range(len(gains) + 1)]
    chosen = choose_num_nodes(gains, num_requests, costs)
    assert rates[chosen] == pytest.approx(max(rates))


def test_nothing_profitable_means_nothing() -> None:
    assert choose_num_nodes([0.3, 0.2], 1, [1.0, 1.5, 1.6]) == 0
    assert choose_num_nodes([0.9, 0.9], 1, [1.0, 1.5, 1.6]) == 2
    assert choose_num_nodes([], 1, [1.0]) == 0
    assert pooled_choice([], [0, 0], [1.0]).tolist() == [0, 0]
    assert pooled_choice([], [], [1.0]).tolist() == []


def test_a_choice_of_mismatched_arrays_is_refused() -> None:
    with pytest.raises(ValueError, match="expected sizes that add up to 2 nodes, got 3"):
        pooled_choice([0.5, 0.5], [1, 2], [1, 1, 1])
    with pytest.raises(ValueError, match=r"shape \(3,\), got shape \(2,\)"):
        pooled_choice([0.5, 0.5], [1, 1], [1, 1])
    with pytest.raises(ValueError, match=r"shape \(2,\), got shape \(4,\)"):
        choose_num_nodes([0.5], 1, [1, 1, 1, 1])


def relative(costs: StepCosts, width: int, num_requests: int = 1) -> float:
    return float(costs.relative(num_requests, width))


def test_costs_follow_what_is_measured() -> None:
    costs = StepCosts()
    for _ in range(60):
        for nodes, seconds in ((0, 0.010), (1, 0.011), (3, 0.011), (7, 0.012), (15, 0.013)):
            costs.record(1, nodes, seconds)
    learned = costs.relative(1, np.arange(1, 17))
    assert learned[0] == 1.0
    assert learned[15] == pytest.approx(1.3, rel=0.05)
    assert (np.diff(learned) >= 0).all()
    assert costs.plain_seconds(1) == pytest.approx(0.010, rel=0.05)


def test_batches_are_told_apart() -> None:
    costs = StepCosts()
    for _ in range(60):
        costs.record(1, 0, 0.010)
        costs.record(1, 15, 0.011)
        costs.record(8, 0, 0.020)
        costs.record(8, 8 * 15, 0.080)
    assert relative(costs, 16, 1) == pytest.approx(1.1, rel=0.05)
    assert relative(costs, 16, 8) == pytest.approx(4.0, rel=0.1)
    assert relative(costs, 16, 9) == relative(costs, 16, 8)


def test_the_level_may_drift_without_tipping_the_ratios() -> None:
    costs = StepCosts()
    for step in range(300):
        level = 0.010 * 1.01**step  # the context grows
        costs.record(1, 0, level)
        costs.record(1, 15, 1.5 * level)
    assert relative(costs, 16) == pytest.approx(1.5, rel=0.1)


def test_one_slow_step_is_forgotten() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.record(1, 0, 0.010)
        costs.record(1, 15, 0.013)
    costs.record(1, 15, 10.0)
    assert relative(costs, 16) < 2.0
    for _ in range(400):
        costs.record(1, 0, 0.010)  # the width is not used any more, its memory fades
    assert relative(costs, 16) == pytest.approx(relative(StepCosts(), 16), rel=0.05)


def test_costs_beyond_the_widest_go_on_rising() -> None:
    assert relative(StepCosts(), 512) == pytest.approx(30.0)


def sure(num_nodes: int, prob: float) -> CandidateTree:
    return CandidateTree.from_chain(range(num_nodes), [prob] * num_nodes)


def learned_costs(num_requests: int) -> StepCosts:
    """Return costs that say: 8 tokens a request are nearly free, 16 are dear."""
    costs = StepCosts()
    for _ in range(40):
        for width, seconds in ((1, 0.010), (8, 0.011), (16, 0.030)):
            costs.record(num_requests, (width - 1) * num_requests, seconds)
    return costs


def test_padded_rows_are_cut_to_one_count() -> None:
    budget = PooledBudget(learned_costs(2), BudgetConfig(PADDED))
    cut = budget.cut([0, 1], [sure(15, 0.9), sure(3, 0.9)])
    assert 0 < cut[0].num_nodes <= 8
    assert cut[1].num_nodes == 3
    assert budget.cut([0], [EMPTY])[0].num_nodes == 0


def test_pooled_nodes_go_to_the_request_that_uses_them() -> None:
    budget = PooledBudget(learned_costs(2))
    cut = budget.cut([0, 1], [sure(15, 0.9), sure(15, 0.1)])
    assert 8 < cut[0].num_nodes <= 15  # 14 nodes are 8 tokens a request on average
    assert cut[1].num_nodes == 0


def test_a_request_whose_drafts_fail_is_given_up_and_comes_back() -> None:
    budget = PooledBudget(config=BudgetConfig(PADDED))
    for _ in range(20):
        budget.record_outcome(0, sure(10, 0.8), 0)
    assert budget.correction(0) < 0.1
    unknown = budget.correction(1)
    assert budget.cut([0], [sure(10, 0.5)])[0].num_nodes == 0
    assert budget.cut([1], [sure(10, 0.5)])[0].num_nodes > 0
    for _ in range(1000):
        budget.record_outcome(0, EMPTY, 0)
    assert budget.correction(0) == pytest.approx(unknown, rel=0.1)


def test_unverified_drafts_that_come_true_bring_drafting_back() -> None:
    budget = PooledBudget()
    for _ in range(20):
        budget.record_outcome(0, sure(10, 0.8), 0)
    steps = 0
    while budget.cut([0], [sure(6, 0.8)])[0].num_nodes == 0:
        budget.record_outcome(0, EMPTY, 0, [0])  # the chain began with token 0
        steps += 1
    assert 0 < steps < 40
    low = budget.correction(0)
    budget.cut([0], [sure(6, 0.01)])
    budget.record_outcome(0, EMPTY, 0, [5])
    assert budget.correction(0) <= low


@given(st.lists(st.lists(st.floats(0, 1, width=32), max_size=6), min_size=1, max_size=4))
def test_a_cut_keeps_the_most_probable_nodes_wherever_they_stand(rows: list[list[float]]) -> None:
    trees = [  # all nodes hang from the root, so that any order is a tree
        CandidateTree.from_arrays(range(len(row)), [-1] * len(row), row) for row in rows
    ]
    requests = list(range(len(trees)))
    for tree, kept in zip(trees, PooledBudget().cut(requests, trees), strict=True):
        expected = tree.cut(kept.num_nodes)
        assert kept.token_ids.tolist() == expected.token_ids.tolist()
        assert kept.probs.tolist() == expected.probs.tolist()


def test_limits_and_schedule_hold() -> None:
    budget = PooledBudget(config=BudgetConfig(schedule={1: 16, 2: 3, 4: 0}))
    trees = [sure(10, 0.01)] * 4
    assert budget.allowances([0], 99) == [16]
    assert budget.allowances([0, 1, 2], 99) == [3, 3, 3]
    assert [tree.num_nodes for tree in budget.cut([0], trees[:1])] == [10]
    assert [tree.num_nodes for tree in budget.cut([0, 1], trees[:2])] == [3, 3]
    assert [tree.num_nodes for tree in budget.cut([0, 1, 2, 3], trees)] == [0] * 4
    budget.set_limit(1, 1)
    budget.set_limit(2, 0)
    assert budget.allowances([0, 1, 2], 99) == [3, 1, 0]
    assert [tree.num_nodes for tree in budget.cut([0, 1, 2], trees[:3])] == [3, 1, 0]
    budget.set_limit(2, None)
    assert budget.allowances([0, 1, 2], 2) == [2, 1, 2]
    budget.forget(1)
    assert budget.allowances([0, 1, 2], 2) == [2, 2, 2]
    with pytest.raises(ValueError, match="expected max_nodes >= 0 or None, got -1"):
        budget.set_limit(0, -1)


def test_limits_hold_without_a_schedule() -> None:
    budget = PooledBudget(learned_costs(1))
    budget.set_limit(0, 2)
    assert budget.cut([0], [sure(6, 0.9)])[0].num_nodes == 2


def test_nothing_to_copy_puts_a_request_to_sleep_and_a_hit_wakes_it() -> None:
    budget = PooledBudget(config=BudgetConfig(sleep_after=32, sleep_period=8))
    asked = []
    for _ in range(2000):
        asked.append(budget.allowances([0], 16)[0] > 0)
        budget.cut([0], [EMPTY])
        budget.record_outcome(0, EMPTY, 0, [7])
    assert all(asked[:32])
    assert sum(asked[32:]) == pytest.approx(1968 / 8, abs=1)
    waited = 0
    while not budget.allowances([0], 16)[0]:
        budget.record_outcome(0, EMPTY, 0, [7])
        waited += 1
    assert waited < 8
    (tree,) = budget.cut([0], [sure(8, 0.9)])
    assert tree.num_nodes > 0
    budget.record_outcome(0, tree, tree.num_nodes)
    assert [budget.allowances([0], 16) for _ in range(3)] == [[16]] * 3


def test_a_hit_among_unverified_drafts_keeps_a_sleeper_awake_for_a_moment() -> None:
    budget = PooledBudget()
    for _ in range(32):
        budget.record_outcome(0, EMPTY, 0, [7])
    assert budget.allowances([0], 16) == [16]
    assert budget.cut([0], [sure(1, 0.1)])[0].num_nodes == 0
    budget.record_outcome(0, EMPTY, 0, [0])
    assert budget.allowances([0], 16) == [16]


def test_a_long_time_without_drafts_ends_in_a_test() -> None:
    budget = PooledBudget(config=BudgetConfig(test_after=10, test_nodes=2))
    verified = []
    for _ in range(100):
        (tree,) = budget.cut([0], [sure(6, 0.05)])
        verified.append(tree.num_nodes)
        budget.record_step(1, tree.num_nodes, 0.02 if tree.num_nodes else 0.01)
        budget.record_outcome(0, tree, 0, [99])
    assert [step for step, number in enumerate(verified) if number] == [9, 29, 69]
    assert set(verified) == {0, 2}


def test_sampled_trees_stay_whole_and_stop_when_they_do_not_pay() -> None:
    probs = np.full((4, 3), 1 / 3, np.float32)
    sampled = CandidateTree.from_arrays([0, 1, 2, 0], [-1, 0, 1, 2], [0.3] * 4, probs)
    budget = PooledBudget(config=BudgetConfig(PADDED))
    asked = 0
    for step in range(400):
        if budget.allowances([0], 4)[0]:
            asked += 1
            assert budget.cut([0], [sampled])[0] is sampled
            # A token now and then: less than such a wide step costs.
            budget.record_outcome(0, sampled, int(step % 4 == 0))
        else:
            budget.cut([0], [EMPTY])
            budget.record_outcome(0, EMPTY, 0)
    assert 32 <= asked < 120
    budget.set_limit(0, 2)
    assert budget.cut([0], [sampled])[0].num_nodes == 0  # never cut in two


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "ragged"}, "expected layout 'flat' or 'padded', got 'ragged'"),
        ({"memory": 0.0}, "expected memory > 0"),
        ({"margin": -0.1}, "and margin >= 0"),
        ({"max_loss": 0.0}, r"expected max_loss in \(0, 1\) or None, got 0.0"),
        ({"sleep_period": 0}, "sleep_period"),
        ({"schedule": {2: 4}}, "maps 1 and larger"),
        ({"schedule": {1: -4}}, "nodes >= 0"),
    ],
)
def test_settings_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BudgetConfig(**options)  # type: ignore[arg-type]


def test_rates_of_costs_are_checked() -> None:
    with pytest.raises(ValueError, match="expected rate in"):
        StepCosts(rate=0.0)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=7))
def test_the_isotonic_fit_is_monotone_and_closest(pairs: list[tuple[int, int]]) -> None:
    values, weights = map(np.array, zip(*pairs, strict=True))
    fitted = isotonic(values, weights)
    assert (np.diff(fitted) >= 0).all()
    # The largest of the least means over the stretches that hold an entry: the min-max formula.
    size = len(pairs)
    for at in range(size):
        expected = max(
            min(
                np.average(values[start:stop], weights=weights[start:stop])
                for stop in range(at + 1, size + 1)
            )
            for start in range(at + 1)
        )
        assert fitted[at] == pytest.approx(expected)


@pytest.mark.parametrize(("second_token", "worth_it"), [(0.0, True), (0.3, True), (0.9, False)])
def test_chances_are_taken_where_even_odds_would_pay(second_token: float, worth_it: bool) -> None:
    nodes = (0, 1, 31)
    seconds = 0.001 * (1 + second_token * np.array([[[0, 1, 1.1]]]))
    prior = Calibration("m", "e", "d", MEASURED, (1,), (1,), nodes, seconds)
    assert PooledBudget(StepCosts(prior)).takes_chances(1) == worth_it


def test_chances_follow_the_measured_times_and_a_schedule_overrides_them() -> None:
    budget = PooledBudget()
    assert not budget.takes_chances(1)  # the prior's second token is dear
    for num_nodes in [0, 1, 3, 7] * 20:
        budget.record_step(1, num_nodes, 0.01)
    assert budget.takes_chances(1)
    for num_nodes in [0, 1, 3, 7] * 40:
        budget.record_step(1, num_nodes, 0.03 if num_nodes else 0.01)
    assert not budget.takes_chances(1)
    scheduled = PooledBudget(config=BudgetConfig(schedule={1: 4, 8: 0}))
    assert scheduled.takes_chances(7) and not scheduled.takes_chances(8)


def test_a_sleeper_is_named_before_each_step_in_which_it_is_not_asked() -> None:
    budget = PooledBudget(config=BudgetConfig(sleep_after=4, sleep_period=3))
    wrong = CandidateTree.from_chain([3], [0.5])
    slept = 0
    for _ in range(20):
        (asleep,) = budget.sleepers(["a"])
        assert (budget.allowances(["a"], 8) == [0]) == asleep
        slept += asleep
        budget.record_outcome("a", wrong if not asleep else EMPTY, 0, [1])
    assert slept == 10
    budget.set_limit("b", 0)
    assert budget.sleepers(["b", "c"]) == [True, False]


def test_plain_steps_by_requests_come_from_what_is_known_before() -> None:
    assert StepCosts().plain_by_requests(3).tolist() == [1.0, 1.8, 1.8]
    seconds = np.array([[[1.0, 1.5], [3.0, 3.5]]])
    known = Calibration("m", "e", "d", MEASURED, (128,), (1, 3), (0, 1), seconds)
    assert StepCosts(known).plain_by_requests(3).tolist() == [1.0, 2.0, 3.0]
    assert TokenCosts(4.0).plain_by_requests(3).tolist() == pytest.approx([1.0, 1.25, 1.5])
