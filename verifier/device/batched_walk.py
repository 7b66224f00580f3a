"""The walk for a batch of trees at once, on the device, without asking the host.

All is written in columns: column 0 is a row's root (its last committed token), column i + 1 its
node i. Ancestors are found by pointer jumping, so a tree of depth d costs log2(d) steps and every
shape is fixed by the bucket: the same program runs whatever the trees hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...drafters import CandidateTree

MAX_NODES = 256
"""Largest tree; its ancestor mask is four words a column."""
DEFAULT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, MAX_NODES + 1)
"""Widths (root included) that batches are padded to."""
_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class StackedTrees:
    """One tree a row, padded to a bucket's width.

    Attributes:
        token_ids: ``(num_rows, width)`` int64; the root's token first, 0 in padding.
        parents: ``(num_rows, width)`` int64, the parent's column, smaller than the node's own; -1
            at the root and in padding.
    """

    token_ids: Tensor
    parents: Tensor


@dataclass(frozen=True, slots=True)
class BatchedWalk:
    """What a batch of walks emitted.

    Attributes:
        columns: ``(num_rows, width)`` int64: the root, then the accepted columns from the top
            down, then -1.
        lengths: ``(num_rows,)`` int64, accepted nodes of each row (A).
        token_ids: ``(num_rows, width)`` int64, the A + 1 emitted tokens, then -1.
    """

    columns: Tensor
    lengths: Tensor
    token_ids: Tensor


def bucket_width(width: int, buckets: Sequence[int] = DEFAULT_BUCKETS) -> int:
    """Return the smallest bucket that holds ``width`` columns.

    Args:
        width: columns needed, the root included.
        buckets: increasing widths.

    Raises:
        ValueError: no bucket is wide enough.
    """
    for bucket in buckets:
        if bucket >= width:
            return bucket
    raise ValueError(f"expected at most {buckets[-1]} columns (root included), got {width}")


def stack_trees(
    trees: Sequence[CandidateTree],
    root_ids: Sequence[int],
    width: int,
    device: torch.device | str = "cpu",
) -> StackedTrees:
    """Pad trees to one width and bring them to the device in one copy.

    Args:
        trees: one a row.
        root_ids: last committed token of each row.
        width: columns, at least one more than the largest tree's nodes.
        device: where the tensors are put.

    Raises:
        ValueError: a tree does not fit.
    """
    largest = max(tree.num_nodes for tree in trees)
    if largest >= width:
        raise ValueError(f"expected trees of at most {width - 1} nodes, got {largest}")
    both = np.zeros((2, len(trees), width), np.int64)
    both[1] = -1
    both[0, :, 0] = root_ids
    for row, tree in enumerate(trees):
        stop = 1 + tree.num_nodes
        both[0, row, 1:stop] = tree.token_ids
        both[1, row, 1:stop] = tree.parents + 1
    token_ids, parents = torch.from_numpy(both).to(device, non_blocking=True)
    return StackedTrees(token_ids, parents)


def column_depths(parents: Tensor) -> Tensor:
    """Return ``(num_rows, width)`` int64 depths: 0 at the root and in padding, 1 below the root.

    Args:
        parents: ``(num_rows, width)`` int64 as in :class:`StackedTrees`.
    """
    depths = (parents >= 0).long()
    jump = _self_loops(parents)
    for _ in range(_num_doublings(parents)):
        depths = depths + depths.gather(1, jump)
        jump = jump.gather(1, jump)
    return depths


def ancestor_words(parents: Tensor) -> Tensor:
    """Return the bit-packed ancestor mask, built where ``parents`` lies.

    Bit i of a column's words says that the column may see node i: its ancestors and itself. The
    root needs no bit: every node sees it.

    Args:
        parents: ``(num_rows, width)`` int64 as in :class:`StackedTrees`, width at most 257.

    Returns:
        ``(num_rows, width, num_words)`` int64, one word for each 64 nodes; bit 63 is the sign.

    Raises:
        ValueError: the width is beyond 257.
    """
    num_rows, width = parents.shape
    if width > MAX_NODES + 1:
        raise ValueError(f"expected at most {MAX_NODES + 1} columns (root included), got {width}")
    num_words = max(1, -(-(width - 1) // _WORD_BITS))
    nodes = torch.arange(-1, width - 1, device=parents.device)  # -1: the root has no bit
    bits = torch.ones_like(nodes) << (nodes % _WORD_BITS)
    word_index = torch.arange(num_words, device=parents.device)
    own = (nodes >= 0)[:, None] & (
        torch.div(nodes, _WORD_BITS, rounding_mode="floor")[:, None] == word_index
    )
    words = torch.where(own, bits[:, None], 0).expand(num_rows, -1, -1)
    jump = _self_loops(parents)
    for _ in range(_num_doublings(parents)):
        words = words | words.gather(1, jump[:, :, None].expand(-1, -1, num_words))
        jump = jump.gather(1, jump)
    return words


def unpack_ancestors(words: Tensor, parents: Tensor) -> Tensor:
    """Return ``(num_rows, width, width)`` bool: the columns that each column may see.

    Padding sees itself only, as in :attr:`.layout.TreeBatch.visible`.

    Args:
        words: what :func:`ancestor_words` returned for ``parents``.
        parents: ``(num_rows, width)`` int64 as in :class:`StackedTrees`.
    """
    width = parents.shape[1]
    nodes = torch.arange(width - 1, device=parents.device)
    chosen = words[:, :, nodes // _WORD_BITS]  # (num_rows, width, width - 1)
    seen = ((chosen >> (nodes % _WORD_BITS)) & 1).bool()
    sees_root = parents >= 0
    sees_root[:, 0] = True
    return torch.cat([sees_root[:, :, None], seen], dim=2)


def walk_trees(choices: Tensor, token_ids: Tensor, parents: Tensor) -> BatchedWalk:
    """Follow the target's tokens down each row's tree; see :func:`.walk.walk`.

    Args:
        choices: ``(num_rows, width)`` int64, the target's token after each column; what stands
            in padding does not matter.
        token_ids: ``(num_rows, width)`` int64 as in :class:`StackedTrees`.
        parents: ``(num_rows, width)`` int64; the children of a column hold different tokens.

    Returns:
        Tensors on the same device; nothing has waited for it.
    """
    num_rows, width = parents.shape
    columns = torch.arange(width, device=parents.device)
    above = parents.clamp(min=0)
    alive = (parents >= 0) & (token_ids == choices.gather(1, above))
    alive[:, 0] = True
    jump = _self_loops(parents)
    for _ in range(_num_doublings(parents)):
        alive = alive & alive.gather(1, jump)
        jump = jump.gather(1, jump)
    depths = column_depths(parents)
    last = torch.where(alive, depths, -1).argmax(1)  # siblings differ, so one column is deepest
    words = ancestor_words(parents)[torch.arange(num_rows, device=parents.device), last]
    nodes = columns[1:] - 1
    on_path = ((words[:, nodes // _WORD_BITS] >> (nodes % _WORD_BITS)) & 1).bool()
    on_path = torch.cat([torch.ones_like(on_path[:, :1]), on_path], 1) if width > 1 else alive
    slots = torch.where(on_path, depths, width)  # what is off the path goes to a slot that is cut
    path = torch.full((num_rows, width + 1), -1, device=parents.device)
    path = path.scatter(1, slots, columns.expand(num_rows, -1))[:, :width]
    emitted = torch.where(path >= 0, choices.gather(1, path.clamp(min=0)), -1)
    return BatchedWalk(path, depths.gather(1, last[:, None])[:, 0], emitted)


def gather_columns(values: Tensor, columns: Tensor) -> Tensor:
    """Return the values of the given columns, zeros where a column is -1.

    Args:
        values: ``(num_rows, width, ...)``, for example hidden states or logits of a step.
        columns: ``(num_rows, num_kept)`` int64.
    """
    extra = (1,) * (values.dim() - 2)
    index = columns.clamp(min=0).view(*columns.shape, *extra)
    kept = values.gather(1, index.expand(*columns.shape, *values.shape[2:]))
    return kept.masked_fill_((columns < 0).view(*columns.shape, *extra), 0)


def _self_loops(parents: Tensor) -> Tensor:
    columns = torch.arange(parents.shape[1], device=parents.device)
    return torch.where(parents < 0, columns, parents)


def _num_doublings(parents: Tensor) -> int:
    """Return how many times a jump must be doubled to reach over the deepest possible tree."""
    return (parents.shape[1] - 1).bit_length()
