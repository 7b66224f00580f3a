"""Trees that grow level by level on top of a cache: what drafters run a model with.

Verification knows its whole tree beforehand (:class:`.tree_forward.TreeForward`). A drafter learns
what follows a node only by running it, so its tree grows over several forwards, each of which sees
the context, the ancestors of its own nodes in earlier forwards, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ..drafters import ROOT, RequestId
from ..drafters.model_drafting.runner import NewNodes
from .caches import keep_accepted
from .model_support import MaskPlan, plan_masks
from .tree_forward import TreeForward


class TreeGrowth:
    """A :class:`TreeForward`'s rows, as :class:`freedraft.drafters.model_drafting.TreeRunner`.

    Between two calls of :meth:`keep` the cache holds the tree's tokens behind the context. It may
    be the cache that a verifier works on, as long as the tree is dropped before the verifier's
    turn: then it is as it was. Layers that did not run (a drafter may skip some) have nothing to
    drop.

    Attributes:
        request_ids: the request of each row; set by whoever owns the rows.
    """

    def __init__(self, model: PreTrainedModel, target: TreeForward) -> None:
        """Grow trees on the rows of ``target``, which runs ``model``."""
        self._model = model
        self._target = target
        self._plan: MaskPlan | None = None  # found when it is first needed
        self.request_ids: list[RequestId] = []
        self._num_slots = 0  # physical length of the cache without the tree
        self._depths = torch.zeros((0, 0), dtype=torch.int64)  # (num_rows, num_fed)
        self._visible = torch.zeros((0, 0, 0), dtype=torch.bool)  # (num_rows, num_fed, num_fed)

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        return self._model

    @property
    def context_lengths(self) -> list[int]:
        """Of each row, tokens in the cache, those of the tree left out."""
        return self._target.context_lengths

    @property
    def max_context(self) -> int:
        """The longest text that the model can take."""
        config = self._model.config.get_text_config(decoder=True)
        return getattr(config, "max_position_embeddings", None) or sys.maxsize

    def prefill(self, texts: Sequence[Sequence[int]]) -> None:
        """Run the rows' texts; see :meth:`TreeForward.prefill`."""
        with torch.no_grad():
            self._target.prefill(texts)

    def grow(self, nodes: Sequence[NewNodes]) -> tuple[Tensor, int]:
        """Run new tokens of all rows in one forward.

        Args:
            nodes: one a row, in the rows' order; not all empty.

        Returns:
            ``(num_rows, width, vocab_size)`` logits after each new token, padding included, and the
            number of the first of them.

        Raises:
            ValueError: a cache that cannot be cut back, or a parent that does not stand before.
        """
        first = self._visible.shape[1]
        if first == 0:
            self._layers()  # checked before anything is appended
            self._clear()
            self._num_slots = self._target.cache.get_seq_length()
        input_ids = self._append(nodes)
        lengths = torch.tensor(self.context_lengths)
        positions = lengths[:, None] + self._depths - 1  # (num_rows, num_fed)
        width = input_ids.shape[1]
        in_context = (torch.arange(self._num_slots) < lengths[:, None])[:, None, :]
        in_context = in_context.expand(-1, width, -1)
        in_tree = self._visible[:, first:]
        logits = self._forward(input_ids, positions, in_context, in_tree)
        return logits, first

    def rescore(self, recent: Sequence[Sequence[int]]) -> Tensor:
        """Run the context's last tokens once more, each by itself; only while there is no tree.

        Args:
            recent: of each row, the last tokens of its context; not all empty.

        Returns:
            ``(num_rows, width, vocab_size)`` logits after each, padding included: each token sees
            the cached states of what stands before it, and its own new one.

        Raises:
            ValueError: a cache that cannot be cut back.
        """
        self._layers()  # checked before anything is appended
        self._num_slots = self._target.cache.get_seq_length()
        width = max(map(len, recent))
        input_ids = torch.zeros((len(recent), width), dtype=torch.int64)
        for row, tokens in enumerate(recent):
            input_ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        lengths = torch.tensor(self.context_lengths)
        starts = lengths - torch.tensor([len(tokens) for tokens in recent])
        positions = starts[:, None] + torch.arange(width)
        in_context = torch.arange(self._num_slots) < positions[:, :, None]
        in_tree = torch.eye(width, dtype=torch.bool).expand(len(recent), -1, -1)
        try:
            return self._forward(input_ids, positions, in_context, in_tree)
        finally:
            self._drop()

    def keep(self, numbers: Sequence[Sequence[int]]) -> None:
        """Make a path of each row's tree part of its context, drop the rest, begin a new tree.

        Args:
            numbers: of each row, increasing along one path from the context's end.
        """
        if any(numbers):
            self._target.context_lengths = keep_accepted(
                self._target.cache, self.context_lengths, self._num_slots, numbers
            )
        elif self._visible.shape[1]:
            self._drop()
        self._clear()

    def select(self, rows: Sequence[int]) -> None:
        """Keep the given rows, in that order; only while there is no tree."""
        self._target.select(rows)
        self.request_ids = [self.request_ids[row] for row in rows]

    def _layers(self) -> list[DynamicLayer]:
        """Return the cache's layers.

        Raises:
            ValueError: one from which a draft cannot be dropped.
        """
        layers: list[DynamicLayer] = []
        for layer in self._target.cache.layers:
            if not isinstance(layer, DynamicLayer) or not layer.is_croppable or layer.is_sliding:
                raise ValueError(
                    f"expected a cache of full-length dynamic layers to draft on, got "
                    f"{type(layer).__name__}, from which a draft cannot be dropped"
                )
            layers.append(layer)
        return layers

    def _drop(self) -> None:
        """Cut the cache to the context, each layer by its own length: some did not run."""
        for layer in self._layers():
            layer.crop(min(self._num_slots - layer.get_seq_length(), 0))

    def _clear(self) -> None:
        num_rows = len(self.context_lengths)
        self._depths = torch.zeros((num_rows, 0), dtype=torch.int64)
        self._visible = torch.zeros((num_rows, 0, 0), dtype=torch.bool)

    def _append(self, nodes: Sequence[NewNodes]) -> Tensor:
        """Add columns for new nodes; return their ids, ``(num_rows, width)`` int64."""
        num_rows, first = self._depths.shape
        width = max(len(row.token_ids) for row in nodes)
        stop = first + width
        input_ids = torch.zeros((num_rows, width), dtype=torch.int64)
        depths = torch.ones((num_rows, stop), dtype=torch.int64)
        depths[:, :first] = self._depths
        visible = torch.zeros((num_rows, stop, stop), dtype=torch.bool)
        visible[:, :first, :first] = self._visible
        visible[:, range(stop), range(stop)] = True  # padding sees itself only
        for row, new in enumerate(nodes):
            for column, (token, parent) in enumerate(
                zip(new.token_ids, new.parents, strict=True), start=first
            ):
                if not ROOT <= parent < column:
                    raise ValueError(f"expected a parent in -1..{column - 1}, got {parent}")
                input_ids[row, column - first] = token
                if parent != ROOT:
                    depths[row, column] = depths[row, parent] + 1
                    visible[row, column] |= visible[row, parent]
        self._depths, self._visible = depths, visible
        return input_ids

    def _forward(
        self, input_ids: Tensor, positions: Tensor, in_context: Tensor, in_tree: Tensor
    ) -> Tensor:
        """Run new columns.

        Args:
            input_ids: ``(num_rows, width)`` int64.
            positions: ``(num_rows, num_fed)`` int64, of the tree's columns, the new ones last.
            in_context: ``(num_rows, width, num_slots)`` bool, cached slots that each may see.
            in_tree: ``(num_rows, width, num_fed)`` bool, columns of the tree that each may see.

        Returns:
            ``(num_rows, width, vocab_size)`` logits.
        """
        device, dtype = self._model.device, self._model.dtype
        if self._plan is None:
            self._plan = plan_masks(self._model)
        new_positions = positions[:, -input_ids.shape[1] :]
        masks: dict[str, Tensor] = {}
        for kind, window in self._plan.windows.items():
            allowed = torch.cat([in_context, in_tree], dim=-1)
            if window is not None:
                oldest = new_positions[:, :, None] - window + 1  # (num_rows, width, 1)
                slots = torch.arange(self._num_slots).expand(len(positions), -1)
                allowed = allowed & (torch.cat([slots, positions], dim=-1)[:, None] >= oldest)
            mask = torch.zeros(allowed.shape, dtype=dtype)
            masks[kind] = mask.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None].to(device)
        with torch.no_grad():
            output = self._model(
                input_ids=input_ids.to(device),
                attention_mask=next(iter(masks.values())) if len(masks) == 1 else masks,
                position_ids=new_positions.to(device),
                cache=self._target.cache,
                use_cache=True,
            )
        logits: Tensor = output.logits
        return logits
