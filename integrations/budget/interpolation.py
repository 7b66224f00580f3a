"""Values known at a few places, read in straight lines between them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray64 = npt.NDArray[np.float64]


def extended(wanted: FloatArray64, places: FloatArray64, values: FloatArray64) -> FloatArray64:
    """Return the values at other places, and on along the last line behind the last one.

    Args:
        wanted: any shape.
        places: ``(num_known,)``, growing, at least two.
        values: ``(num_known,)``.
    """
    slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
    beyond = slope * np.maximum(wanted - places[-1], 0)
    return np.asarray(np.interp(wanted, places, values) + beyond)


def shares(wanted: float, places: FloatArray64) -> FloatArray64:
    """Return ``(num_known,)``: the share of each known place in another; they add up to 1."""
    weights = np.zeros(places.size)
    position = float(np.interp(wanted, places, np.arange(places.size)))
    low = int(position)
    weights[low] = 1 - (position - low)
    if low + 1 < places.size:
        weights[low + 1] = position - low
    return weights
