"""What a step takes off the time of a padded batch, which ends with its last row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray64 = npt.NDArray[np.float64]


def step_values(
    grown: npt.ArrayLike,
    num_left: npt.ArrayLike,
    row_costs: npt.ArrayLike,
    change_rates: npt.ArrayLike,
) -> FloatArray64:
    """Return what steps save of the rest of a batch, in plain steps of all its rows.

    A batch that only shrinks takes ``sum over j of (row_costs[j] - row_costs[j - 1]) * L_j``, where
    ``L_j`` is what the row with the j-th most tokens left has left. So were nothing else to change,
    a row that runs ahead would save no more than what it costs beside the others. But a row may end
    by itself, and drafts may bring it ahead at another time. Of a row with r tokens left, neither
    will happen with the probability exp(-change_rate * r). Where at least j rows stay as they are,
    the j-th last is the one that it seems; where fewer do, it may be any, and all growth counts
    alike.

    Args:
        grown: ``(num_rows, ...)`` tokens that each row emits in each of the steps to compare.
        num_left: ``(num_rows,)`` tokens that each row may still emit.
        row_costs: ``(num_rows,)`` time of a plain step of 1 to all rows, in any unit.
        change_rates: ``(num_rows,)`` how often each row ends by itself or is offered drafts that
            would bring it ahead, a step.

    Returns:
        The values, of the shape of ``grown`` without its first axis.
    """
    growth = np.asarray(grown, np.float64)
    left = np.asarray(num_left, np.float64)
    times = np.asarray(row_costs, np.float64)
    shares = np.diff(times, prepend=0.0) / times[-1]
    known = shares * _at_least(np.exp(-np.asarray(change_rates, np.float64) * left))
    behind = (slice(None), *[None] * (growth.ndim - 1))
    left_after = np.sort(left[behind] - growth, axis=0)
    saved = (np.sort(left)[behind] - left_after)[::-1]  # of the last row first
    return np.asarray(np.tensordot(known, saved, 1) + (1 - known.sum()) * growth.mean(0))


def _at_least(probs: FloatArray64) -> FloatArray64:
    """Return ``(n,)``: the probability that at least 1 to n of independent events happen."""
    exactly = np.ones(1)
    for prob in probs.tolist():
        exactly = np.convolve(exactly, (1 - prob, prob))
    return np.asarray(exactly[::-1].cumsum()[::-1][1:])
