"""How far the suffix drafter trusts a context, by its length and by how its counts look."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._suffix_tree_kernels import NUM_SHAPES

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
_BONUS = (1.0, 1.0)


def trust_table(max_context: int) -> tuple[DoubleArray, DoubleArray]:
    """Return the prior trust in each kind of context, and the weight of the latest continuation.

    Args:
        max_context: the longest context.

    Returns:
        ``(2, 2, max_context + 1, NUM_SHAPES)`` float64: own text or earlier ones, first context
        asked or a later one, length in tokens, shape of the counts; and ``(2,)`` float64, own text
        or earlier ones, in occurrences.
    """
    doublings = np.log2(np.maximum(np.arange(max_context + 1), 1))
    logits = np.empty((2, 2, max_context + 1, NUM_SHAPES))
    for kind in range(2):
        first = _INTERCEPT[kind] + np.outer(doublings, _PER_DOUBLING[kind])
        later = _LATER_INTERCEPT[kind] + _LATER_PER_DOUBLING[kind] * doublings
        logits[kind, 0] = first
        logits[kind, 1] = first + later[:, None]
    return 1 / (1 + np.exp(-logits)), np.array(_BONUS)
