"""Weights of the n-gram drafter's votes: the tables, and how the kernels index them.

Each table holds logarithms of factors; a place's weight is the product of its factors, and so is
the weight of "none of the places". They were fitted by maximum likelihood (``benchmarks/
fit_ngram.py``) to which tokens followed, on the first two thirds of each replay trace.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

KINDS, NEARS, REGIONS, RANKS, DEPTH_CLASSES = 3, 4, 4, 6, 5
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
DETOUR = DISTANCE + DISTANCES  # (DISTANCES,)
ESCAPE = DETOUR + DISTANCES  # (DEPTH_CLASSES, LENGTHS)
WIDTH = ESCAPE + DEPTH_CLASSES * LENGTHS  # (WIDTHS,)
RECENT = WIDTH + WIDTHS  # (RECENTS,)
NUM_WEIGHTS = RECENT + RECENTS
"""Where each table starts in the model, and its shape."""

LENGTH_STOPS = (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 32, 48, 65)
"""The classes of match lengths that were fitted: each ends before the next stop."""

# fmt: off
_VOTE = (  # (KINDS, NEARS, length classes)
    -1.39, 0.08, 1.32, 2.04, 2.50, 3.00, 3.16, 3.62, 4.06, 4.58, 5.24, 5.29, 5.39, 7.91, -1.39,
    0.80, 1.79, 2.14, 2.66, 3.15, 3.32, 3.53, 3.92, 4.21, 4.91, 6.04, 6.93, 7.74, -1.39, 2.38,
    2.64, 2.74, 3.02, 3.14, 3.33, 3.71, 4.03, 3.94, 4.97, 5.41, 6.93, 7.74, -1.39, 1.94, 3.01,
    3.76, 3.38, 3.49, 3.58, 4.01, 3.90, 4.55, 4.73, 5.71, 6.93, 7.74, -1.39, 0.00, 1.98, 2.16,
    2.28, 2.54, 2.79, 2.68, 3.08, 3.01, 3.01, 2.55, 2.79, 2.64, -1.39, 0.00, 1.39, 2.20, 2.77,
    3.22, 3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22,
    3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58,
    3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 0.85, 1.52, 1.89, 1.81, 2.24, 2.04,
    2.56, 2.57, 2.31, 2.37, 2.60, 2.49, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39,
    5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13,
    5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67,
    6.44, 6.93, 7.74,
)
# fmt: on
# fmt: off
_RANK = (  # (REGIONS, RANKS, KINDS)
    -0.10, -0.35, -0.62, -0.90, -1.07, -1.28, -0.62, -0.78, -1.19, -1.22, -0.91, -1.11, -0.93,
    0.00, 0.00, -1.56, 0.00, 0.00, 0.26, -0.34, -1.15, -0.19, -0.71, -1.46, -0.39, -0.79, -1.53,
    -0.62, -0.79, -1.27, -0.70, 0.00, 0.00, -1.01, 0.00, 0.00, 1.03, -0.41, -0.60, 0.58, -0.72,
    -0.82, 0.43, -1.07, -1.53, 0.16, -1.76, -1.30, 0.09, 0.00, 0.00, -0.66, 0.00, 0.00, 0.55,
    -0.20, -1.13, 0.37, -0.57, -1.55, 0.16, -0.81, -1.77, -0.06, -0.63, -1.36, -0.21, 0.00, 0.00,
    -0.18, 0.00, 0.00,
)
# fmt: on
# fmt: off
_DEPTH = (  # (KINDS, DEPTH_CLASSES)
    0.88, -0.31, -0.63, -0.89, -1.05, -1.01, -0.30, 0.07, 0.00, -0.09, -1.53, 0.56, 1.22, 1.54,
    1.48,
)
# fmt: on
# fmt: off
_AGE = (  # (REGIONS, AGES)
    0.00, 0.00, 0.00, -0.01, -0.41, -1.14, -1.02, -1.15, -0.86, -1.19, -1.09, -0.97, 0.00, 0.00,
    -0.23, -0.78, -0.88, -0.74, -0.65, -0.69, -0.75, -0.79, -0.77, -0.80, -1.50, -0.41, 0.04,
    -0.47, -0.15, -0.13, 0.06, 0.16, -0.34, -0.23, 0.30, 0.18, -0.33, 0.05, 0.04, 0.07, -0.00,
    -0.19, -0.25, -0.37, -0.53, -0.80, -0.46, -0.00,
)
# fmt: on
# fmt: off
_DISTANCE = (  # (DISTANCES,)
    -0.26, -0.26, -0.25, -0.15, 0.22, 0.33, 0.17, -0.21, -0.54, -0.61, -0.65, -0.35, -0.56, -0.52,
)
# fmt: on
# fmt: off
_DETOUR = (  # (DISTANCES,)
    -0.61, -0.52, -0.29, 0.40, 0.20, 0.10, 0.34, 0.12, -0.33, -0.32, -0.20, -1.06, -0.32, -0.37,
)
# fmt: on
# fmt: off
_ESCAPE = (  # (DEPTH_CLASSES, length classes)
    0.67, 0.36, 0.33, 0.41, 0.55, 0.74, 0.73, 1.20, 0.91, 1.38, 1.41, 0.89, 1.35, 1.07, 0.70,
    0.00, 0.07, 0.20, 0.03, 0.38, 0.55, 0.55, 1.06, 0.92, 1.63, 1.38, 1.55, 1.64, 0.61, 0.00,
    0.00, 0.15, 0.35, 0.58, 0.79, 0.82, 1.00, 1.30, 1.54, 1.48, 1.13, 1.65, 0.38, 0.00, 0.00,
    0.00, 0.00, 0.38, 0.50, 0.58, 0.92, 1.26, 1.58, 1.33, 1.42, 2.21, -0.01, 0.00, 0.00, 0.00,
    0.00, 0.00, 0.00, 0.00, 0.49, 0.86, 1.22, 1.63, 1.25, 2.12,
)
# fmt: on
# fmt: off
_WIDTH = (  # (WIDTHS,)
    0.00, -0.34, 0.58, 0.81, 0.99, 1.03, 1.48,
)
# fmt: on
# fmt: off
_RECENT = (  # (RECENTS,)
    0.78, 0.63, 0.45, 0.17, 0.48, 0.49, 0.45, 0.34, 0.19, 0.14, 0.50, 0.35, 0.38, 0.14, 0.25,
    0.39, 0.39, 0.36, 0.15, 0.36, 0.55, 0.78, 0.60, 0.68, 0.70,
)
# fmt: on


def make_model() -> npt.NDArray[np.float64]:
    """Return the ``(NUM_WEIGHTS,)`` factors that the kernels read."""
    widths = np.diff((0, *LENGTH_STOPS))
    vote = np.array(_VOTE).reshape(KINDS * NEARS, len(widths))
    escape = np.array(_ESCAPE).reshape(DEPTH_CLASSES, len(widths))
    tables = (
        np.repeat(vote, widths, axis=1).ravel(),
        _RANK,
        _DEPTH,
        _AGE,
        _DISTANCE,
        _DETOUR,
        np.repeat(escape, widths, axis=1).ravel(),
        _WIDTH,
        _RECENT,
    )
    return np.exp(np.concatenate(tables))
