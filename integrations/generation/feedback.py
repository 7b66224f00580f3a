"""What a step tells the drafter about the tree that was verified."""

from __future__ import annotations

import numpy as np

from ...drafters import Feedback
from ...drafters.tree import IntArray
from ...verifier import WalkResult
from .row_walk import TopIds


def make_feedback(result: WalkResult, choices: IntArray, top_ids: TopIds | None) -> Feedback:
    """Return the feedback about one row's tree.

    Args:
        result: what was emitted.
        choices: ``(num_nodes + 1,)`` int32, the argmax after the root and after each node.
        top_ids: the most likely tokens at the same places, for a drafter that asks for them.
    """
    token_ids = np.array(result.token_ids, np.int32)
    accepted = np.array(result.accepted, np.int32)
    ids, logprobs = top_ids or (None, None)
    return Feedback(token_ids, accepted, choices, ids, logprobs)
