"""Calibration on line: makes predicted path probabilities agree with what the target accepts.

A drafter sorts its proposals into a few classes (by match length, say). Each class has a map from
predicted to seen probability: piecewise linear between equally spaced knots, and never falling, so
that it keeps the order of the nodes and a child below its parent. The map is the identity plus the
mean residual (outcome less prediction) around each knot, drawn to a prior while little was seen,
and old outcomes fade, so that it follows the traffic.

Source: the isotonic step is the pool-adjacent-violators algorithm (Ayer et al., 1955); expected
calibration error as in Naeini et al. (AAAI 2015).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import _calibration_kernels as kernels

DoubleArray = npt.NDArray[np.float64]


class Calibration:
    """One monotone map from predicted to seen probability for each class of proposals.

    Attributes:
        counts: ``(num_classes, num_knots, 2)`` float64, for each knot the uses and the summed
            residuals. A kernel may add to it in place of :meth:`add`.
        knots: ``(num_classes, num_knots)`` float64, the maps' values at equally spaced points from
            0 to 1. A kernel may read it in place of :meth:`apply`.
    """

    def __init__(
        self,
        num_classes: int,
        num_knots: int = 17,
        *,
        prior: npt.ArrayLike | None = None,
        prior_weight: float = 64.0,
        window: float = 2048.0,
    ) -> None:
        """Begin with the prior's maps.

        Args:
            num_classes: classes of proposals.
            num_knots: knots of a map, the two ends included.
            prior: ``(num_classes, num_knots)`` residuals expected at the start; none when absent.
            prior_weight: how many outcomes the prior is worth.
            window: outcomes at a knot from which on the older ones are halved.

        Raises:
            ValueError: a number is out of its range, or the prior has another shape.
        """
        if num_classes < 1 or num_knots < 2:
            raise ValueError(
                f"expected num_classes >= 1 and num_knots >= 2, got {num_classes} and {num_knots}"
            )
        if prior_weight <= 0 or window <= 0:
            raise ValueError(
                f"expected prior_weight > 0 and window > 0, got {prior_weight} and {window}"
            )
        shape = (num_classes, num_knots)
        self._prior = np.zeros(shape) if prior is None else np.array(prior, np.float64)
        if self._prior.shape != shape:
            raise ValueError(f"expected a prior of shape {shape}, got {self._prior.shape}")
        kernels.compile_kernels()
        self._prior_weight = float(prior_weight)
        self._window = float(window)
        self.counts: DoubleArray = np.zeros((*shape, 2))
        self.knots: DoubleArray = np.empty(shape)
        self.refit()

    def add(self, group: int, predicted: npt.ArrayLike, accepted: npt.ArrayLike) -> None:
        """Count outcomes; they show in the map after the next :meth:`refit`.

        Args:
            group: the class of the proposal.
            predicted: ``(n,)`` probabilities before calibration.
            accepted: ``(n,)`` whether the target emitted each.
        """
        probs = np.asarray(predicted, np.float64)
        residuals = np.asarray(accepted, np.float64) - probs
        scaled = probs * (self.knots.shape[1] - 1)
        knot = np.minimum(scaled.astype(np.int64), self.knots.shape[1] - 2)
        part = scaled - knot
        for at, share in ((knot, 1.0 - part), (knot + 1, part)):
            np.add.at(self.counts[group, :, 0], at, share)
            np.add.at(self.counts[group, :, 1], at, share * residuals)

    def refit(self) -> None:
        """Bring the maps up to date with the counts, and let old counts fade."""
        kernels.refit(self.counts, self._prior, self._prior_weight, self._window, self.knots)

    def apply(self, group: int, predicted: npt.ArrayLike) -> DoubleArray:
        """Return the calibrated probabilities of a class's predictions."""
        points = np.linspace(0, 1, self.knots.shape[1])
        probs: DoubleArray = np.interp(np.asarray(predicted), points, self.knots[group])
        return probs


def expected_calibration_error(
    predicted: npt.ArrayLike, accepted: npt.ArrayLike, num_bins: int = 10
) -> float:
    """Return the mean gap between predicted and seen probability over equally wide bins.

    Each bin counts by its share of the predictions; 0 when there are none.

    Args:
        predicted: ``(n,)`` probabilities.
        accepted: ``(n,)`` whether the target emitted each.
        num_bins: bins between 0 and 1.
    """
    probs = np.asarray(predicted, np.float64)
    if probs.size == 0:
        return 0.0
    bins = np.minimum((probs * num_bins).astype(np.int64), num_bins - 1)
    gaps = np.bincount(bins, probs - np.asarray(accepted, np.float64), num_bins)
    return float(np.abs(gaps).sum() / probs.size)
