"""The walk of all rows at once, where the logits lie; the host waits once a step, for its result.

Possible where a row's next token is a function of its logits, its place and a few numbers:
greedily without processors, or sampled with temperature, top-k, top-p and min-p in transformers'
own order. Other rows are walked on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ...drafters import CandidateTree
from ...drafters.tree import IntArray
from ...verifier import NoiseKey, WalkResult
from ...verifier.device.batched_sampling import RowSampling
from ...verifier.device.batched_walk import MAX_NODES
from ...verifier.device.launched_step import LaunchedStep, StepOutcome, Wanted, launch_step
from ...verifier.device.operations import device_operations
from .decode_row import DecodeRow
from .row_walk import TopIds

_FUSED = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)


@dataclass(frozen=True, slots=True)
class _Settings:
    """How a row chooses, in the words of :class:`.RowSampling`."""

    key: NoiseKey
    temperature: float
    top_k: int
    top_p: float
    min_p: float


@dataclass(frozen=True, slots=True)
class DeviceRowWalk:
    """One row of a step that was walked on the device; see :class:`.row_walk.RowWalk`.

    Attributes:
        row: whose tokens are emitted.
        tree: what was verified.
        outcome: of all rows.
        place: the row's place among them.
    """

    row: DecodeRow
    tree: CandidateTree
    outcome: StepOutcome
    place: int

    @property
    def choices(self) -> IntArray:
        return self.outcome.choices[self.place, : self.tree.num_nodes + 1].astype(np.int32)

    def emit(self) -> WalkResult:
        """Commit the tokens until the row ends.

        Raises:
            ValueError: sampling from logits that are all minus infinity, or hold a nan.
        """
        columns = self.outcome.columns[self.place]
        logprobs = self.outcome.logprobs
        emitted: list[int] = []
        for token, column in zip(self.outcome.token_ids[self.place], columns, strict=True):
            if self.row.key is not None and not self.outcome.highest[self.place, column] > -np.inf:
                raise ValueError("expected at least one possible token, got scores of -inf or nan")
            emitted.append(token)
            logprob = None if logprobs is None else float(logprobs[self.place, column])
            if not self.row.emit(token, logprob):
                break
        return WalkResult(emitted, [column - 1 for column in columns[1 : len(emitted) + 1]])

    def top_ids(self, num_ids: int) -> TopIds:
        ids, logprobs = self.outcome.top_ids, self.outcome.top_logprobs
        assert ids is not None and logprobs is not None
        part = np.s_[self.place, : self.tree.num_nodes + 1, :num_ids]
        return ids[part].astype(np.int32), logprobs[part].astype(np.float32)


class DeviceWalk:
    """Walks the rows of a generation on the device of its logits."""

    def __init__(self, device: torch.device) -> None:
        """Choose the operations of ``device``."""
        self._device = device
        self._operations = device_operations(device)
        self._sampled: tuple[int, ...] = ()  # the rows that the settings on the device belong to
        self._sampling: RowSampling | None = None

    def serves(self, rows: Sequence[DecodeRow], trees: Sequence[CandidateTree]) -> bool:
        """Say whether these trees can be walked here: they are not too large and none was drawn."""
        return all(
            tree.num_nodes <= MAX_NODES and (tree.draft_probs is None or row.key is None)
            for row, tree in zip(rows, trees, strict=True)
        )

    def launch(
        self,
        rows: Sequence[DecodeRow],
        trees: Sequence[CandidateTree],
        logits: Tensor,
        num_top_ids: int,
    ) -> LaunchedStep:
        """Queue the walk of all rows behind the forward.

        Args:
            rows: rows without :func:`obstacle`.
            trees: one a row, which :meth:`serves` has said yes to.
            logits: ``(num_rows, width, vocab_size)``.
            num_top_ids: how many of the most likely tokens the drafter asks for.
        """
        wanted = Wanted(rows[0].recording.logprobs, num_top_ids)
        positions = [row.position for row in rows]
        sampling = self._sampling_of(rows)
        return launch_step(logits, trees, positions, sampling, self._operations, wanted)

    def _sampling_of(self, rows: Sequence[DecodeRow]) -> RowSampling:
        """Return the rows' settings; they go to the device when a row has ended, not each step."""
        indices = tuple(row.index for row in rows)
        if self._sampling is None or indices != self._sampled:
            settings = [_settings(row) for row in rows]
            self._sampling = RowSampling.build(
                [one.key for one in settings],
                [one.temperature for one in settings],
                [one.top_k for one in settings],
                [one.top_p for one in settings],
                [one.min_p for one in settings],
                self._device,
            )
            self._sampled = indices
        return self._sampling


def device_row_walks(
    rows: Sequence[DecodeRow], trees: Sequence[CandidateTree], step: LaunchedStep
) -> list[DeviceRowWalk]:
    """Wait for a launched step, and return each row's part in it."""
    outcome = step.outcome()
    return [
        DeviceRowWalk(row, tree, outcome, place)
        for place, (row, tree) in enumerate(zip(rows, trees, strict=True))
    ]


def obstacle(row: DecodeRow) -> str | None:
    """Return what of a row needs the host at every token, or ``None``."""
    if row.grammar is not None:
        return "a grammar"
    if row.recording.scores or row.recording.logits:
        return "output_scores or output_logits"
    order = [_FUSED.index(type(p)) if type(p) in _FUSED else -1 for p in row.processors]
    in_order = order == sorted(set(order)) and -1 not in order
    if in_order and (row.key is not None or not order) and all(map(_is_usual, row.processors)):
        return None
    return ", ".join(type(processor).__name__ for processor in row.processors)


def _is_usual(processor: Any) -> bool:
    """Say whether a warper cuts as the device does: to minus infinity, one token left at least."""
    return bool(
        getattr(processor, "filter_value", -np.inf) == -np.inf
        and getattr(processor, "min_tokens_to_keep", 1) == 1
        and getattr(processor, "top_p", 1.0) > 0
        and getattr(processor, "min_p", 0.0) < 1
    )


def _settings(row: DecodeRow) -> _Settings:
    if row.key is None:
        return _Settings(NoiseKey(0), 0.0, 0, 1.0, 0.0)
    found: dict[str, Any] = {}
    for processor in row.processors:
        found |= vars(processor)
    return _Settings(
        row.key,
        found.get("temperature", 1.0),
        found.get("top_k", 0),
        found.get("top_p", 1.0),
        found.get("min_p", 0.0),
    )
