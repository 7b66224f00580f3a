"""Candidate trees in SGLang's layout: equally many slots a request, and a mask of ancestors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..drafters import CandidateTree

IntArray64 = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PAD_TOKEN = 0
"""What fills the slots that a tree leaves empty: in any vocabulary."""


def pack_trees(
    last_tokens: Sequence[int], trees: Sequence[CandidateTree], num_slots: int
) -> tuple[IntArray64, BoolArray]:
    """Lay trees out as the engine's verification takes them.

    Slot 0 holds the last committed token, the tree's nodes follow, and what is left is filled up
    with a chain that hangs from the last node. That node is a leaf (a parent stands before its
    child), so a filler has no sibling: the engine's sampling adds up the probabilities of siblings,
    and equal ones would be counted twice. A filler is then a draft like any other, accepted as
    often as the target says.

    Args:
        last_tokens: of each request the last committed token.
        trees: one a request, of less than ``num_slots`` nodes.
        num_slots: tokens that a step verifies of each request, the pending one included.

    Returns:
        ``(num_requests * num_slots,)`` token ids, and ``(num_requests * num_slots**2,)`` flags, row
        by row: which slots a slot sees, itself and its ancestors.

    Raises:
        ValueError: a tree has too many nodes, or the numbers of requests differ.
    """
    num_requests = len(trees)
    if len(last_tokens) != num_requests:
        raise ValueError(f"expected {num_requests} last tokens, got {len(last_tokens)}")
    ids = np.full((num_requests, num_slots), PAD_TOKEN, np.int64)
    parents = np.tile(np.arange(-1, num_slots - 1), (num_requests, 1))  # a chain to begin with
    ids[:, 0] = last_tokens
    for row, tree in enumerate(trees):
        if tree.num_nodes >= num_slots:
            raise ValueError(f"expected less than {num_slots} nodes, got {tree.num_nodes}")
        ids[row, 1 : tree.num_nodes + 1] = tree.token_ids
        parents[row, 1 : tree.num_nodes + 1] = tree.parents + 1
    mask = np.zeros((num_requests, num_slots, num_slots), np.bool_)
    rows = np.arange(num_requests)
    for slot in range(num_slots):
        if slot:
            mask[:, slot] = mask[rows, parents[:, slot]]
        mask[:, slot, slot] = True
    return ids.reshape(-1), mask.reshape(-1)
