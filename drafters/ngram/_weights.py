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
    -1.39, 0.06, 1.39, 2.10, 2.54, 3.04, 3.16, 3.61, 4.12, 4.49, 5.31, 5.34, 5.56, 7.70, -1.39,
    0.77, 1.83, 2.21, 2.72, 3.03, 3.28, 3.55, 3.87, 4.32, 4.89, 5.92, 6.93, 7.74, -1.39, 2.39,
    2.67, 2.80, 3.04, 3.24, 3.18, 3.54, 3.91, 3.74, 5.05, 5.01, 6.93, 7.74, -1.39, 2.04, 3.01,
    3.87, 3.60, 3.51, 3.58, 3.92, 3.95, 4.56, 4.57, 5.82, 6.93, 7.74, -1.39, 0.00, 2.09, 2.31,
    2.44, 2.70, 2.90, 2.74, 3.10, 2.98, 2.91, 2.48, 2.60, 2.37, -1.39, 0.00, 1.39, 2.20, 2.77,
    3.22, 3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22,
    3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58,
    3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 0.97, 1.62, 1.96, 1.88, 2.12, 2.02,
    2.65, 2.52, 2.60, 2.35, 2.62, 2.45, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39,
    5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13,
    5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67,
    6.44, 6.93, 7.74,
)
# fmt: on
# fmt: off
_RANK = (  # (REGIONS, RANKS, KINDS)
    -0.07, -0.39, -0.78, -0.72, -0.72, -1.10, -0.51, -0.77, -1.27, -1.14, -0.80, -1.29, -0.92,
    0.00, 0.00, -1.52, 0.00, 0.00, 0.21, -0.42, -1.21, -0.27, -0.58, -1.52, -0.40, -0.89, -1.62,
    -0.58, -0.77, -1.47, -0.66, 0.00, 0.00, -0.93, 0.00, 0.00, 1.09, -0.44, -0.67, 0.61, -0.77,
    -0.96, 0.38, -1.09, -1.73, 0.12, -1.83, -1.41, 0.01, 0.00, 0.00, -0.63, 0.00, 0.00, 0.57,
    -0.30, -1.06, 0.39, -0.63, -1.46, 0.23, -0.94, -1.74, -0.02, -0.76, -1.02, -0.18, 0.00, 0.00,
    -0.48, 0.00, 0.00,
)
# fmt: on
# fmt: off
_DEPTH = (  # (KINDS, DEPTH_CLASSES)
    1.01, -0.27, -0.59, -0.82, -1.02, -0.99, -0.42, 0.09, -0.07, -0.15, -1.52, 0.55, 1.25, 1.40,
    1.14,
)
# fmt: on
# fmt: off
_AGE = (  # (REGIONS, AGES)
    0.00, 0.00, 0.00, -0.01, -0.44, -1.16, -1.06, -1.23, -0.94, -1.17, -0.97, -0.91, 0.00, 0.00,
    -0.21, -0.84, -0.66, -0.67, -0.62, -0.70, -0.75, -0.79, -0.83, -0.83, -1.54, -0.48, -0.03,
    -0.51, -0.17, -0.15, 0.02, 0.10, -0.32, -0.35, 0.24, -0.04, -0.33, 0.03, -0.01, 0.09, 0.06,
    -0.15, -0.25, -0.46, -0.55, -0.75, -0.72, -0.00,
)
# fmt: on
# fmt: off
_DISTANCE = (  # (DISTANCES,)
    -0.22, -0.19, -0.26, -0.21, 0.25, 0.34, 0.13, -0.18, -0.53, -0.58, -0.82, -0.47, -0.54, -0.53,
)
# fmt: on
# fmt: off
_DETOUR = (  # (DISTANCES,)
    -0.65, -1.01, -0.22, 0.47, 0.21, 0.08, 0.44, 0.03, -0.40, -0.36, -0.54, -0.88, -0.13, -0.37,
)
# fmt: on
# fmt: off
_ESCAPE = (  # (DEPTH_CLASSES, length classes)
    0.69, 0.36, 0.38, 0.47, 0.57, 0.82, 0.79, 1.18, 1.15, 1.89, 1.40, 1.21, 1.41, 1.92, 0.66,
    0.00, 0.11, 0.14, 0.00, 0.30, 0.53, 0.52, 1.02, 0.73, 1.49, 1.84, 1.43, 0.81, 0.58, 0.00,
    0.00, 0.18, 0.32, 0.49, 0.68, 0.71, 1.04, 0.77, 1.58, 0.92, 1.63, 2.06, 0.19, 0.00, 0.00,
    0.00, 0.00, 0.39, 0.43, 0.47, 0.88, 1.14, 1.48, 1.57, 1.62, 2.42, -0.23, 0.00, 0.00, 0.00,
    0.00, 0.00, 0.00, 0.00, 0.45, 0.70, 1.26, 1.59, 1.63, 2.27,
)
# fmt: on
# fmt: off
_WIDTH = (  # (WIDTHS,)
    0.00, -0.35, 0.60, 0.85, 1.03, 1.09, 1.53,
)
# fmt: on
# fmt: off
_RECENT = (  # (RECENTS,)
    0.81, 0.67, 0.51, 0.06, 0.38, 0.54, 0.46, 0.35, 0.21, -0.00, 0.50, 0.41, 0.39, 0.09, 0.17,
    0.18, 0.42, 0.37, 0.14, 0.28, 0.40, 0.74, 0.54, 0.62, 0.74,
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
