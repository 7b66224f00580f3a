"""How many nodes to verify: as many as the expected tokens pay for at the measured step times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..drafters import CandidateTree

FloatArray64 = npt.NDArray[np.float64]

# Columns of one row (root and nodes) at which step times are told apart; between them the time is
# interpolated linearly.
_KNOTS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256], np.float64)

# t(width) / t(1) before anything is measured: a small model on a CPU with stock transformers in
# fp32 (shared cost table of the design: 1.8 at 2, 1.9 at 16, 2.5 at 32, 3.9 at 64).
_PRIOR = np.array([1.0, 1.6, 1.65, 1.7, 1.9, 2.5, 3.9, 7.5, 15.0])


class StepCosts:
    """Step times by width, learned while decoding.

    Times are kept relative to a running level, so that they stay comparable while the context
    grows. What was measured long ago fades back to the prior: a width that was given up because of
    one slow step is tried again.
    """

    def __init__(
        self, prior: npt.ArrayLike = _PRIOR, rate: float = 0.25, recovery: float = 0.01
    ) -> None:
        """Set the starting point.

        Args:
            prior: ``(9,)`` expected t(width) / t(1) at widths 1, 2, 4, ..., 256, increasing.
            rate: weight of a new measurement against the old ones, in (0, 1].
            recovery: share by which each step's unmeasured widths move back to the prior.
        """
        self._prior = np.log(np.asarray(prior, np.float64))
        self._log_ratio = self._prior.copy()
        self._rate = rate
        self._recovery = recovery
        self._level: float | None = None  # log of the seconds that a width of 1 takes

    def record(self, width: int, seconds: float) -> None:
        """Take in one step's time.

        Args:
            width: columns of the step, root included, at least 1.
            seconds: wall time of draft, forward and walk.
        """
        measured = np.log(max(seconds, 1e-9))
        if self._level is None:
            self._level = measured - self._log_ratio_at(width)
        error = measured - self._level - self._log_ratio_at(width)
        error = float(np.clip(error, -0.7, 0.7))  # one descheduled step must not tip the balance
        weights = _interpolation_weights(width)
        idle = weights == 0
        self._log_ratio += self._rate * error * weights
        self._log_ratio[idle] += self._recovery * (self._prior - self._log_ratio)[idle]
        # A ratio is anchored at width 1: what was learned there moves the level instead.
        self._level += self._log_ratio[0]
        self._log_ratio -= self._log_ratio[0]

    def relative(self, max_width: int) -> FloatArray64:
        """Return ``(max_width,)``: t(width) / t(1) for widths 1 to ``max_width``, never falling."""
        ratio = np.maximum.accumulate(np.exp(self._log_ratio))
        return np.asarray(np.interp(np.arange(1, max_width + 1), _KNOTS, ratio))

    def _log_ratio_at(self, width: int) -> float:
        return float(_interpolation_weights(width) @ self._log_ratio)


def _interpolation_weights(width: int) -> FloatArray64:
    weights = np.zeros(_KNOTS.size)
    position = float(np.interp(width, _KNOTS, np.arange(_KNOTS.size)))
    low = int(position)
    weights[low] = 1 - (position - low)
    if low + 1 < _KNOTS.size:
        weights[low + 1] = position - low
    return weights


def choose_num_nodes(probs: npt.ArrayLike, num_requests: int, costs: npt.ArrayLike) -> int:
    """Return how many of the most probable nodes maximise tokens per unit of time.

    The expected tokens of a step are one a request plus the sum of the path probabilities of the
    verified nodes.

    Args:
        probs: ``(num_nodes,)`` path probabilities of all requests' nodes, in any order.
        num_requests: requests in the step, at least 1.
        costs: ``(num_nodes + 1,)`` time of a step with that many nodes, in any unit.

    Returns:
        A count from 0 to ``num_nodes``; the smallest of those that are equally good.
    """
    ordered = np.sort(np.asarray(probs, np.float64))[::-1]
    tokens = num_requests + np.concatenate([[0.0], np.cumsum(ordered)])
    return int(np.argmax(tokens / np.asarray(costs, np.float64)))


class NodeBudget:
    """Cuts the trees of a step to what pays, for rows that are padded to one width.

    Holds the measured step times and, for each row, how the drafter's probabilities compare with
    what was accepted, both with recovery: no row is switched off for good.
    """

    def __init__(self, costs: StepCosts | None = None, memory: float = 30.0) -> None:
        """Start without measurements.

        Args:
            costs: step times; fresh ones by default.
            memory: expected accepted tokens over which a row's correction is averaged.
        """
        self.costs = StepCosts() if costs is None else costs
        self._memory = memory
        self._accepted: dict[int, float] = {}
        self._expected: dict[int, float] = {}

    def cut(self, rows: Sequence[int], trees: Sequence[CandidateTree]) -> list[CandidateTree]:
        """Return the trees, each cut to the number of nodes that pays for all rows together.

        The rows' batch is padded to its widest tree, so one count is chosen for all: what the
        rows' trees of that size are expected to bring, together, against the time of that width.

        Args:
            rows: the request of each tree, as in :meth:`record`.
            trees: one a row.
        """
        widest = max(tree.num_nodes for tree in trees)
        if widest == 0:
            return list(trees)
        gains = np.zeros(widest)
        for row, tree in zip(rows, trees, strict=True):
            ordered = np.sort(tree.probs.astype(np.float64))[::-1]
            gains[: ordered.size] += self.correction(row) * ordered
        num_nodes = choose_num_nodes(gains, len(rows), self.costs.relative(widest + 1))
        # Dropping sampled nodes because of what was sampled would bias the output.
        return [tree if tree.draft_probs is not None else tree.cut(num_nodes) for tree in trees]

    def record(self, row: int, tree: CandidateTree, num_accepted: int) -> None:
        """Compare what a verified tree promised with what the target accepted.

        Args:
            row: the request.
            tree: what was verified.
            num_accepted: accepted nodes.
        """
        promised = float(tree.probs.sum())
        fade = max(0.0, 1 - promised / self._memory)
        self._expected[row] = self._expected.get(row, 0.0) * fade + promised
        self._accepted[row] = self._accepted.get(row, 0.0) * fade + num_accepted
        if promised == 0:  # nothing tried: move back towards trust, slowly
            self._expected[row] *= 0.995
            self._accepted[row] *= 0.995

    def correction(self, row: int) -> float:
        """Return the factor on a row's path probabilities, 1 while nothing is known."""
        prior = 4.0
        accepted = self._accepted.get(row, 0.0) + prior
        return min(accepted / (self._expected.get(row, 0.0) + prior), 1.5)
