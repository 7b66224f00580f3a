"""Compaction of key-value caches on the device: the accepted path moves to each row's end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def compact_cache(
    states: Sequence[Tensor],
    columns: Tensor,
    num_kept: Tensor,
    context_lengths: Tensor,
    num_slots: int,
) -> None:
    """Move a step's kept slots to where each row's committed tokens end; wait for nothing.

    What stands behind a row's new end is left over and must be hidden by the next step's mask.

    Args:
        states: key and value tensors ``(num_rows, num_heads, capacity, head_size)``, mutated. The
            step's columns stand at slots ``num_slots`` to ``num_slots + width - 1``.
        columns: ``(num_rows, num_columns)`` int64, the kept columns, increasing, root first, as in
            :attr:`.batched_walk.BatchedWalk.columns`.
        num_kept: ``(num_rows,)`` int64, how many of them stay.
        context_lengths: ``(num_rows,)`` int64, tokens of each row before the step, at most
            ``num_slots``.
        num_slots: slots in use before the step.
    """
    offsets = torch.arange(columns.shape[1], device=columns.device)
    kept = offsets < num_kept[:, None]
    targets = context_lengths[:, None] + offsets
    # A slot that does not move is its own source, so that every target is written once.
    sources = torch.where(kept, num_slots + columns, targets)
    for tensor in states:
        shape = (tensor.shape[0], tensor.shape[1], columns.shape[1], tensor.shape[3])
        source = sources[:, None, :, None].expand(shape)
        target = targets[:, None, :, None].expand(shape)
        tensor.scatter_(2, target, tensor.gather(2, source))
