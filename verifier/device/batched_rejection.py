"""Rejection and block verification for a batch at once, on the device, without asking the host.

Since a child's column is larger than its parent's and siblings stand in the order of their draws,
one pass over the columns is the whole walk down the tree: the next child of the node reached so
far is the next column whose parent it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BatchedRejection:
    """What was accepted, and from what the last token is to be drawn.

    Attributes:
        columns: ``(num_rows, width)`` int64: the root, then the accepted columns, then -1.
        lengths: ``(num_rows,)`` int64, accepted nodes of each row (A).
        left: ``(num_rows, vocab_size)`` float64, the distribution of the recovered or bonus token.
    """

    columns: Tensor
    lengths: Tensor
    left: Tensor


def reject_trees(
    target: Tensor, draft: Tensor, token_ids: Tensor, parents: Tensor, uniforms: Tensor
) -> BatchedRejection:
    """Apply :func:`.rejection.verify_by_rejection` to each row.

    Args:
        target: ``(num_rows, width, vocab_size)`` float64, p after each column.
        draft: ``(num_rows, width, vocab_size)`` float64, q that each column was drawn from, zeros
            for a chosen one; the root's row is not read.
        token_ids: ``(num_rows, width)`` int64 as in :class:`.batched_walk.StackedTrees`.
        parents: ``(num_rows, width)`` int64, likewise.
        uniforms: ``(num_rows, width)`` float64 in (0, 1), the noise behind each column's decision.
    """
    num_rows, width, _ = target.shape
    rows = torch.arange(num_rows, device=target.device)
    reached = torch.zeros_like(rows)
    lengths = torch.zeros_like(rows)
    columns = torch.full_like(token_ids, -1)
    columns[:, 0] = 0
    left = target[:, 0]
    for column in range(1, width):
        token = token_ids[:, column : column + 1]
        q = _point_mass_where_empty(draft[:, column], token)
        p_token, q_token = left.gather(1, token)[:, 0], q.gather(1, token)[:, 0]
        tried = parents[:, column] == reached
        accepted = tried & (uniforms[:, column] * q_token < p_token) & (q_token > 0)
        remainder = (left - q).clamp(min=0)
        total = remainder.sum(1, keepdim=True)
        remainder = torch.where(total > 0, remainder / total, left)
        left = torch.where((tried & ~accepted)[:, None], remainder, left)
        left = torch.where(accepted[:, None], target[:, column], left)
        reached = torch.where(accepted, column, reached)
        lengths = lengths + accepted
        columns[rows, lengths] = torch.where(accepted, column, columns[rows, lengths])
    return BatchedRejection(columns, lengths, left)


def verify_blocks(
    target: Tensor, draft: Tensor, token_ids: Tensor, num_nodes: Tensor, uniforms: Tensor
) -> BatchedRejection:
    """Apply :func:`.block_verification.verify_block` to each row.

    Args:
        target: ``(num_rows, width, vocab_size)`` float64, p after each column.
        draft: ``(num_rows, width, vocab_size)`` float64 as in :func:`reject_trees`.
        token_ids: ``(num_rows, width)`` int64: the root, the chain, then padding.
        num_nodes: ``(num_rows,)`` int64, length of each row's chain.
        uniforms: ``(num_rows, width)`` float64 in (0, 1); entry i decides about the prefix that
            ends in column i.
    """
    num_rows, width, _ = target.shape
    columns = torch.arange(width, device=target.device)
    rows = torch.arange(num_rows, device=target.device)
    in_chain = columns <= num_nodes[:, None]
    q = _point_mass_where_empty(draft, token_ids[..., None])
    ratio = torch.ones_like(target[:, 0, 0])
    ratios = [ratio]
    for column in range(1, width):
        token = token_ids[:, column, None]
        p_token = target[:, column - 1].gather(1, token)[:, 0]
        ratio = (ratio * p_token / q[:, column].gather(1, token)[:, 0]).clamp(max=1)
        ratios.append(ratio)
    path_ratios = torch.stack(ratios, 1)  # (num_rows, width)
    following = q.roll(-1, dims=1)  # q of the token after each column
    unmet = (path_ratios[..., None] * target - following).clamp(min=0)
    total = unmet.sum(2)
    stop = torch.where(total > 0, total / (total + (1 - path_ratios)), 0)
    is_whole = columns == num_nodes[:, None]
    stop = torch.where(is_whole, path_ratios, stop)
    accepted = in_chain & (uniforms < stop)
    accepted[:, 0] = True
    lengths = torch.where(accepted, columns, 0).amax(1)
    end_total = total[rows, lengths][:, None]
    left = torch.where(end_total > 0, unmet[rows, lengths] / end_total, target[rows, lengths])
    left = torch.where((lengths == num_nodes)[:, None], target[rows, lengths], left)
    return BatchedRejection(torch.where(columns <= lengths[:, None], columns, -1), lengths, left)


def _point_mass_where_empty(draft: Tensor, token: Tensor) -> Tensor:
    """Replace rows of zeros by a point mass at the row's token."""
    point_mass = torch.zeros_like(draft).scatter(-1, token, 1.0)
    return torch.where(draft.sum(-1, keepdim=True) > 0, draft, point_mass)
