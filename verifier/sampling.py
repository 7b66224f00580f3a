"""How the target chooses one token from one row of processed scores."""

from __future__ import annotations

import torch
from torch import Tensor

from .noise import NoiseKey, gumbel_noise


def choose_token(scores: Tensor, key: NoiseKey | None, position: int) -> int:
    """Return the target's token: the argmax, or a sample by Gumbel-max.

    The sample is distributed as ``softmax(scores)`` and is a function of the key, the position and
    the scores alone. Tokens at minus infinity take no part, so a row that top-k or top-p has
    thinned out costs only what is left.

    Args:
        scores: ``(vocab_size,)``, floating, after all processors.
        key: the request's noise, or ``None`` for greedy choice.
        position: absolute position of the token that is chosen.

    Raises:
        ValueError: no token is possible (each score is minus infinity or not a number).
    """
    if key is None:
        return int(torch.argmax(scores))
    token_ids = torch.nonzero(scores > -torch.inf).squeeze(-1)
    if token_ids.numel() == 0:
        raise ValueError("expected at least one possible token, got scores of -inf or nan only")
    noisy = scores[token_ids].double() + gumbel_noise(key, position, token_ids)
    return int(token_ids[torch.argmax(noisy)])
