"""How much of a request's own text stood there before: longest earlier match, by powers of two.

For each response token: the length of the longest run of tokens just before it that also stands
earlier in the request's prompt and response. Buckets: 0 (no match), 1, 2-3, 4-7, 8-15, 16-31,
32-63, 64 and more. They say nothing about other requests' texts, so they are the same for all
drafters.

By prefix doubling: runs of length 2k are the same where both halves are. A run that occurs once
cannot be part of a longer one that repeats, so the work shrinks as runs grow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...drafters.tree import IntArray

ByteArray = npt.NDArray[np.uint8]
LongArray = npt.NDArray[np.int64]

MAX_POWER = 6
NUM_BUCKETS = MAX_POWER + 2
BUCKET_LABELS = ("0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64+")


def match_buckets(prompt_ids: IntArray, response_ids: IntArray) -> ByteArray:
    """Return ``(response_length,)`` uint8: the bucket of the match before each response token.

    Ids below 0 match nothing.

    Args:
        prompt_ids: ``(prompt_length,)`` int32.
        response_ids: ``(response_length,)`` int32.
    """
    tokens = np.concatenate((prompt_ids, response_ids))[:-1].astype(np.int64)
    buckets = np.zeros(tokens.size + 1, np.uint8)  # entry i: the run that ends before token i
    ends: LongArray = np.flatnonzero(tokens >= 0)
    classes: LongArray = tokens[ends]
    for power in range(MAX_POWER + 1):
        ends, classes, is_repeat = _repeated(ends, classes)
        if ends.size == 0:
            break
        buckets[ends[is_repeat] + 1] = power + 1
        ends, classes = _doubled(ends, classes, 1 << power, tokens.size)
    return buckets[prompt_ids.size :][: response_ids.size]


def _repeated(
    ends: LongArray, classes: LongArray
) -> tuple[LongArray, LongArray, npt.NDArray[np.bool_]]:
    """Keep the runs that occur more than once, and say which of them stood there before."""
    _, first, inverse, counts = np.unique(
        classes, return_index=True, return_inverse=True, return_counts=True
    )
    kept = counts[inverse] > 1
    is_repeat = first[inverse] < np.arange(ends.size)
    return ends[kept], inverse[kept], is_repeat[kept]


def _doubled(
    ends: LongArray, classes: LongArray, length: int, num_tokens: int
) -> tuple[LongArray, LongArray]:
    """Return the ends and classes of the runs of twice the length whose halves both repeat."""
    class_at = np.full(num_tokens, -1, np.int64)
    class_at[ends] = classes
    halves = ends - length
    before = np.where(halves >= 0, class_at[halves], -1)
    kept = before >= 0
    return ends[kept], before[kept] * (classes.max(initial=0) + 1) + classes[kept]
