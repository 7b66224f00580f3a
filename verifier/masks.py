"""Attention masks for a batch of trees on top of a cache with ragged contexts.

The cache holds each row's committed tokens, left-aligned (slot = logical position) or, in layers
of a rolling window, right-aligned. The new columns follow at the end of the slots in use; a cache
of fixed size has unused slots behind them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import TreeBatch


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the keys of one kind of layer stand.

    Attributes:
        num_used: slots in use before the step.
        right_aligned: whether the last of them is each row's last token.
        num_unused: slots behind the step's columns, of a cache of fixed size.
    """

    num_used: int
    right_aligned: bool = False
    num_unused: int = 0


def tree_positions(batch: TreeBatch, context_lengths: Tensor) -> Tensor:
    """Return ``(num_rows, width)`` int64 positions: context length plus depth.

    Args:
        batch: the packed trees.
        context_lengths: ``(num_rows,)`` int64, tokens of each row in the cache.
    """
    return context_lengths[:, None] + batch.depths


def slot_positions(context_lengths: Tensor, slots: Slots) -> Tensor:
    """Return ``(num_rows, num_used)`` int64: the logical position of each slot, -1 for none.

    Args:
        context_lengths: ``(num_rows,)`` int64, tokens of each row in the cache.
        slots: where the keys stand.
    """
    places = torch.arange(slots.num_used, device=context_lengths.device)
    positions = places.expand(context_lengths.shape[0], -1)
    if slots.right_aligned:
        positions = positions + (context_lengths[:, None] - slots.num_used)
    return positions.masked_fill((positions < 0) | (positions >= context_lengths[:, None]), -1)


def visible_keys(
    batch: TreeBatch, context_lengths: Tensor, slots: Slots, window: int | None = None
) -> Tensor:
    """Return ``(num_rows, width, num_keys)`` bool: which keys each column may look at.

    Args:
        batch: the packed trees.
        context_lengths: ``(num_rows,)`` int64, tokens of each row in the cache.
        slots: where the keys stand; ``num_keys`` is all of them and the step's columns.
        window: width of a sliding window, the current token included, by logical position.
    """
    places = slot_positions(context_lengths, slots)[:, None, :]  # (num_rows, 1, num_used)
    in_context = (places >= 0).expand(-1, batch.width, -1)
    in_tree = batch.visible
    if window is not None:
        positions = tree_positions(batch, context_lengths)
        first = positions[:, :, None] - window + 1  # (num_rows, width, 1)
        in_context = in_context & (places >= first)
        in_tree = in_tree & (positions[:, None, :] >= first)
    parts = [in_context, in_tree]
    if slots.num_unused:
        parts.append(in_tree.new_zeros((*in_tree.shape[:2], slots.num_unused)))
    return torch.cat(parts, dim=-1)


def additive_mask(
    batch: TreeBatch,
    context_lengths: Tensor,
    slots: Slots,
    dtype: torch.dtype,
    window: int | None = None,
) -> Tensor:
    """Return the mask that is added to attention scores, 0 where a column may look.

    The additive form is the one that every attention implementation of transformers reads right:
    eager attention adds a boolean mask instead of applying it, which is silently wrong.

    Args:
        batch: the packed trees.
        context_lengths: ``(num_rows,)`` int64, tokens of each row in the cache.
        slots: where the keys stand.
        dtype: of the attention scores; the masked value is its minimum.
        window: width of a sliding window, the current token included, by logical position.

    Returns:
        ``(num_rows, 1, width, num_keys)`` of ``dtype``.
    """
    allowed = visible_keys(batch, context_lengths, slots, window)[:, None]
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)
