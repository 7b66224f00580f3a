"""Whose tokens count how much, and when a batch is taken to shrink."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.integrations.budget.row_weights import Arrivals, row_weights

LEFT = st.lists(st.integers(0, 10_000), min_size=1, max_size=12)


def linear(num_rows: int, fixed: float = 30.0, a_row: float = 0.5) -> list[float]:
    return [fixed + a_row * rows for rows in range(1, num_rows + 1)]


@given(LEFT, st.floats(0, 1))
def test_weights_are_one_on_average_and_grow_with_what_is_left(
    left: list[int], closed: float
) -> None:
    weights = row_weights(left, linear(len(left)), closed)
    assert weights.mean() == pytest.approx(1)
    order = np.argsort(left)
    assert (np.diff(weights[order]) >= -1e-12).all()


@pytest.mark.parametrize(("left", "closed"), [([50] * 4, 0.75), ([5, 90, 7, 1], 0.0), ([3], 1.0)])
def test_all_count_alike_where_nothing_tells_them_apart(left: list[int], closed: float) -> None:
    assert row_weights(left, linear(len(left)), closed) == pytest.approx(np.ones(len(left)))


def test_the_last_row_saves_what_a_step_costs_without_it() -> None:
    weights = row_weights([10, 500, 20], linear(3), 1.0)
    # of a step of three, 30 / 31.5 would be saved with the last one, and 0.5 / 31.5 with each
    assert weights / 3 * 31.5 == pytest.approx([0.5, 30.5, 0.5])


def test_rows_within_one_draft_share_the_last_one_s_weight() -> None:
    near = row_weights([100, 97], linear(2), 1.0)
    far = row_weights([100, 20], linear(2), 1.0)
    assert near[1] > 0.8 > 0.1 > far[1]


def run_closed(arrivals: Arrivals, number: int, names: str) -> None:
    for name in names:
        for _ in range(4):  # prompts come in one after the other
            arrivals.step([f"{other}{number}" for other in names[: names.index(name) + 1]])
    for _ in range(60):
        arrivals.step([f"{name}{number}" for name in names])
    for name in names:
        arrivals.end(f"{name}{number}")


def test_batches_that_end_together_are_found_out() -> None:
    arrivals = Arrivals()
    assert arrivals.closed == 0.0
    run_closed(arrivals, 0, "abcdefgh")
    after_one = arrivals.closed
    run_closed(arrivals, 1, "abcdefgh")
    assert 0.5 < after_one < arrivals.closed <= 0.75


def test_places_that_others_take_keep_the_batch_open() -> None:
    arrivals = Arrivals()
    running = list(range(8))
    for step in range(2000):
        arrivals.step(running)
        if step % 12 == 11:
            arrivals.end(running.pop(0))
            running.append(100 + step)
    assert arrivals.closed < 0.05
    for request_id in running:
        arrivals.end(request_id)
    for number in range(12):
        run_closed(arrivals, number, "abcdefgh")
    assert arrivals.closed > 0.5, "nothing is believed for good"


def test_an_unknown_end_is_ignored() -> None:
    arrivals = Arrivals()
    arrivals.end("never seen")
    assert arrivals.closed == 0.0
