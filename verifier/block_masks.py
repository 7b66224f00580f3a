"""The mask of a batch of trees as FlexAttention's block mask.

The context is a rule on slots and the tree a lookup among the step's own columns, so that nothing
as wide as the context is kept; blocks that no column of a row may look at are skipped.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from .layout import TreeBatch
from .masks import Slots, tree_positions

FLEX_ATTENTION = "flex_attention"
"""Name of the attention implementation of transformers that reads block masks."""


def block_mask(
    batch: TreeBatch, context_lengths: Tensor, slots: Slots, window: int | None = None
) -> BlockMask:
    """Return the block mask that shows the same keys as :func:`.masks.visible_keys`.

    Args:
        batch: the packed trees.
        context_lengths: ``(num_rows,)`` int64, tokens of each row in the cache.
        slots: where the keys stand.
        window: width of a sliding window, the current token included, by logical position.

    Returns:
        A mask of ``(num_rows, 1, width, num_keys)``, the same for all heads.

    Source: Dong et al., arXiv:2412.05496 (FlexAttention).
    """
    positions = tree_positions(batch, context_lengths)
    first = torch.zeros_like(positions)  # earliest position that a column may look at
    if window is not None:
        first = positions - window + 1
    in_tree = batch.visible & (positions[:, None, :] >= first[:, :, None])
    last_column = batch.width - 1
    num_used = slots.num_used
    num_step = num_used + batch.width
    # Of right-aligned slots the last one in use is each row's last token.
    offsets = context_lengths - num_used if slots.right_aligned else torch.zeros_like(first[:, 0])

    def sees(row: Tensor, head: Tensor, column: Tensor, key: Tensor) -> Tensor:
        place = key + offsets[row]
        in_context = (place >= 0) & (place < context_lengths[row]) & (place >= first[row, column])
        own = in_tree[row, column, (key - num_used).clamp(0, last_column)]
        return torch.where(key < num_used, in_context, own & (key < num_step))

    return create_block_mask(
        sees,
        context_lengths.shape[0],
        None,
        batch.width,
        num_step + slots.num_unused,
        device=context_lengths.device,
    )
