"""What a generation returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import Cache

from ..statistics import GenerationStatistics, StepReport
from .decode_row import DecodeRow


@dataclass(slots=True)
class GenerationResult:
    """All that a generation has to tell.

    Attributes:
        sequences: ``(batch, length)`` int64 as transformers returns them: left padding, prompt, new
            tokens, right padding.
        token_ids: new tokens of each row, the one that ended it included.
        finish_reasons: of each row: ``"eos"``, ``"stop"`` (a stop string), ``"criteria"`` (one of
            the caller's), ``"length"`` or ``"context"``.
        logprobs: log-probability of each new token under the target's raw logits.
        statistics: counts and times.
        steps: each row's part in each target step, in order.
        texts: decoded new tokens of each row, when a tokenizer was given.
        scores: of each new position a ``(batch, vocab_size)`` float32 tensor of processed scores,
            with ``output_scores``; zeros for rows that had ended.
        logits: the same before the processors, with ``output_logits``.
        hidden_states: of each new position, one ``(batch, num_columns, hidden_size)`` for the
            embeddings and each layer, with ``output_hidden_states``; the prompt's columns at the
            first position, then one. Zeros in left padding and for rows that had ended.
        cache: the target's key-value cache, all tokens of the longest-running rows but the last;
            ``None`` where each of several rows has one of its own (recurrent models).
    """

    sequences: Tensor
    token_ids: list[list[int]]
    finish_reasons: list[str]
    logprobs: list[list[float]]
    statistics: GenerationStatistics
    steps: list[StepReport] = field(default_factory=list)
    texts: list[str] | None = None
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    hidden_states: tuple[tuple[Tensor, ...], ...] | None = None
    cache: Cache | None = None

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[DecodeRow],
        sequences: Tensor,
        statistics: GenerationStatistics,
        steps: list[StepReport],
        cache: Cache | None,
    ) -> GenerationResult:
        """Collect what finished rows hold."""
        recording = rows[0].recording
        return cls(
            sequences=sequences,
            token_ids=[row.token_ids for row in rows],
            finish_reasons=[row.finish_reason or "" for row in rows],
            logprobs=[row.logprobs for row in rows],
            statistics=statistics,
            steps=steps,
            scores=_stack([row.scores for row in rows]) if recording.scores else None,
            logits=_stack([row.logits for row in rows]) if recording.logits else None,
            hidden_states=_stack_layers(rows) if recording.hidden_states else None,
            cache=cache,
        )

    @classmethod
    def of_nothing(cls, input_ids: Tensor) -> GenerationResult:
        """Return the result of a call that asks for no tokens."""
        num_rows = input_ids.shape[0]
        return cls(
            sequences=input_ids,
            token_ids=[[] for _ in range(num_rows)],
            finish_reasons=["length"] * num_rows,
            logprobs=[[] for _ in range(num_rows)],
            statistics=GenerationStatistics(),
        )


def padded_sequences(
    rows: Sequence[DecodeRow], input_ids: Tensor, config: GenerationConfig
) -> Tensor:
    """Return ``(batch, length)`` ids as transformers does: rows that ended early are padded."""
    pad = config._pad_token_tensor
    longest = max(row.length for row in rows)
    sequences = input_ids.new_full((len(rows), longest), 0 if pad is None else int(pad))
    for row in rows:
        sequences[row.index, : row.length] = row.history[0, : row.length]
    return sequences


def _stack(per_row: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """Turn each row's ``(1, vocab_size)`` tensors into ``(batch, vocab_size)`` by position."""
    longest = max(map(len, per_row))
    blank = torch.zeros_like(per_row[0][0])
    return tuple(
        torch.cat([row[position] if position < len(row) else blank for row in per_row])
        for position in range(longest)
    )


def _stack_layers(rows: Sequence[DecodeRow]) -> tuple[tuple[Tensor, ...], ...]:
    """Turn each row's hidden states into ``(batch, num_columns, hidden_size)`` by position."""
    longest = max(len(row.hidden_states) for row in rows)
    positions = []
    for position in range(longest):
        given = [row.hidden_states[position : position + 1] for row in rows]
        first = next(layers[0] for layers in given if layers)
        width = max(layers[0][0].shape[1] for layers in given if layers)
        blank = tuple(torch.zeros_like(layer[:, :1]) for layer in first)
        per_row = [layers[0] if layers else blank for layers in given]
        positions.append(
            tuple(
                torch.cat([_left_padded(layer, width) for layer in layers])
                for layers in zip(*per_row, strict=True)
            )
        )
    return tuple(positions)


def _left_padded(states: Tensor, width: int) -> Tensor:
    """Return ``(1, width, hidden_size)`` states, zeros in front of those given."""
    return torch.nn.functional.pad(states, (0, 0, width - states.shape[1], 0))
