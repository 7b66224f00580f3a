"""Triton kernels for the walk and for gathering what lies on the accepted path.

The twins of :func:`.batched_walk.walk_trees` and :func:`.batched_walk.gather_columns`.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
# Triton is optional, and carries no types where it is there.

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from .batched_walk import BatchedWalk
from .triton_support import jit, next_power_of_2


@jit
def _walk_kernel(
    choices: tl.tensor,
    token_ids: tl.tensor,
    parents: tl.tensor,
    out_columns: tl.tensor,
    out_tokens: tl.tensor,
    out_lengths: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < width
    place = row * width + offsets
    tokens = tl.load(token_ids + place, mask=inside, other=0)
    above = tl.load(parents + place, mask=inside, other=-1)
    choice = tl.load(choices + place, mask=inside, other=-1)
    columns = tl.where(offsets == 0, 0, -1).to(tl.int64)
    emitted = tl.full((BLOCK,), -1, tl.int64)
    reached = 0
    length = 0
    walking = True
    while walking:
        token = tl.sum(tl.where(offsets == reached, choice, 0), 0)
        emitted = tl.where(offsets == length, token, emitted)
        fits = (above == reached) & (tokens == token)
        child = tl.min(tl.where(fits, offsets, BLOCK), 0)
        walking = child < BLOCK
        if walking:
            reached = child
            length += 1
            columns = tl.where(offsets == length, child, columns)
    tl.store(out_columns + place, columns, mask=inside)
    tl.store(out_tokens + place, emitted, mask=inside)
    tl.store(out_lengths + row, length)


def walk_trees(choices: Tensor, token_ids: Tensor, parents: Tensor) -> BatchedWalk:
    """Follow the target's tokens down each row's tree, one program a row.

    Args:
        choices: ``(num_rows, width)`` int64, contiguous, the target's token after each column.
        token_ids: ``(num_rows, width)`` int64, contiguous.
        parents: ``(num_rows, width)`` int64, contiguous, -1 at the root and in padding.
    """
    num_rows, width = parents.shape
    columns, emitted = torch.empty_like(parents), torch.empty_like(parents)
    lengths = parents.new_empty(num_rows)
    _walk_kernel[(num_rows,)](
        choices.contiguous(),
        token_ids.contiguous(),
        parents.contiguous(),
        columns,
        emitted,
        lengths,
        width,
        BLOCK=next_power_of_2(width),
        num_warps=1,
    )
    return BatchedWalk(columns, lengths, emitted)


@jit
def _gather_kernel(
    values: tl.tensor,
    columns: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    num_kept: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    kept = tl.program_id(1)
    offsets = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    column = tl.load(columns + row * num_kept + kept)
    source = (row * width + tl.maximum(column, 0)).to(tl.int64) * size + offsets
    data = tl.load(values + source, mask=inside)
    data = tl.where(column >= 0, data, tl.zeros_like(data))
    target = (row * num_kept + kept).to(tl.int64) * size + offsets
    tl.store(out + target, data, mask=inside)


def gather_columns(values: Tensor, columns: Tensor) -> Tensor:
    """Return the values of the given columns, zeros where a column is -1.

    Args:
        values: ``(num_rows, width, ...)``, contiguous.
        columns: ``(num_rows, num_kept)`` int64.
    """
    num_rows, num_kept = columns.shape
    out = values.new_empty((num_rows, num_kept, *values.shape[2:]))
    size = out[0, 0].numel()
    block = min(next_power_of_2(size), 1024)
    grid = (num_rows, num_kept, -(-size // block))
    _gather_kernel[grid](
        values.contiguous(),
        columns.contiguous(),
        out,
        values.shape[1],
        num_kept,
        size,
        BLOCK=block,
    )
    return out
