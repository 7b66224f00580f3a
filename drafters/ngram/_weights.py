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

NUM_CLASSES, KNOTS = 5, 16
"""Classes of drafts in the calibration, by the longest match, and intervals of the probability."""

MAPS = NUM_WEIGHTS  # (NUM_CLASSES, KNOTS + 1)
COUNTS = MAPS + NUM_CLASSES * (KNOTS + 1)  # (NUM_CLASSES, KNOTS + 1, 2)
PLACES = COUNTS + 2 * NUM_CLASSES * (KNOTS + 1)  # (num_rows, max_places)
"""Where, behind the model, the drafter's other floats start: the calibration's maps and counts, and
the weights of the places found. Room to work in ends the array."""

LENGTH_STOPS = (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 32, 48, 65)
"""The classes of match lengths that were fitted: each ends before the next stop."""

# fmt: off
_VOTE = (  # (KINDS, NEARS, length classes)
    -1.39, 0.13, 1.51, 2.14, 2.55, 3.02, 3.08, 3.44, 3.89, 4.23, 5.28, 5.24, 5.30, 7.15, -1.39,
    0.82, 1.92, 2.29, 2.70, 3.08, 3.24, 3.39, 3.62, 4.02, 4.75, 6.02, 6.93, 7.74, -1.39, 2.42, 2.73,
    2.87, 3.07, 3.32, 3.31, 3.58, 3.78, 3.43, 5.02, 4.52, 6.93, 7.74, -1.39, 2.17, 3.25, 3.89, 3.64,
    3.42, 3.55, 3.80, 3.72, 4.46, 4.67, 5.04, 6.93, 7.74, -1.39, 0.00, 2.10, 2.35, 2.50, 2.72, 2.88,
    2.67, 3.04, 2.93, 2.78, 2.45, 2.54, 2.40, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39,
    5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67,
    6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93,
    7.74, -1.39, 0.00, 0.95, 1.58, 1.96, 1.99, 2.23, 2.05, 2.71, 2.52, 2.66, 2.32, 2.55, 2.37,
    -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39,
    0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39,
    2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74,
)
# fmt: on
# fmt: off
_RANK = (  # (REGIONS, RANKS, KINDS)
    -0.31, -0.58, -1.19, -0.91, -0.87, -0.85, -0.71, -0.63, -0.96, -1.23, -0.80, -1.29, -1.03, 0.00,
    0.00, -1.52, 0.00, 0.00, 0.21, -0.59, -1.40, -0.32, -0.60, -1.66, -0.49, -0.94, -1.18, -0.75,
    -0.77, -1.47, -0.73, 0.00, 0.00, -0.93, 0.00, 0.00, 0.86, -0.69, -0.95, 0.39, -1.00, -1.26,
    0.15, -1.10, -1.14, -0.04, -1.83, -1.41, -0.20, 0.00, 0.00, -0.63, 0.00, 0.00, 0.47, -0.42,
    -1.19, 0.29, -0.63, -1.56, 0.14, -0.79, -1.79, -0.09, -0.76, -1.02, -0.23, 0.00, 0.00, -0.48,
    0.00, 0.00,
)
# fmt: on
# fmt: off
_DEPTH = (  # (KINDS, DEPTH_CLASSES)
    0.85, -0.35, -0.61, -0.74, -0.87, -0.98, -0.31, 0.06, -0.05, -0.14, -1.53, 0.75, 1.38, 1.44,
    1.25,
)
# fmt: on
# fmt: off
_AGE = (  # (REGIONS, AGES)
    0.00, 0.00, 0.00, -0.00, -0.21, -1.13, -0.89, -1.29, -0.98, -1.15, -1.00, -0.86, 0.00, 0.00,
    -0.17, -0.88, -0.66, -0.70, -0.63, -0.71, -0.73, -0.79, -0.78, -0.81, -1.44, -0.51, 0.03, -0.42,
    -0.07, -0.09, 0.05, 0.15, -0.31, -0.32, 0.28, 0.07, -0.39, -0.02, -0.07, 0.03, -0.00, -0.21,
    -0.32, -0.53, -0.56, -0.87, -0.73, 0.00,
)
# fmt: on
# fmt: off
_DISTANCE = (  # (DISTANCES,)
    -0.16, -0.14, -0.48, -0.16, 0.37, 0.35, 0.19, -0.12, -0.51, -0.55, -0.78, -0.48, -0.49, -0.51,
)
# fmt: on
# fmt: off
_DETOUR = (  # (DISTANCES,)
    -0.62, 0.11, 0.19, 0.12, 0.18, -0.04, 0.39, 0.04, -0.40, -0.35, -0.51, -0.68, -0.14, -0.35,
)
# fmt: on
# fmt: off
_ESCAPE = (  # (DEPTH_CLASSES, length classes)
    0.66, 0.20, 0.18, 0.36, 0.37, 0.49, 1.27, 1.54, 1.61, 2.34, 2.12, 2.32, 1.77, 2.56, 0.82, 0.00,
    0.16, 0.15, 0.06, 0.25, 0.38, 0.73, 0.95, 0.79, 1.78, 1.74, 1.55, 1.36, 0.64, 0.00, 0.00, 0.21,
    0.36, 0.50, 0.63, 0.64, 0.99, 0.93, 1.54, 1.17, 1.84, 1.70, 0.21, 0.00, 0.00, 0.00, 0.00, 0.44,
    0.46, 0.43, 0.73, 0.93, 1.49, 1.52, 1.43, 1.85, -0.33, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00,
    0.38, 0.61, 1.32, 1.51, 1.36, 1.92,
)
# fmt: on
# fmt: off
_WIDTH = (  # (WIDTHS,)
    0.00, -0.41, 0.56, 0.82, 1.01, 1.02, 1.61,
)
# fmt: on
# fmt: off
_RECENT = (  # (RECENTS,)
    0.76, 0.60, 0.43, 0.03, 0.21, 0.52, 0.41, 0.36, 0.20, -0.08, 0.44, 0.37, 0.35, 0.01, 0.15, 0.21,
    0.38, 0.35, 0.19, 0.26, 0.11, 0.27, 0.38, 0.60, 0.78,
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
