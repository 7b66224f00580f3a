"""A drafting model's children of one node: its most likely tokens, or draws with their q."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..tree import FloatArray
from .config import ModelDraftConfig


@dataclass(frozen=True, slots=True)
class Children:
    """What a model proposes after one node.

    Attributes:
        token_ids: distinct tokens, in the order in which they were chosen or drawn.
        chances: of each, the model's probability.
        rows: of each, ``(vocab_size,)`` float32, the q that it was drawn from; empty when chosen.
        confidence: the model's highest probability.
    """

    token_ids: list[int]
    chances: list[float]
    rows: list[FloatArray]
    confidence: float


class Draws(Protocol):
    """The randomness of a draft; a test may enumerate it instead."""

    def draw(self, row: FloatArray) -> int:
        """Return a token drawn from ``(vocab_size,)`` float32 probabilities, not all 0."""
        ...


class SeededDraws:
    """Draws that are a function of numbers."""

    def __init__(self, *key: int) -> None:
        """Begin.

        Args:
            *key: what the draws are a function of, each at least 0.
        """
        self._rng = np.random.default_rng(key)

    def draw(self, row: FloatArray) -> int:
        """Return a token drawn from ``(vocab_size,)`` float32 probabilities, not all 0."""
        # What is drawn from is what is handed on, to the last bit of its float32.
        cumulated = np.cumsum(row.astype(np.float64))
        place = self._rng.random() * cumulated[-1]
        return int(np.searchsorted(cumulated, place, side="right"))


def choose_children(logits: Tensor, num_children: int) -> Children:
    """Return the most likely tokens.

    Args:
        logits: ``(vocab_size,)``.
        num_children: how many; fewer where fewer are possible.
    """
    probs = torch.softmax(logits.float(), -1)
    values, ids = probs.topk(min(num_children, probs.shape[0]))
    chances = values.tolist()
    possible = sum(chance > 0 for chance in chances)
    return Children(ids.tolist()[:possible], chances[:possible], [], chances[0])


def draw_children(
    logits: Tensor, num_children: int, config: ModelDraftConfig, draws: Draws
) -> Children:
    """Draw tokens without replacement from the model's own processed distribution.

    Args:
        logits: ``(vocab_size,)``.
        num_children: how many; fewer where fewer are possible.
        config: temperature, top-k and top-p.
        draws: the randomness.
    """
    row = draft_distribution(logits, config)
    confidence = float(row.max())
    first = row
    token_ids: list[int] = []
    rows: list[FloatArray] = []
    while len(token_ids) < num_children and row.any():
        token = draws.draw(row)
        token_ids.append(token)
        rows.append(row)
        row = _without(row, token)
    return Children(token_ids, [float(first[token]) for token in token_ids], rows, confidence)


def draft_distribution(logits: Tensor, config: ModelDraftConfig) -> FloatArray:
    """Return ``(vocab_size,)`` float32: softmax of ``logits`` after temperature, top-k, top-p.

    Args:
        logits: ``(vocab_size,)``.
        config: the settings, with a temperature above 0.
    """
    scores = logits.double() / config.temperature
    if 0 < config.top_k < scores.shape[0]:
        limit = scores.topk(config.top_k).values[-1]
        scores = scores.masked_fill(scores < limit, -torch.inf)
    probs = torch.softmax(scores, -1)
    if config.top_p < 1:
        ordered, ids = probs.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= config.top_p  # the first is never beyond
        probs[ids[beyond]] = 0
        probs = probs / probs.sum()
    row: FloatArray = probs.float().cpu().numpy()
    return row


def _without(row: FloatArray, token: int) -> FloatArray:
    left = row.astype(np.float64)
    left[token] = 0
    total = left.sum()
    return (left / total if total > 0 else left).astype(np.float32)


def stacked_rows(rows: Sequence[FloatArray]) -> FloatArray | None:
    """Return the rows as ``(num_nodes, vocab_size)`` float32, ``None`` where there are none."""
    return np.stack(rows) if rows else None
