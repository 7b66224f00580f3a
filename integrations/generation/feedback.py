"""What a step tells the drafter about the tree that was verified."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ...drafters import CandidateTree, Feedback
from ...verifier import WalkResult


def make_feedback(
    tree: CandidateTree, result: WalkResult, choices: list[int], logits: Tensor, num_top_ids: int
) -> Feedback:
    """Return the feedback about one row's tree.

    Args:
        tree: what was verified.
        result: what was emitted.
        choices: the argmax after the root and after each node, and of padding behind.
        logits: ``(width, vocab_size)``, the raw logits at the same places.
        num_top_ids: how many of the most likely tokens the drafter asks for; 0 for none.
    """
    stop = tree.num_nodes + 1
    token_ids = np.array(result.token_ids, np.int32)
    accepted = np.array(result.accepted, np.int32)
    best = np.array(choices[:stop], np.int32)
    if num_top_ids == 0:
        return Feedback(token_ids, accepted, best)
    # Faster than the log-sum-exp of the rows, though it writes them all.
    logprobs = logits[:stop].float().log_softmax(-1)
    top = logprobs.topk(min(num_top_ids, logprobs.shape[-1]), -1)
    return Feedback(
        token_ids,
        accepted,
        best,
        top.indices.int().cpu().numpy(),
        top.values.cpu().numpy(),
    )
