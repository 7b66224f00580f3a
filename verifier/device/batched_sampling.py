"""The target's choice at every column of a batch at once, with the common score processors.

The order and the meaning are those of transformers: temperature, top-k, top-p, min-p. Where
transformers rounds (cumulated probabilities in float32, ties cut by the order of a sort), this is
exact: float64, and tokens of equal score stay or go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..noise import TARGET_DRAW, NoiseKey, philox

_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How each row of a batch samples; all of one device.

    Attributes:
        temperature: ``(num_rows,)`` float32, 0 for greedy choice.
        top_k: ``(num_rows,)`` int64, 0 for all tokens.
        top_p: ``(num_rows,)`` float64 in (0, 1], 1 for all tokens.
        min_p: ``(num_rows,)`` float64 in [0, 1), 0 for all tokens.
        keys: ``(num_rows, 3)`` int64: low and high word of the seed, and the stream.
        samples: whether any row has a temperature; known on the host, so that nothing waits.
        cuts: whether any row has top-k, top-p or min-p.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    keys: Tensor
    samples: bool
    cuts: bool

    @classmethod
    def build(
        cls,
        keys: Sequence[NoiseKey],
        temperature: Sequence[float],
        top_k: Sequence[int] | None = None,
        top_p: Sequence[float] | None = None,
        min_p: Sequence[float] | None = None,
        device: torch.device | str = "cpu",
    ) -> RowSampling:
        """Check the settings and bring them to the device.

        Args:
            keys: noise of each row.
            temperature: of each row, 0 for greedy choice.
            top_k: of each row, 0 for all tokens.
            top_p: of each row, 1 for all tokens.
            min_p: of each row, 0 for all tokens.
            device: where the tensors are put.

        Raises:
            ValueError: a setting is out of its range, or the numbers of rows differ.
        """
        num_rows = len(keys)
        top_k = [0] * num_rows if top_k is None else top_k
        top_p = [1.0] * num_rows if top_p is None else top_p
        min_p = [0.0] * num_rows if min_p is None else min_p
        counts = [len(values) for values in (temperature, top_k, top_p, min_p)]
        if counts != [num_rows] * 4:
            raise ValueError(f"expected settings of {num_rows} rows, got {counts}")
        if min(temperature) < 0 or min(top_k) < 0:
            raise ValueError(
                f"expected temperature and top_k >= 0, got {min(temperature)} and {min(top_k)}"
            )
        if not all(0 < p <= 1 for p in top_p) or not all(0 <= p < 1 for p in min_p):
            raise ValueError(
                f"expected top_p in (0, 1] and min_p in [0, 1), got {top_p} and {min_p}"
            )
        words = [[k.seed & _WORD, (k.seed >> 32) & _WORD, k.stream & _WORD] for k in keys]
        return cls(
            torch.tensor(temperature, dtype=torch.float32, device=device),
            torch.tensor(top_k, dtype=torch.int64, device=device),
            torch.tensor(top_p, dtype=torch.float64, device=device),
            torch.tensor(min_p, dtype=torch.float64, device=device),
            torch.tensor(words, dtype=torch.int64, device=device),
            max(temperature) > 0,
            max(top_k) > 0 or min(top_p) < 1 or max(min_p) > 0,
        )


def process_scores(logits: Tensor, sampling: RowSampling) -> Tensor:
    """Return ``(num_rows, width, vocab_size)`` float32 scores, minus infinity where cut away.

    Rows of temperature 0 keep their logits: their choice is the argmax.

    Args:
        logits: ``(num_rows, width, vocab_size)``.
        sampling: of each row.
    """
    temperature = sampling.temperature[:, None, None]
    scores = logits.float() / torch.where(temperature > 0, temperature, 1)
    if not sampling.cuts:
        return scores
    vocab_size = logits.shape[-1]
    ordered = scores.sort(dim=-1, descending=True).values
    # Each cut is a lowest score that stays; the highest of the three holds.
    top_k = sampling.top_k.clamp(max=vocab_size)
    last = torch.where(top_k > 0, top_k, vocab_size) - 1
    last = last[:, None, None].expand(*logits.shape[:2], 1)
    floor = ordered.gather(2, last)  # (num_rows, width, 1)
    weights = (ordered.double() - ordered[..., :1].double()).exp()
    weights = weights.where(ordered >= floor, 0)
    # A token stays when it and all lower ones hold more than 1 - top_p; equal scores count as one.
    below = weights.flip(-1).cumsum(-1)
    spare = (1 - sampling.top_p)[:, None, None] * below[..., -1:]
    ascending = ordered.flip(-1)
    is_last_of_ties = torch.ones_like(ascending, dtype=torch.bool)
    is_last_of_ties[..., :-1] = ascending[..., :-1] != ascending[..., 1:]
    first_kept = ((below > spare) & is_last_of_ties).long().argmax(-1, keepdim=True)
    nucleus_floor = torch.maximum(floor, ascending.gather(2, first_kept))
    floor = torch.where((sampling.top_p < 1)[:, None, None], nucleus_floor, floor)
    relative = (scores.double() - ordered[..., :1].double()).exp()
    kept = (scores >= floor) & ~(relative < sampling.min_p[:, None, None])
    return scores.where(kept | (temperature <= 0), -torch.inf)


def choose_tokens(logits: Tensor, positions: Tensor, sampling: RowSampling) -> Tensor:
    """Return ``(num_rows, width)`` int64: the target's token after each column.

    The same as :func:`.sampling.choose_token` on each column's processed scores.

    Args:
        logits: ``(num_rows, width, vocab_size)``.
        positions: ``(num_rows, width)`` int64, absolute position of the token that is chosen: one
            more than the column's own.
        sampling: of each row.
    """
    scores = process_scores(logits, sampling)
    if not sampling.samples:
        return scores.argmax(-1)
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    chosen = []
    for row in range(logits.shape[0]):  # one row's noise at a time: it is wider than the logits
        noise = _gumbel_noise(sampling.keys[row], positions[row][:, None], token_ids)
        noise = noise.where(sampling.temperature[row] > 0, 0)
        chosen.append((scores[row].double() + noise).argmax(-1))
    return torch.stack(chosen)


def _gumbel_noise(key: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Return what :func:`.noise.gumbel_noise` does for positions and a key that are tensors."""
    zero = torch.zeros_like(positions)
    counter = (token_ids, positions & _WORD, zero + key[2], zero + TARGET_DRAW)
    # The key's words enter the same integer arithmetic, whether numbers or tensors.
    high, low, _, _ = philox(counter, cast(tuple[int, int], (key[0], key[1])))
    bits = (high >> 5).double() * 2.0**26 + (low >> 6).double()
    return -torch.log(-torch.log((bits + 0.5) * 2.0**-53))
