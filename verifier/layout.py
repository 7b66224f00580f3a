"""Several requests' trees as one rectangular batch: ids, parents, depths, ancestor masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..drafters import CandidateTree
from .device.batched_walk import (
    MAX_NODES,
    ancestor_words,
    column_depths,
    stack_trees,
    unpack_ancestors,
)


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Trees padded to one width; column 0 is each row's last committed token, the root.

    Attributes:
        input_ids: ``(num_rows, width)`` int64, root first, then the nodes, then padding.
        depths: ``(num_rows, width)`` int64, 0 at the root.
        visible: ``(num_rows, width, width)`` bool: each column's ancestors and itself; padding
            sees itself only.
        num_nodes: nodes of each row, without root and padding.
    """

    input_ids: Tensor
    depths: Tensor
    visible: Tensor
    num_nodes: list[int]

    @property
    def width(self) -> int:
        """Columns of the batch: one for the root and one for each node of the largest tree."""
        return self.input_ids.shape[1]

    def widened(self, width: int) -> TreeBatch:
        """Return the batch with padding up to ``width`` columns."""
        more = (0, width - self.width)
        visible = pad(self.visible, (*more, *more))
        visible |= torch.eye(width, dtype=torch.bool, device=visible.device)
        return TreeBatch(pad(self.input_ids, more), pad(self.depths, more), visible, self.num_nodes)


def pack_trees(
    trees: Sequence[CandidateTree], root_ids: Sequence[int], device: torch.device | str = "cpu"
) -> TreeBatch:
    """Pack one tree a row behind its root.

    Args:
        trees: one tree a row.
        root_ids: last committed token of each row.
        device: where the tensors are put.
    """
    width = 1 + max(tree.num_nodes for tree in trees)
    if torch.device(device).type != "cpu" and width <= MAX_NODES + 1:
        return unfold_on_device(trees, root_ids, width, device)
    input_ids = np.zeros((len(trees), width), np.int64)
    depths = np.zeros((len(trees), width), np.int64)
    visible = np.zeros((len(trees), width, width), np.bool_)
    visible[:] = np.eye(width, dtype=np.bool_)
    for row, tree in enumerate(trees):
        stop = 1 + tree.num_nodes
        input_ids[row, 1:stop] = tree.token_ids
        depths[row, 1:stop] = tree.depths()
        visible[row, :stop, 0] = True
        visible[row, 1:stop, 1:stop] = tree.ancestor_mask()
    input_ids[:, 0] = root_ids
    return TreeBatch(
        torch.from_numpy(input_ids).to(device),
        torch.from_numpy(depths).to(device),
        torch.from_numpy(visible).to(device),
        [tree.num_nodes for tree in trees],
    )


def unfold_on_device(
    trees: Sequence[CandidateTree],
    root_ids: Sequence[int],
    width: int,
    device: torch.device | str,
) -> TreeBatch:
    """Return what :func:`pack_trees` does, from one small copy: the masks are made on the device.

    On a CPU that takes longer than to fill them in one by one.

    Args:
        trees: one tree a row, at most :data:`.device.batched_walk.MAX_NODES` nodes.
        root_ids: last committed token of each row.
        width: columns of the batch.
        device: where the tensors are put.
    """
    stacked = stack_trees(trees, root_ids, width, device)
    visible = unpack_ancestors(ancestor_words(stacked.parents), stacked.parents)
    return TreeBatch(
        stacked.token_ids,
        column_depths(stacked.parents),
        visible,
        [tree.num_nodes for tree in trees],
    )
