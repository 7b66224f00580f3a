"""Triton kernel for the compaction of key-value caches: all layers in one launch.

The twin of :func:`.batched_cache.compact_cache`.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
# Triton is optional, and carries no types where it is there.

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from .triton_support import jit, next_power_of_2


@jit
def _compact_kernel(
    like: tl.tensor,
    addresses: tl.tensor,
    columns: tl.tensor,
    num_kept: tl.tensor,
    context_lengths: tl.tensor,
    num_slots: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    head_stride: tl.tensor,
    slot_stride: tl.tensor,
    head_size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    head = tl.program_id(1)
    # The address of each tensor; `like` only gives the type of what lies there.
    states = tl.load(addresses + tl.program_id(2)).to(like.dtype)
    base = states + row.to(tl.int64) * row_stride + head * head_stride
    offsets = tl.arange(0, BLOCK)
    inside = offsets < head_size
    count = tl.load(num_kept + row)
    length = tl.load(context_lengths + row)
    # A source lies at or behind its target, and sources increase, so going up overwrites only
    # what has been moved. One warp a program keeps this order for each element.
    for index in range(0, count):
        source = num_slots + tl.load(columns + row * num_columns + index)
        target = length + index
        data = tl.load(base + source * slot_stride + offsets, mask=inside)
        tl.store(base + target * slot_stride + offsets, data, mask=inside)


def cache_addresses(states: Sequence[Tensor]) -> Tensor:
    """Return ``(num_states,)`` int64, where the tensors lie, on their device.

    A cache that keeps its storage needs it once; a captured graph needs it from outside.
    """
    addresses = torch.tensor([tensor.data_ptr() for tensor in states], dtype=torch.int64)
    return addresses.to(states[0].device, non_blocking=True)


def compact_cache(
    states: Sequence[Tensor],
    columns: Tensor,
    num_kept: Tensor,
    context_lengths: Tensor,
    num_slots: int,
    addresses: Tensor | None = None,
) -> None:
    """Move a step's kept slots to where each row's committed tokens end, in one launch.

    Args:
        states: key and value tensors ``(num_rows, num_heads, capacity, head_size)`` of one shape,
            dtype and layout, the last dimension dense; mutated.
        columns: ``(num_rows, num_columns)`` int64, the kept columns, increasing, root first.
        num_kept: ``(num_rows,)`` int64, how many of them stay.
        context_lengths: ``(num_rows,)`` int64, tokens of each row before the step.
        num_slots: slots in use before the step.
        addresses: :func:`cache_addresses` of the states, if at hand.

    Raises:
        ValueError: the tensors differ in shape, strides or dtype.
    """
    first = states[0]
    form = (first.shape, first.stride(), first.dtype)
    for tensor in states:
        if (tensor.shape, tensor.stride(), tensor.dtype) != form or tensor.stride(3) != 1:
            raise ValueError(
                f"expected dense states of one form {form}, got "
                f"{(tensor.shape, tensor.stride(), tensor.dtype)}"
            )
    num_rows, num_heads, _, head_size = first.shape
    _compact_kernel[(num_rows, num_heads, len(states))](
        first,
        cache_addresses(states) if addresses is None else addresses,
        columns.contiguous(),
        num_kept.contiguous(),
        context_lengths.contiguous(),
        num_slots,
        columns.shape[1],
        *first.stride()[:3],
        head_size,
        BLOCK=next_power_of_2(head_size),
        num_warps=1,
    )
