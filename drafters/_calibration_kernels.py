"""Kernel of the calibration: from counts to a monotone map."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._jit import compile_once, kernel

FloatArray = npt.NDArray[np.float64]


@kernel
def refit(
    counts: FloatArray, prior: FloatArray, prior_weight: float, window: float, knots: FloatArray
) -> None:
    """Fit every class's map to its counts, and halve the counts that are full.

    The value at a knot is its position plus the mean residual there, drawn to the prior; then
    neighbours that fall are pooled until the map never falls (pool adjacent violators).

    Args:
        counts: ``(num_classes, num_knots, 2)`` float64: uses and summed residuals, mutated.
        prior: ``(num_classes, num_knots)`` float64, residuals expected before anything was seen.
        prior_weight: how many uses the prior is worth.
        window: uses of a knot from which on its counts are halved.
        knots: ``(num_classes, num_knots)`` float64, overwritten with values in [0, 1].
    """
    num_knots = knots.shape[1]
    values = np.empty(num_knots, np.float64)
    sizes = np.empty(num_knots, np.float64)
    starts = np.empty(num_knots, np.int64)
    for group in range(knots.shape[0]):
        blocks = 0
        for knot in range(num_knots):
            size = counts[group, knot, 0] + prior_weight
            residual = counts[group, knot, 1] + prior_weight * prior[group, knot]
            value = knot / (num_knots - 1) + residual / size
            starts[blocks] = knot
            while blocks > 0 and values[blocks - 1] >= value:
                blocks -= 1
                total = sizes[blocks] + size
                value = (values[blocks] * sizes[blocks] + value * size) / total
                size = total
            values[blocks] = value
            sizes[blocks] = size
            blocks += 1
            if counts[group, knot, 0] > window:
                counts[group, knot, 0] *= 0.5
                counts[group, knot, 1] *= 0.5
        for block in range(blocks):
            stop = int(starts[block + 1]) if block + 1 < blocks else num_knots
            for knot in range(int(starts[block]), stop):
                knots[group, knot] = min(max(values[block], 0.0), 1.0)


def compile_kernels() -> None:
    """Compile the kernel that Python calls, for its one signature."""
    compile_once(
        refit,
        "void(float64[:,:,::1], float64[:,::1], float64, float64, float64[:,::1])",
    )
