"""Noise that depends on where a token stands, not on when it is drawn.

Sampling with speculation equals sampling without, token for token, when the random number behind
each (position, token id) is a pure function of the seed. The generator is Philox4x32-10, which is
counter-based: no state, any element by itself, the same on every device.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the Gumbel-max trick
as in Maddison et al., arXiv:1411.0030.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10

TARGET_DRAW = 0
"""Counter word of the noise behind the target's own choice of a token."""


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """What identifies one request's noise.

    Attributes:
        seed: the user's seed, taken modulo 2**64.
        stream: separates requests that share a seed; the row of a batch.
    """

    seed: int
    stream: int = 0


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Return the four words of Philox4x32-10.

    Args:
        counter: four int64 tensors of one broadcastable shape, each value in [0, 2**32).
        key: two words in [0, 2**32).

    Returns:
        Four int64 tensors of that shape, each value in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # An int64 product of two words wraps modulo 2**64, so its bits are those of the unsigned
        # product; the mask after the arithmetic shift drops the copies of the sign bit.
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _WORD) ^ c1 ^ k0,
            p1 & _WORD,
            ((p0 >> 32) & _WORD) ^ c3 ^ k1,
            p0 & _WORD,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _WORD
        k1 = (k1 + _KEY_STEPS[1]) & _WORD
    return [c0, c1, c2, c3]


def uniform_noise(
    key: NoiseKey, position: int, token_ids: Tensor, purpose: int = TARGET_DRAW
) -> Tensor:
    """Return numbers in (0, 1), one a token id.

    Args:
        key: the request's noise.
        position: absolute position of the token that is drawn, 0 for a prompt's first.
        token_ids: int64 tensor of any shape.
        purpose: separates independent uses at the same position.

    Returns:
        float64 tensor of the same shape, 53 random bits each.
    """
    counter = (
        token_ids,
        torch.full_like(token_ids, position & _WORD),
        torch.full_like(token_ids, key.stream & _WORD),
        torch.full_like(token_ids, purpose & _WORD),
    )
    high, low, _, _ = philox(counter, (key.seed & _WORD, (key.seed >> 32) & _WORD))
    bits = (high >> 5).double() * 2.0**26 + (low >> 6).double()
    return (bits + 0.5) * 2.0**-53


def gumbel_noise(key: NoiseKey, position: int, token_ids: Tensor) -> Tensor:
    """Return standard Gumbel numbers, one a token id; see :func:`uniform_noise`."""
    return -torch.log(-torch.log(uniform_noise(key, position, token_ids)))
