from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.workbench.formulas import (
    amdahl_speedup,
    break_even_acceptance,
    experts_read,
    moe_growth,
    predicted_speedup,
    tokens_per_chain,
    tokens_per_tree,
    wall_speedup,
)


def test_worked_numbers() -> None:
    assert tokens_per_chain(0.7, 3) == pytest.approx(2.533)
    assert tokens_per_chain(1.0, 3) == 4
    assert tokens_per_chain(0.0, 3) == 1
    assert wall_speedup(0.7, 3, 0.05) == pytest.approx(2.2026, abs=1e-4)
    assert wall_speedup(0.7, 3, 0.0) == tokens_per_chain(0.7, 3)
    assert tokens_per_tree([0.5, 0.25, 0.25]) == 2.0
    assert predicted_speedup(2.5, 0.030, 0.020, 0.001) == pytest.approx(50 / 31)
    assert break_even_acceptance(1.3, 0.05) == pytest.approx(0.35)
    assert amdahl_speedup(0.5, math.inf) == 2
    assert amdahl_speedup(0.8, 4) == pytest.approx(2.5)
    assert amdahl_speedup(1.0, math.inf) == math.inf
    assert moe_growth(8, 2, [1, 4], 0.0) == pytest.approx([1, 8 * (1 - 0.75**4) / 2])
    assert moe_growth(8, 2, [4], 1.0) == [1.0]


@given(st.floats(0, 0.999), st.integers(0, 12))
def test_the_chain_is_its_closed_form_and_a_tree(acceptance: float, num_drafted: int) -> None:
    expected = (1 - acceptance ** (num_drafted + 1)) / (1 - acceptance)
    assert tokens_per_chain(acceptance, num_drafted) == pytest.approx(expected)
    path = [acceptance**depth for depth in range(1, num_drafted + 1)]
    assert tokens_per_tree(path) == pytest.approx(expected)


def test_the_chain_is_what_drawing_gives() -> None:
    generator = np.random.default_rng(3)
    accepted = generator.random((200_000, 3)) < 0.7
    emitted = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
    assert emitted.mean() == pytest.approx(tokens_per_chain(0.7, 3), abs=0.01)


def test_experts_are_what_drawing_gives() -> None:
    generator = np.random.default_rng(5)
    chosen = np.argsort(generator.random((20_000, 6, 8)), axis=-1)[..., :2]
    distinct = np.mean([np.unique(step).size for step in chosen.reshape(20_000, 12)])
    assert distinct == pytest.approx(float(experts_read(8, 2, 6)), abs=0.02)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tokens_per_chain(1.2, 3),
        lambda: tokens_per_chain(0.5, -1),
        lambda: wall_speedup(0.5, 3, -0.1),
        lambda: tokens_per_tree([1.5]),
        lambda: predicted_speedup(0.5, 1, 1),
        lambda: predicted_speedup(2, 0, 1),
        lambda: break_even_acceptance(0.9),
        lambda: amdahl_speedup(1.2, 2),
        lambda: amdahl_speedup(0.5, 0),
        lambda: moe_growth(8, 2, [1], 1.5),
    ],
)
def test_numbers_out_of_range_are_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"expected .* got"):
        call()
