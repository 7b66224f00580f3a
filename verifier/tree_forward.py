"""The target model as trees see it: prefill, one forward for a batch of trees, commit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ..drafters import CandidateTree
from .cpu.contiguous_cache import ContiguousCache
from .kv_cache import check_cache, keep_accepted, select_rows
from .layout import pack_trees
from .masks import additive_mask, tree_positions
from .model_support import plan_masks


class TreeForward:
    """Runs a causal language model of transformers on trees of candidates.

    Rows may have contexts of different lengths. The cache always holds every committed token but
    the last, which is the root of the next step.

    Attributes:
        cache: the key-value cache, left-aligned rows.
        context_lengths: tokens of each row in the cache.
    """

    def __init__(
        self, model: PreTrainedModel, cache: Cache | None = None, capacity: int = 0
    ) -> None:
        """Check the model and the cache.

        Args:
            model: a decoder-only model; see :func:`.model_support.plan_masks`.
            cache: a cache to go on with (all rows equally long), or ``None``.
            capacity: tokens of the longest row to come, for which a new cache leaves room.

        Raises:
            ValueError: the model or the cache cannot verify trees.
        """
        self._model = model
        self._plan = plan_masks(model)
        if cache is not None:
            check_cache(cache)
        # Sliding layers too keep all their slots, so that they can be cut back; the window then
        # lives in the mask.
        self.cache: Cache = ContiguousCache(capacity) if cache is None else cache
        self.context_lengths: list[int] = []
        self._num_slots = 0  # physical length of the cache before the running step

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Run the prompts and return the logits after each one's last token.

        What the cache already holds is taken as the beginning of every prompt.

        Args:
            prompts: token ids of each row, at least one beyond what is cached.

        Returns:
            ``(num_rows, vocab_size)`` logits.

        Raises:
            ValueError: a prompt is not longer than the cached part.
        """
        start = self.cache.get_seq_length()
        lengths = [len(prompt) for prompt in prompts]
        if min(lengths) <= start:
            raise ValueError(
                f"expected prompts longer than the {start} cached tokens, got {min(lengths)}"
            )
        device = self._model.device
        width = max(lengths) - start
        input_ids = torch.zeros((len(prompts), width), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            input_ids[row, : len(prompt) - start] = torch.as_tensor(prompt[start:])
        last = torch.tensor([[length - start - 1] for length in lengths], device=device)
        # Padding stands to the right of a row's own tokens, where causal attention hides it, so
        # no mask is needed; its slots are beyond the row's context length ever after.
        output = self._model(
            input_ids=input_ids.to(device),
            position_ids=torch.arange(start, start + width, device=device)[None],
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1 if len(prompts) == 1 else last,
        )
        self.context_lengths = lengths
        logits: Tensor = output.logits[:, 0]
        return logits

    def forward(self, trees: Sequence[CandidateTree], root_ids: Sequence[int]) -> Tensor:
        """Score all nodes of all rows in one forward.

        Args:
            trees: one a row; an empty tree decodes plainly.
            root_ids: last committed token of each row.

        Returns:
            ``(num_rows, 1 + max_nodes, vocab_size)`` logits: entry 0 after the root, entry i + 1
            after node i.
        """
        device = self._model.device
        batch = pack_trees(trees, root_ids, device)
        num_slots = self._num_slots = self.cache.get_seq_length()
        lengths = torch.tensor(self.context_lengths, device=device)
        plain = batch.width == 1 and min(self.context_lengths) == num_slots
        masks = {
            kind: None
            if plain and (window is None or num_slots < window)
            else additive_mask(batch, lengths, num_slots, self._model.dtype, window)
            for kind, window in self._plan.windows.items()
        }
        output = self._model(
            input_ids=batch.input_ids,
            attention_mask=next(iter(masks.values())) if len(masks) == 1 else masks,
            position_ids=tree_positions(batch, lengths),
            cache=self.cache,
            use_cache=True,
        )
        logits: Tensor = output.logits
        return logits

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Keep the root and the accepted nodes of each row in the cache and drop the others.

        Args:
            accepted: node indices of each row, from the root's child down.
        """
        columns = [[0, *(node + 1 for node in path)] for path in accepted]
        self.context_lengths = keep_accepted(
            self.cache, self.context_lengths, self._num_slots, columns
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep the given rows, in that order; the others are done."""
        select_rows(self.cache, rows)
        self.context_lengths = [self.context_lengths[row] for row in rows]
