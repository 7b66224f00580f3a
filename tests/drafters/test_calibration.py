"""The calibration: monotone maps that follow what was seen."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.drafters.calibration import Calibration, expected_calibration_error

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
OUTCOMES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=200)


def test_begins_as_the_identity_or_the_prior() -> None:
    probs = np.linspace(0, 1, 41)
    assert Calibration(2).apply(1, probs) == pytest.approx(probs)
    tilted = Calibration(1, 3, prior=[[0.1, 0.0, -0.2]])
    assert tilted.knots.tolist() == [[0.1, 0.5, 0.8]]


def test_learns_each_class_apart() -> None:
    calibration = Calibration(2, prior_weight=1.0)
    calibration.add(0, np.full(500, 0.9), np.arange(500) % 2 == 0)
    calibration.refit()
    assert calibration.apply(0, [0.9])[0] == pytest.approx(0.5, abs=0.02)
    assert calibration.apply(1, [0.9])[0] == pytest.approx(0.9)


def test_makes_overconfident_predictions_honest() -> None:
    random = np.random.default_rng(0)
    predicted = random.random(20_000)
    accepted = random.random(20_000) < predicted**2
    calibration = Calibration(1)
    first, last = slice(0, 10_000), slice(10_000, None)
    for start in range(0, 10_000, 500):
        calibration.add(0, predicted[start : start + 500], accepted[start : start + 500])
        calibration.refit()
    assert expected_calibration_error(predicted[first], accepted[first]) > 0.1
    honest = calibration.apply(0, predicted[last])
    assert expected_calibration_error(honest, accepted[last]) < 0.04


def test_old_outcomes_fade() -> None:
    calibration = Calibration(1, 2, window=100.0, prior_weight=1.0)
    for _ in range(50):
        calibration.add(0, np.ones(50), np.zeros(50))
        calibration.refit()
    assert calibration.apply(0, [1.0])[0] < 0.1
    assert calibration.counts[0, 1, 0] <= 150
    for _ in range(10):
        calibration.add(0, np.ones(50), np.ones(50))
        calibration.refit()
    assert calibration.apply(0, [1.0])[0] > 0.9


def pooled(values: list[float], sizes: list[float]) -> list[float]:
    """The monotone fit by its min-max formula: slow and plain."""

    def mean(start: int, stop: int) -> float:
        return float(np.average(values[start:stop], weights=sizes[start:stop]))

    num = len(values)
    return [
        max(min(mean(start, stop) for stop in range(i + 1, num + 1)) for start in range(i + 1))
        for i in range(num)
    ]


@settings(max_examples=150 if COMPILED else 30, deadline=None)
@given(outcomes=OUTCOMES, num_knots=st.integers(2, 9))
def test_maps_are_the_monotone_fit(outcomes: list[tuple[float, bool]], num_knots: int) -> None:
    calibration = Calibration(1, num_knots, prior_weight=2.0)
    sizes = [2.0] * num_knots
    residuals = [0.0] * num_knots
    for prob, accepted in outcomes:
        for knot in range(num_knots):
            share = max(0.0, 1 - abs(prob * (num_knots - 1) - knot))
            sizes[knot] += share
            residuals[knot] += share * (accepted - prob)
    if outcomes:
        calibration.add(0, [p for p, _ in outcomes], [a for _, a in outcomes])
    calibration.refit()
    values = [k / (num_knots - 1) + residuals[k] / sizes[k] for k in range(num_knots)]
    expected = np.clip(pooled(values, sizes), 0, 1)
    assert calibration.knots[0] == pytest.approx(expected, abs=1e-9)
    assert (np.diff(calibration.knots[0]) >= 0).all()


def test_error_weighs_bins_by_their_share() -> None:
    assert expected_calibration_error([], []) == 0.0
    assert expected_calibration_error([1.0, 1.0], [True, True]) == 0.0
    predicted = [0.05, 0.05, 0.95, 0.95]
    assert expected_calibration_error(predicted, [0, 0, 1, 0]) == pytest.approx(
        0.5 * 0.05 + 0.5 * 0.45
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "expected num_classes >= 1"),
        ({"num_classes": 1, "num_knots": 1}, "num_knots >= 2, got 1 and 1"),
        ({"num_classes": 1, "prior_weight": 0.0}, "expected prior_weight > 0"),
        ({"num_classes": 1, "window": -1.0}, "window > 0, got 64.0 and -1.0"),
        ({"num_classes": 2, "prior": [[0.0]]}, r"prior of shape \(2, 17\), got \(1, 1\)"),
    ],
)
def test_refuses(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Calibration(**arguments)  # type: ignore[arg-type]
