"""A step's decisions on the device: the target's tokens, the walk, and one copy for the host.

Between the model's forward and that copy nothing waits, so that the host may go on queueing work
that needs the walk's result, such as the compaction of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...drafters import CandidateTree
from .batched_sampling import RowSampling
from .batched_walk import BatchedWalk, column_depths, stack_trees
from .operations import DeviceOperations

IntArray64 = npt.NDArray[np.int64]
FloatArray64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the host wants to know beside the emitted tokens.

    Attributes:
        logprobs: log-probabilities of the target's tokens.
        num_top_ids: how many of the most likely tokens after each column; 0 for none.
    """

    logprobs: bool = False
    num_top_ids: int = 0


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A step as the host knows it.

    Attributes:
        token_ids: of each row, the A + 1 emitted tokens.
        columns: of each row, the root's column and the A accepted ones: token i was chosen after
            column i.
        choices: ``(num_rows, width)`` int64, the argmax of the raw logits after each column.
        highest: ``(num_rows, width)`` float64, the raw logit of that token.
        logprobs: ``(num_rows, width)`` float64, of the target's token after each column under the
            raw logits, if wanted.
        top_ids: ``(num_rows, width, k)`` int64, the best first, if wanted.
        top_logprobs: ``(num_rows, width, k)`` float64, under the raw logits, if wanted.
    """

    token_ids: list[list[int]]
    columns: list[list[int]]
    choices: IntArray64
    highest: FloatArray64
    logprobs: FloatArray64 | None = None
    top_ids: IntArray64 | None = None
    top_logprobs: FloatArray64 | None = None


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that is queued on the device.

    Attributes:
        walk: what it will have emitted.
        packed: ``(num_rows, width, num_numbers)`` int64: emitted token, kept column and argmax,
            its logit, what else is wanted; logits and log-probabilities as the bits of float64.
        wanted: what is packed.
    """

    walk: BatchedWalk
    packed: Tensor
    wanted: Wanted

    def outcome(self) -> StepOutcome:
        """Wait for the device, and return what it has decided; this is the step's only copy."""
        packed: IntArray64 = self.packed.cpu().numpy()
        numbers = packed.view(np.float64)
        tokens, columns = packed[..., 0].tolist(), packed[..., 1].tolist()
        lengths = [sum(column >= 0 for column in row) for row in columns]
        num_top, first = self.wanted.num_top_ids, 4 + self.wanted.logprobs
        return StepOutcome(
            [row[:length] for row, length in zip(tokens, lengths, strict=True)],
            [row[:length] for row, length in zip(columns, lengths, strict=True)],
            packed[..., 2],
            numbers[..., 3],
            numbers[..., 4] if self.wanted.logprobs else None,
            packed[..., first : first + num_top] if num_top else None,
            numbers[..., first + num_top :] if num_top else None,
        )


def launch_step(
    logits: Tensor,
    trees: Sequence[CandidateTree],
    positions: Sequence[int],
    sampling: RowSampling,
    operations: DeviceOperations,
    wanted: Wanted,
) -> LaunchedStep:
    """Queue a step's decisions behind its forward, and wait for nothing.

    Args:
        logits: ``(num_rows, width, vocab_size)``: entry 0 after the root, entry i + 1 after node i.
        trees: one a row, at most ``width - 1`` nodes.
        positions: of each row, the absolute position of the first token that the step emits.
        sampling: how each row chooses, on the device of the logits.
        operations: what runs there.
        wanted: what the host wants to know.
    """
    device = logits.device
    stacked = stack_trees(trees, [0] * len(trees), logits.shape[1], device)
    first = torch.tensor(positions).to(device, non_blocking=True)
    chosen = operations.choose_tokens(
        logits, first[:, None] + column_depths(stacked.parents), sampling
    )
    walk = operations.walk_trees(chosen, stacked.token_ids, stacked.parents)
    # Plain decoding in transformers rounds float64 to float32 before it chooses; so do we.
    rounded = logits.float() if logits.dtype == torch.float64 else logits
    best = rounded.argmax(-1) if sampling.samples else chosen
    highest = rounded.gather(2, best[..., None])
    parts = [walk.token_ids[..., None], walk.columns[..., None], best[..., None], _bits(highest)]
    if wanted != Wanted():
        # Faster than the log-sum-exp of the rows, though it writes them all.
        logprobs = rounded.float().log_softmax(-1)
        if wanted.logprobs:
            parts.append(_bits(logprobs.gather(2, chosen[..., None])))
        if wanted.num_top_ids:
            top = logprobs.topk(wanted.num_top_ids, -1)
            parts += [top.indices, _bits(top.values)]
    return LaunchedStep(walk, torch.cat(parts, 2), wanted)


def _bits(values: Tensor) -> Tensor:
    return values.double().view(torch.int64)
