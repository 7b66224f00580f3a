"""The tree's part of a mask as bits, the form in which engines take it.

Bit j of row i says that column i may look at column j of the step; column 0 is the root, and bit 0
of the first word is its. Words are 32 bits wide and signed, as TensorRT-LLM's packed masks are; the
context is not in them, since a step's columns see all of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32


def pack_visible(visible: Tensor) -> Tensor:
    """Return ``(num_rows, width, num_words)`` int32, the lowest bit first.

    Args:
        visible: ``(num_rows, width, width)`` bool as in :attr:`.layout.TreeBatch.visible`.
    """
    num_rows, width, _ = visible.shape
    num_words = -(-width // WORD_BITS)
    padded = torch.nn.functional.pad(visible, (0, num_words * WORD_BITS - width))
    bits = padded.view(num_rows, width, num_words, WORD_BITS).long()
    weights = 1 << torch.arange(WORD_BITS, device=visible.device)
    words = (bits * weights).sum(-1)  # below 2**32
    return torch.where(words >= 2**31, words - 2**32, words).int()


def unpack_visible(words: Tensor, width: int) -> Tensor:
    """Return ``(num_rows, width, width)`` bool: what :func:`pack_visible` was given.

    Args:
        words: ``(num_rows, width, num_words)`` int32.
        width: columns of the step.

    Raises:
        ValueError: the words do not hold that many columns.
    """
    num_words = -(-width // WORD_BITS)
    if words.shape[1:] != (width, num_words):
        raise ValueError(
            f"expected words of shape (rows, {width}, {num_words}), got {tuple(words.shape)}"
        )
    places = torch.arange(width, device=words.device)
    chosen = words.long()[:, :, places // WORD_BITS]
    return ((chosen >> (places % WORD_BITS)) & 1).bool()
