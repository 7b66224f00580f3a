"""The closest values that never fall: how measured times are made to make sense."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray64 = npt.NDArray[np.float64]


def isotonic(values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> FloatArray64:
    """Return the sequence without a fall that is closest in weighted least squares.

    Args:
        values: ``(n,)`` numbers.
        weights: ``(n,)`` above 0; equal when absent.

    Source: the pool-adjacent-violators algorithm (Ayer et al., 1955).
    """
    numbers = np.asarray(values, np.float64).tolist()
    shares = [1.0] * len(numbers) if weights is None else np.asarray(weights, np.float64).tolist()
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for number, share in zip(numbers, shares, strict=True):
        block = (number, share, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, weight, length = blocks.pop()
            total = weight + block[1]
            block = ((mean * weight + block[0] * block[1]) / total, total, length + block[2])
        blocks.append(block)
    return np.repeat([mean for mean, _, _ in blocks], [length for _, _, length in blocks])
