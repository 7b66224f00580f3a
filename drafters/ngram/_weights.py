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
PLACES = COUNTS + 2 * NUM_CLASSES * (KNOTS + 1)  # (max_places,)
"""Where, behind the model, the drafter's other floats start: the calibration's maps and counts, and
the weights of the places that the last search found. Room to work in ends the array."""

LENGTH_STOPS = (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25, 32, 48, 65)
"""The classes of match lengths that were fitted: each ends before the next stop."""

# fmt: off
_VOTE = (  # (KINDS, NEARS, length classes)
    -1.39, 0.08, 1.40, 2.09, 2.53, 3.04, 3.04, 3.49, 3.93, 4.26, 5.40, 5.31, 4.96, 6.73, -1.39,
    0.75, 1.83, 2.21, 2.68, 3.03, 3.16, 3.44, 3.74, 4.00, 4.81, 5.15, 6.93, 7.74, -1.39, 2.44,
    2.68, 2.78, 3.10, 3.24, 3.24, 3.64, 3.85, 3.54, 5.03, 5.16, 6.93, 7.74, -1.39, 2.06, 3.26,
    3.64, 3.49, 3.43, 3.56, 3.68, 3.80, 4.23, 4.68, 5.23, 6.93, 7.74, -1.39, 0.00, 2.09, 2.34,
    2.55, 2.72, 2.93, 2.67, 2.99, 2.94, 2.76, 2.26, 2.40, 2.11, -1.39, 0.00, 1.39, 2.20, 2.77,
    3.22, 3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22,
    3.58, 3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58,
    3.89, 4.39, 5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 0.94, 1.66, 2.11, 1.98, 2.29, 2.03,
    2.60, 2.51, 2.64, 2.11, 2.48, 2.24, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39,
    5.13, 5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13,
    5.67, 6.44, 6.93, 7.74, -1.39, 0.00, 1.39, 2.20, 2.77, 3.22, 3.58, 3.89, 4.39, 5.13, 5.67,
    6.44, 6.93, 7.74,
)
# fmt: on
# fmt: off
_RANK = (  # (REGIONS, RANKS, KINDS)
    -0.25, -0.88, -1.32, -0.82, -0.72, -0.85, -0.62, 0.00, 0.00, -1.20, 0.00, 0.00, -1.02, 0.00,
    0.00, -1.31, 0.00, 0.00, -0.07, -0.61, -1.36, -0.38, -0.75, -1.50, -0.51, 0.00, 0.00, -0.72,
    0.00, 0.00, -0.78, 0.00, 0.00, -0.82, 0.00, 0.00, 0.78, -0.84, -1.08, 0.36, -0.97, -1.17,
    0.14, 0.00, 0.00, -0.02, 0.00, 0.00, -0.17, 0.00, 0.00, -0.17, 0.00, 0.00, 0.43, -0.54, -1.30,
    0.31, -0.76, -1.59, 0.16, 0.00, 0.00, -0.06, 0.00, 0.00, -0.28, 0.00, 0.00, -0.78, 0.00, 0.00,
)
# fmt: on
# fmt: off
_DEPTH = (  # (KINDS, DEPTH_CLASSES)
    0.68, -0.36, -0.61, -0.76, -0.88, -1.02, -0.21, 0.09, -0.09, -0.11, -1.56, 0.87, 1.23, 1.57,
    1.13,
)
# fmt: on
# fmt: off
_AGE = (  # (REGIONS, AGES)
    0.00, 0.00, 0.00, 0.00, -0.24, -1.12, -0.98, -1.24, -0.96, -1.14, -1.01, -0.89, 0.00, 0.00,
    -0.14, -0.73, -0.73, -0.64, -0.59, -0.65, -0.74, -0.78, -0.77, -0.77, -1.38, -0.44, 0.06,
    -0.35, -0.08, -0.07, 0.06, 0.17, -0.25, -0.27, 0.33, 0.01, -0.35, -0.05, -0.08, -0.00, -0.05,
    -0.22, -0.33, -0.55, -0.59, -0.85, -0.89, 0.00,
)
# fmt: on
# fmt: off
_DISTANCE = (  # (DISTANCES,)
    -0.14, -0.05, -0.39, -0.02, 0.35, 0.42, 0.21, -0.09, -0.50, -0.54, -0.83, -0.48, -0.43, -0.49,
)
# fmt: on
# fmt: off
_DETOUR = (  # (DISTANCES,)
    -0.59, -0.15, 0.06, 0.62, 0.26, -0.00, 0.47, 0.05, -0.36, -0.32, -0.36, -0.72, -0.24, -0.34,
)
# fmt: on
# fmt: off
_ESCAPE = (  # (DEPTH_CLASSES, length classes)
    0.77, 0.08, 0.05, 0.18, 0.17, 0.44, 1.34, 1.76, 1.54, 2.40, 2.23, 3.17, 2.42, 2.76, 0.90,
    0.00, 0.15, 0.16, 0.09, 0.19, 0.43, 0.79, 1.22, 1.09, 1.89, 1.43, 1.48, 1.79, 0.60, 0.00,
    0.00, 0.25, 0.39, 0.55, 0.62, 0.69, 1.08, 0.90, 1.68, 1.94, 1.55, 1.55, 0.11, 0.00, 0.00,
    0.00, 0.00, 0.49, 0.44, 0.50, 0.78, 0.88, 1.56, 1.57, 1.23, 1.78, -0.40, 0.00, 0.00, 0.00,
    0.00, 0.00, 0.00, 0.00, 0.47, 0.67, 1.37, 1.56, 1.09, 1.66,
)
# fmt: on
# fmt: off
_WIDTH = (  # (WIDTHS,)
    0.00, -0.42, 0.53, 0.76, 0.88, 0.94, 1.67,
)
# fmt: on
# fmt: off
_RECENT = (  # (RECENTS,)
    0.72, 0.57, 0.41, 0.00, 0.12, 0.48, 0.42, 0.33, 0.20, -0.16, 0.44, 0.31, 0.31, -0.00, 0.20,
    0.18, 0.40, 0.29, 0.22, 0.29, 0.04, 0.29, 0.49, 0.54, 0.62,
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
