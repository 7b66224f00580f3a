"""Step times by tokens, learned from batches of changing size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.integrations.budget import BudgetConfig, PooledBudget, TokenCosts


def engine(base: float, slope: float, num_requests: int, num_nodes: int) -> float:
    """Return what a step of an engine takes that pays for each token and each request."""
    return base + slope * (num_requests + num_nodes) + 0.1 * base * num_requests / 8


def test_the_prior_grows_with_the_tokens_of_all_requests() -> None:
    costs = TokenCosts(100)
    assert costs.relative(1, [1, 2, 4.5, 65, 5000]) == pytest.approx([1, 1.01, 1.035, 1.64, 50.99])
    # the seventeenth token of a batch of sixteen is a second one for one of them
    assert costs.relative(16, 17 / 16) == pytest.approx(1.16 / 1.15)
    assert costs.plain_seconds(4) is None


@pytest.mark.parametrize("slope", [0.05, 1.0])
def test_what_was_learned_in_a_batch_holds_for_smaller_ones(slope: float) -> None:
    rng = np.random.default_rng(3)
    costs = TokenCosts(48)
    for step in range(120):
        num_nodes = 0 if step % 3 == 0 else int(rng.integers(1, 60))
        costs.record(8, num_nodes, engine(40, slope, 8, num_nodes) * 1e-3)
    for num_requests in (8, 7, 5):
        for num_nodes in (16, 40):
            plain = engine(40, slope, num_requests, 0)
            expected = engine(40, slope, num_requests, num_nodes) / plain
            found = float(costs.relative(num_requests, 1 + num_nodes / num_requests))
            assert found == pytest.approx(expected, rel=0.15), (num_requests, num_nodes)
    assert costs.plain_seconds(8) == pytest.approx(engine(40, slope, 8, 0) * 1e-3, rel=0.05)


def test_a_dear_machine_is_found_out_in_a_few_steps() -> None:
    costs = TokenCosts(1000)  # next to nothing
    for _ in range(2):
        costs.record(4, 0, 0.1)
    for _ in range(5):
        costs.record(4, 28, 0.4)
    assert float(costs.relative(4, 8)) > 2.5
    assert float(costs.relative(4, 5)) > 1.5, "what was never tried is doubted as well"


def test_a_cheap_machine_is_found_out_and_wide_steps_follow() -> None:
    costs = TokenCosts(128)
    costs.record(64, 0, 2.0)  # the first step of an engine warms it up
    costs.record(64, 0, 0.05)
    costs.record(64, 0, 0.05)
    assert float(costs.relative(64, 17)) > 6
    for _ in range(3):
        costs.record(64, 192, 0.0575)
    assert float(costs.relative(64, 4)) == pytest.approx(1.15, rel=0.05)
    assert float(costs.relative(64, 17)) < 2.5, "at this slope it takes 1.8"


def test_steps_with_drafts_before_any_without_mislead_nobody() -> None:
    costs = TokenCosts(128)
    for _ in range(3):
        costs.record(64, 800, 0.08)
        assert not costs.knows_plain
    for _ in range(2):
        costs.record(64, 0, 0.05)
    assert costs.knows_plain
    assert costs.plain_seconds(64) == pytest.approx(0.05)
    assert float(costs.relative(64, 13.5)) > 4
    for _ in range(10):
        costs.record(64, 800, 0.08)
    assert float(costs.relative(64, 13.5)) == pytest.approx(1.6, rel=0.1)


def test_a_slower_machine_changes_the_level_only() -> None:
    costs = TokenCosts(48)
    for _ in range(40):
        costs.record(2, 0, 0.1)
        costs.record(2, 14, 0.15)
    before = float(costs.relative(2, 8))
    for _ in range(30):
        costs.record(2, 0, 0.3)
        costs.record(2, 14, 0.45)
    assert float(costs.relative(2, 8)) == pytest.approx(before, rel=0.05)
    assert costs.plain_seconds(2) == pytest.approx(0.3, rel=0.05)


def test_times_that_are_not_measured_fade_back_to_the_prior() -> None:
    costs = TokenCosts(100)
    for _ in range(20):
        costs.record(1, 0, 0.1)
        costs.record(1, 15, 0.9)
    assert float(costs.relative(1, 16)) > 5
    for _ in range(2000):
        costs.record(1, 0, 0.1)
    assert float(costs.relative(1, 16)) == pytest.approx(1.15, rel=0.05)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3000), st.floats(0, 1e4)), max_size=40)
)
def test_ratios_stay_sane_whatever_is_recorded(steps: list[tuple[int, int, float]]) -> None:
    costs = TokenCosts(48)
    for num_requests, num_nodes, seconds in steps:
        costs.record(num_requests, num_nodes, seconds)
    for num_requests in (1, 7, 300):
        ratios = costs.relative(num_requests, [1, 1.5, 2, 3, 17, 4000])
        assert ratios[0] == pytest.approx(1.0)
        assert np.isfinite(ratios).all() and (np.diff(ratios) >= -1e-9).all()


def test_a_budget_takes_them() -> None:
    from freedraft.drafters import CandidateTree

    chain = CandidateTree.from_chain(list(range(8)), np.full(8, 0.6))
    kept = []
    for double in (1000, 0.5):
        budget = PooledBudget(TokenCosts(double), BudgetConfig(margin=0.0))
        for _ in range(2):  # what drafts cost can't be known before
            assert budget.cut(["a"], [chain])[0].num_nodes == 0
            budget.record_step(1, 0, 0.1)
        kept.append(budget.cut(["a"], [chain])[0].num_nodes)
    assert kept[0] > 0 and kept[1] == 0


def test_an_engine_whose_steps_cannot_be_timed_has_drafts_all_the_same() -> None:
    from freedraft.drafters import CandidateTree

    chain = CandidateTree.from_chain(list(range(8)), np.full(8, 0.6))
    budget = PooledBudget(TokenCosts(128))
    kept = [budget.cut(["a"], [chain])[0].num_nodes > 0 for _ in range(20)]
    assert kept == [False] * 16 + [True] * 4
    kept = []
    for _ in range(4):  # and none until it is known what they cost once its steps are timed
        kept.append(budget.cut(["a"], [chain])[0].num_nodes)
        budget.record_step(1, kept[-1], 0.1)
    assert kept[0] > 0 and kept[1:3] == [0, 0] and kept[3] > 0


@pytest.mark.parametrize(
    "arguments", [(0, 0.25, 0.01), (math.nan, 0.25, 0.01), (48, 0, 0.01), (48, 1.5, 0), (48, 1, 1)]
)
def test_bad_numbers_are_refused(arguments: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"expected tokens_that_double > 0, rate in"):
        TokenCosts(*arguments)
