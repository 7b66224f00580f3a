"""How far the suffix drafter trusts a context, by its length and by how its counts look."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._vote_kernels import NUM_SHAPES

LongArray = npt.NDArray[np.int64]
DoubleArray = npt.NDArray[np.float64]

# Logistic fit of the share of probability that a context earns, on the first two thirds of six
# traces (edits, agent sessions, retrieval answers, revisions, chat), by the likelihood of each
# response token. One column a shape of the counts (see shape_of): went one way 1, 2, 3-4, more
# times; several ways, up to 1.5, 3, 8, more occurrences a way.
_INTERCEPT = (
    (-1.09, -0.05, 0.67, 1.69, -0.93, 0.01, 0.42, 0.72),  # own text
    (-2.35, -1.82, -0.63, 0.23, -1.49, -0.78, 0.15, 1.03),  # earlier texts
)
_PER_DOUBLING = (
    (0.79, 0.57, 0.24, 0.01, 0.18, 0.05, 0.39, 0.24),
    (0.70, 0.47, 0.34, 0.55, -0.37, -0.37, -0.19, 0.07),
)
_LATER_INTERCEPT = (-0.17, -0.09)
_LATER_PER_DOUBLING = (-0.46, -0.36)
_FIRST_OF_GROUP = (1, 2, 3, 4, 5, 7, 10, 16, 32, 64)
_TYPICAL_OF_GROUP = (1, 2, 3, 4, 5, 8, 12, 22, 45, 64)


def trust_table(max_context: int) -> tuple[DoubleArray, LongArray]:
    """Return the prior trust in each kind of context, and the groups of lengths that share it.

    Args:
        max_context: the longest context.

    Returns:
        ``(2, 2, num_groups, NUM_SHAPES)`` float64: own text or earlier ones, first context asked
        or a later one, group of lengths, shape of the counts; and ``(max_context + 1,)`` int64,
        the group of each length.
    """
    doublings = np.log2(_TYPICAL_OF_GROUP)
    logits = np.empty((2, 2, doublings.size, NUM_SHAPES))
    for kind in range(2):
        first = _INTERCEPT[kind] + np.outer(doublings, _PER_DOUBLING[kind])
        later = _LATER_INTERCEPT[kind] + _LATER_PER_DOUBLING[kind] * doublings
        logits[kind, 0] = first
        logits[kind, 1] = first + later[:, None]
    groups = np.searchsorted(_FIRST_OF_GROUP, np.arange(max_context + 1), side="right") - 1
    return 1 / (1 + np.exp(-logits)), np.maximum(groups, 0).astype(np.int64)
