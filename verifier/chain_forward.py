"""Verification for models with a recurrent state: chains, row by row, by snapshot and replay.

A recurrent state has no slots: what a rejected token did to it cannot be cut away, and two branches
of a tree cannot share one forward. So the state of the last point where everything was accepted is
kept aside; after a rejection it is brought back, and the tokens that have been accepted since run
again at the head of the next step, in the same forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.utils.generic import ModelOutput

from ..drafters import ROOT, CandidateTree
from .device.batched_walk import BatchedWalk
from .recurrent_state import Snapshot, check_snapshot
from .replay_check import check_replay

_MAX_REPLAYED = 16
"""A longer run of accepted tokens is replayed by itself, so that steps do not grow."""


@dataclass(slots=True)
class _Row:
    """One row between steps.

    Attributes:
        cache: its own; other rows advance by other numbers.
        length: tokens in the cache, those to be replayed included.
        replayed: committed tokens that the state does not hold yet.
        snapshot: the state before the running step.
        columns: tokens of the running step, those replayed first.
    """

    cache: Cache
    length: int = 0
    replayed: list[int] = field(default_factory=list)
    snapshot: Snapshot | None = None
    columns: list[int] = field(default_factory=list)


class ChainForward:
    """Runs a model with a recurrent state on chains; the verbs of :class:`.TreeForward`.

    Attributes:
        context_lengths: tokens of each row in the cache.
        hidden_states: as in :class:`.TreeForward`.
    """

    def __init__(
        self, model: PreTrainedModel, cache: Cache | None = None, hidden_states: bool = False
    ) -> None:
        """Check the model and the cache.

        Args:
            model: a decoder-only model with recurrent layers.
            cache: a cache of one row to go on with, or ``None``.
            hidden_states: keep the hidden states of each forward.

        Raises:
            ValueError: a layer of which no snapshot is known, or a model that does not go on from
                its own state (:func:`.replay_check.check_replay`).
        """
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        self._given = cache
        check_snapshot(DynamicCache(config=self._config) if cache is None else cache)
        check_replay(model)
        self._takes = inspect.signature(model.forward).parameters
        self._options = {"output_hidden_states": True} if hidden_states else {}
        self._rows: list[_Row] = []
        self._num_started = 0
        self.hidden_states: tuple[Tensor, ...] = ()

    @property
    def cache(self) -> Cache | None:
        """The cache of a single row; several rows have one each, and none is shown."""
        return self._rows[0].cache if self._num_started == 1 else None

    @property
    def context_lengths(self) -> list[int]:
        """Tokens of each row in the cache."""
        return [row.length for row in self._rows]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Run the prompts; see :meth:`.TreeForward.prefill`.

        Raises:
            ValueError: a cache was given and there are several rows, or a prompt is not longer
                than what it holds.
        """
        if self._given is not None and len(prompts) > 1:
            raise ValueError(
                f"expected one row with a cache that holds a recurrent state, got {len(prompts)}"
            )
        outputs = []
        self._num_started = len(prompts)
        for prompt in prompts:
            cache = DynamicCache(config=self._config) if self._given is None else self._given
            start = _cached_length(cache)
            if len(prompt) <= start:
                raise ValueError(
                    f"expected prompts longer than the {start} cached tokens, got {len(prompt)}"
                )
            row = _Row(cache, start)
            self._rows.append(row)
            outputs.append(self._run(row, prompt[start:], 1))
            row.length = len(prompt)
        self._take_hidden_states(outputs, max(map(len, prompts)), align_left=True)
        return torch.cat([output["logits"][:, -1] for output in outputs])

    def fit(self, trees: Sequence[CandidateTree]) -> list[CandidateTree]:
        """Return one chain of each tree.

        Args:
            trees: one a row.

        Returns:
            The chain of the largest expected gain; of a tree that was drawn, that of the first
            draws, since a choice by probability would bias what is drawn.
        """
        return [
            tree.best_chain() if tree.draft_probs is None else tree.keep(_first_draws(tree))
            for tree in trees
        ]

    def forward(self, trees: Sequence[CandidateTree], root_ids: Sequence[int]) -> Tensor:
        """Score the chains; see :meth:`.TreeForward.forward`.

        Args:
            trees: chains, one a row.
            root_ids: last committed token of each row.

        Returns:
            ``(num_rows, 1 + max_nodes, vocab_size)`` logits, zeros in padding.
        """
        outputs = []
        width = 1 + max(tree.num_nodes for tree in trees)
        for row, tree, root in zip(self._rows, trees, root_ids, strict=True):
            if len(row.replayed) > _MAX_REPLAYED:
                self._run(row, row.replayed, 1)
                row.replayed = []
            row.columns = [*row.replayed, root, *tree.token_ids.tolist()]
            row.snapshot = Snapshot(row.cache)
            outputs.append(self._run(row, row.columns, 1 + tree.num_nodes))
        self._take_hidden_states(outputs, width)
        return torch.cat(
            [
                _padded(o["logits"][:, -1 - t.num_nodes :], width)
                for o, t in zip(outputs, trees, strict=True)
            ]
        )

    def move(self, walk: BatchedWalk) -> None:
        """Do nothing: a state is brought back, not moved; see :meth:`commit`."""

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Keep the root and the accepted nodes of each row; see :meth:`.TreeForward.commit`."""
        for row, path in zip(self._rows, accepted, strict=True):
            num_kept = len(row.replayed) + 1 + len(path)
            row.length += 1 + len(path)
            if num_kept == len(row.columns):
                row.replayed = []
            else:
                assert row.snapshot is not None
                row.snapshot.restore()
                row.replayed = row.columns[:num_kept]
            row.snapshot = None

    def select(self, rows: Sequence[int]) -> None:
        """Keep the given rows, in that order; the others are done."""
        self._rows = [self._rows[row] for row in rows]

    def finish(self) -> None:
        """Bring the states up to the committed tokens, for whoever goes on with the cache."""
        for row in self._rows:
            if row.replayed:
                self._run(row, row.replayed, 1)
                row.replayed = []

    def _run(self, row: _Row, token_ids: Sequence[int], num_logits: int) -> ModelOutput:
        """Run tokens behind the row's state; the last ``num_logits`` are asked for logits."""
        device = self._model.device
        start = row.length - len(row.replayed)
        inputs: dict[str, object] = {
            "input_ids": torch.tensor([list(token_ids)], device=device),
            "cache": row.cache,
            "use_cache": True,
            **self._options,
        }
        if "position_ids" in self._takes:
            inputs["position_ids"] = torch.arange(start, start + len(token_ids), device=device)[
                None
            ]
        if "logits_to_keep" in self._takes:
            inputs["logits_to_keep"] = num_logits
        output: ModelOutput = self._model(**inputs)
        return output

    def _take_hidden_states(
        self, outputs: Sequence[ModelOutput], width: int, align_left: bool = False
    ) -> None:
        """Keep ``(num_rows, width, hidden_size)`` a layer: the prompts, or each row's columns."""
        if not self._options:
            return
        layers = zip(*(output["hidden_states"] for output in outputs), strict=True)
        begins = [0 if align_left else len(row.replayed) for row in self._rows]
        self.hidden_states = tuple(
            torch.cat(
                [_padded(s[:, begin:], width) for s, begin in zip(states, begins, strict=True)]
            )
            for states in layers
        )


def _padded(states: Tensor, width: int) -> Tensor:
    """Return ``(1, width, size)`` states, zeros behind those given."""
    missing = width - states.shape[1]
    return torch.nn.functional.pad(states, (0, 0, 0, missing)) if missing else states


def _first_draws(tree: CandidateTree) -> list[int]:
    nodes: list[int] = []
    tip = ROOT
    for node, parent in enumerate(tree.parents.tolist()):
        if parent == tip:
            nodes.append(node)
            tip = node
    return nodes


def _cached_length(cache: Cache) -> int:
    """Return the tokens in a cache; one of recurrent layers only does not count them."""
    if all(cache.is_linear):
        if cache.has_previous_state():
            raise ValueError(
                "expected a fresh cache for a model of recurrent layers only, which does not "
                "count its tokens, got one that is in use"
            )
        return 0
    return cache.get_seq_length()
