"""Attention masks for a batch of trees on top of a cache with ragged contexts.

The cache holds each row's committed tokens left-aligned: slot = logical position. The new columns
follow at the physical end of the cache, after the longest row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import TreeBatch


def tree_positions(batch: TreeBatch, context_lengths: Tensor) -> Tensor:
    """Return ``(num_rows, width)`` int64 positions: context length plus depth.

    Args:
        batch: the packed trees.
        context_lengths: ``(num_rows,)`` int64, tokens of each row in the cache.
    """
    return context_lengths[:, None] + batch.depths


def additive_mask(
    batch: TreeBatch,
    context_lengths: Tensor,
    num_slots: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> Tensor:
    """Return the mask that is added to attention scores, 0 where a column may look.

    The additive form is the one that every attention implementation of transformers reads right:
    eager attention adds a boolean mask instead of applying it, which is silently wrong.

    Args:
        batch: the packed trees.
        context_lengths: ``(num_rows,)`` int64, tokens of each row in the cache.
        num_slots: physical length of the cache before this step.
        dtype: of the attention scores; the masked value is its minimum.
        window: width of a sliding window, the current token included, by logical position.

    Returns:
        ``(num_rows, 1, width, num_slots + width)`` of ``dtype``.
    """
    device = context_lengths.device
    slots = torch.arange(num_slots, device=device)
    in_context = slots < context_lengths[:, None]  # (num_rows, num_slots)
    in_context = in_context[:, None, :].expand(-1, batch.width, -1)
    in_tree = batch.visible
    if window is not None:
        positions = tree_positions(batch, context_lengths)
        first = positions[:, :, None] - window + 1  # (num_rows, width, 1)
        in_context = in_context & (slots >= first)
        in_tree = in_tree & (positions[:, None, :] >= first)
    allowed = torch.cat([in_context, in_tree], dim=-1)[:, None]
    mask = torch.zeros(allowed.shape, dtype=dtype, device=device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)
