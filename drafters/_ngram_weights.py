"""Weights of the n-gram drafter's votes: the tables, and how the kernels index them.

Each table holds logarithms of factors; a place's weight is the product of its factors, and so is
the weight of "none of the places". They were fitted by maximum likelihood (``benchmarks/
fit_ngram.py``) to which tokens followed, on the first two thirds of each replay trace.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

KINDS, NEARS, REGIONS, RANKS, DEPTH_CLASSES = 3, 4, 4, 5, 5
"""Kinds of place (plain, replaced, inserted); classes of a match that goes on behind a change;
where a place lies (another request's prompt or output, the own prompt or output); classes of the
rank within a level; classes of the depth in the tree."""

AGES, DISTANCES, WIDTHS, RECENTS = 12, 14, 7, 25
"""Classes of the place's age, of its distance from the expected place, of the number of tokens
voted for, and of the last two accepted lengths."""

LENGTHS = 65
"""Match lengths 0 to 64; longer ones count as 64."""

VOTE = 0  # (KINDS, NEARS, LENGTHS)
RANK = VOTE + KINDS * NEARS * LENGTHS  # (REGIONS, RANKS, KINDS)
DEPTHS = RANK + REGIONS * RANKS * KINDS  # (KINDS, DEPTH_CLASSES)
AGE = DEPTHS + KINDS * DEPTH_CLASSES  # (REGIONS, AGES)
DISTANCE = AGE + REGIONS * AGES  # (DISTANCES,)
ESCAPE = DISTANCE + DISTANCES  # (DEPTH_CLASSES, LENGTHS)
WIDTH = ESCAPE + DEPTH_CLASSES * LENGTHS  # (WIDTHS,)
RECENT = WIDTH + WIDTHS  # (RECENTS,)
NUM_WEIGHTS = RECENT + RECENTS
"""Where each table starts in the model, and its shape."""

_LENGTH_STOPS = (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 32, 48, 65)
"""The classes of match lengths that were fitted: each ends before the next stop."""

# fmt: off
_VOTE = (  # (KINDS, NEARS, length classes)
    -1.39, -0.28, 1.16, 1.76, 2.10, 2.80, 2.80, 3.29, 3.68, 4.20, 4.99, 5.14, 5.53, 8.01, -1.39,
    0.49, 1.66, 1.91, 2.29, 2.79, 2.92, 3.25, 3.52, 3.87, 4.44, 6.52, 7.38, 8.19, -1.39, 1.98,
    2.38, 2.40, 2.56, 2.81, 3.09, 3.38, 3.86, 3.62, 4.36, 6.46, 7.38, 8.19, -1.39, 1.90, 3.50,
    2.86, 2.95, 3.82, 3.42, 3.73, 3.63, 4.47, 3.80, 5.14, 7.38, 8.19, -7.39, -6.00, -2.26, -1.94,
    -1.81, -1.44, -1.31, -1.57, -1.11, -1.40, -1.05, -1.64, -1.44, -0.80, -7.39, -6.00, -4.61,
    -3.80, -3.23, -2.78, -2.42, -1.97, -1.30, -0.65, -0.01, 0.66, 1.38, 2.19, -7.39, -6.00, -4.61,
    -3.80, -3.23, -2.78, -2.42, -1.97, -1.30, -0.65, -0.01, 0.66, 1.38, 2.19, -7.39, -6.00, -4.61,
    -3.80, -3.23, -2.78, -2.42, -1.97, -1.30, -0.65, -0.01, 0.66, 1.38, 2.19, -7.39, -6.00, -1.65,
    -1.13, -1.02, -1.20, -1.24, -1.63, -1.17, -1.40, -1.53, -1.33, -1.46, -1.20, -7.39, -6.00,
    -4.61, -3.80, -3.23, -2.78, -2.42, -1.97, -1.30, -0.65, -0.01, 0.66, 1.38, 2.19, -7.39, -6.00,
    -4.61, -3.80, -3.23, -2.78, -2.42, -1.97, -1.30, -0.65, -0.01, 0.66, 1.38, 2.19, -7.39, -6.00,
    -4.61, -3.80, -3.23, -2.78, -2.42, -1.97, -1.30, -0.65, -0.01, 0.66, 1.38, 2.19,
)
# fmt: on
# fmt: off
_RANK = (  # (REGIONS, RANKS, KINDS)
    -0.11, 0.85, 0.94, -0.78, -0.22, -0.15, -0.64, 0.78, 0.24, -1.42, 0.54, 1.01, -1.02, 1.02,
    -0.30, -0.02, 1.14, 0.58, -0.48, 1.10, 0.25, -0.56, 0.58, -0.01, -0.71, 0.36, 0.12, -0.80,
    -0.32, -0.70, 0.93, 1.29, 1.88, 0.48, 0.89, 1.22, 0.32, 0.24, 0.28, 0.05, -0.92, 0.53, -0.03,
    -0.43, 0.96, 0.40, 1.60, 1.13, 0.16, 1.07, 0.57, -0.03, 0.67, 0.19, -0.24, 0.69, 0.46, -0.39,
    0.81, -0.98,
)
# fmt: on
# fmt: off
_DEPTH = (  # (KINDS, DEPTH_CLASSES)
    0.11, -0.64, -0.81, -1.00, -1.10, 0.20, 1.37, 1.19, 1.02, 0.86, -1.88, 0.65, 1.20, 1.52, 1.64,
)
# fmt: on
# fmt: off
_AGE = (  # (REGIONS, AGES)
    0.00, 0.00, 0.00, 0.00, -0.65, -1.49, -0.80, -0.90, -0.89, -1.07, -1.20, -0.82, 0.00, 0.00,
    -0.07, -1.00, -0.72, -0.71, -0.49, -0.57, -0.60, -0.58, -0.59, -0.59, -1.06, -0.33, 0.08,
    -0.45, -0.11, -0.01, 0.24, 0.37, -0.18, -0.07, 0.56, 0.45, -0.41, -0.02, 0.00, 0.06, 0.05,
    -0.03, -0.08, -0.22, -0.28, -0.54, -0.65, 0.00,
)
# fmt: on
# fmt: off
_DISTANCE = (  # (DISTANCES,)
    -0.18, 0.10, -0.02, 0.32, 0.42, 0.61, 0.58, 0.14, -0.29, -0.26, -1.07, -0.46, -0.30, -0.39,
)
# fmt: on
# fmt: off
_ESCAPE = (  # (DEPTH_CLASSES, length classes)
    0.40, -0.03, -0.04, -0.16, 0.00, 0.36, 0.20, 1.11, 0.66, 1.08, 0.59, 1.52, 1.17, 1.10, 0.63,
    0.00, 0.27, 0.31, 0.25, 0.36, 0.42, 0.52, 1.16, 1.36, 1.25, 0.03, 1.70, 1.31, -0.21, 0.00,
    0.00, 0.33, 0.46, 0.70, 0.98, 1.00, 1.37, 1.31, 1.54, 2.10, 1.82, 2.19, -0.63, 0.00, 0.00,
    0.00, 0.00, 0.64, 0.66, 0.68, 1.00, 1.59, 1.50, 1.90, 1.82, 2.34, -1.05, 0.00, 0.00, 0.00,
    0.00, 0.00, 0.00, 0.00, 0.59, 0.99, 1.27, 1.96, 1.91, 2.27,
)
# fmt: on
# fmt: off
_WIDTH = (  # (WIDTHS,)
    0.00, -0.49, 0.43, 0.63, 0.78, 0.86, 1.27,
)
# fmt: on
# fmt: off
_RECENT = (  # (RECENTS,)
    0.55, 0.40, 0.22, 0.02, -0.08, 0.33, 0.22, 0.20, 0.02, -0.44, 0.29, 0.24, 0.32, 0.02, 0.09,
    0.17, 0.17, 0.14, -0.12, -0.01, 0.59, 0.11, 0.41, 0.34, 0.44,
)
# fmt: on


def make_model() -> npt.NDArray[np.float64]:
    """Return the ``(NUM_WEIGHTS,)`` factors that the kernels read."""
    widths = np.diff((0, *_LENGTH_STOPS))
    vote = np.array(_VOTE).reshape(KINDS * NEARS, len(widths))
    escape = np.array(_ESCAPE).reshape(DEPTH_CLASSES, len(widths))
    tables = (
        np.repeat(vote, widths, axis=1).ravel(),
        _RANK,
        _DEPTH,
        _AGE,
        _DISTANCE,
        np.repeat(escape, widths, axis=1).ravel(),
        _WIDTH,
        _RECENT,
    )
    return np.exp(np.concatenate(tables))
