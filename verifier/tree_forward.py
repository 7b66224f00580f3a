"""The target model as trees see it: prefill, one forward for a batch of trees, commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import CompileConfig
from transformers.utils.generic import ModelOutput

from ..drafters import CandidateTree
from .block_masks import FLEX_ATTENTION, block_mask
from .caches import KeptColumns, LayerKeeper, keepers_of
from .compiled_steps import columns_that_fit, compiled_call
from .cpu.contiguous_cache import ContiguousCache
from .device.batched_walk import BatchedWalk, bucket_width
from .device.operations import device_operations
from .layout import TreeBatch, pack_trees
from .masks import Slots, additive_mask, tree_positions
from .model_support import plan_masks


class TreeForward:
    """Runs a causal language model of transformers on trees of candidates.

    Rows may have contexts of different lengths. The cache always holds every committed token but
    the last, which is the root of the next step.

    Attributes:
        cache: the key-value cache.
        context_lengths: tokens of each row in the cache.
        hidden_states: of the last forward, one ``(num_rows, width, hidden_size)`` for the
            embeddings and each layer; empty unless asked for.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: Cache | None = None,
        capacity: int = 0,
        num_tokens: int = 0,
        hidden_states: bool = False,
        compile_config: CompileConfig | None = None,
    ) -> None:
        """Check the model and the cache.

        Args:
            model: a decoder-only model; see :func:`.model_support.plan_masks`.
            cache: a cache to go on with (all rows equally long), or ``None``.
            capacity: slots that a new cache leaves room for, those of a step included.
            num_tokens: tokens of the longest row to come, for which a cache of fixed size must
                have room. Steps are cut to what is free beyond them.
            hidden_states: keep the hidden states of each forward.
            compile_config: compile the steps, on a static cache; their trees are padded to a few
                widths, so that compiled code is used again.

        Raises:
            ValueError: the model or the cache cannot verify trees.
        """
        self._model = model
        self._plan = plan_masks(model)
        self._operations = device_operations(model.device)
        # Sliding layers too keep all their slots, so that they can be cut back; the window then
        # lives in the mask.
        self.cache: Cache = ContiguousCache(capacity) if cache is None else cache
        self._keepers = keepers_of(self.cache, self._plan.layer_windows)
        self._max_slots = min((k.capacity for k in self._keepers if k.capacity), default=None)
        if self._max_slots is not None and self._max_slots < num_tokens:
            raise ValueError(
                f"expected a cache of fixed size with room for {num_tokens} tokens, got "
                f"{self._max_slots}"
            )
        self.context_lengths: list[int] = []
        self._num_slots = 0  # in use before the running step; a drafter may have moved them
        self._width = 0  # columns of the running step
        self._are_moved = False  # what the running step keeps, on the device
        self._call: Callable[..., ModelOutput] = model
        self._is_compiled = compile_config is not None
        if compile_config is not None:
            self._call = compiled_call(model, compile_config, self._keepers, self.cache)
        # Passed only where wanted: not every forward knows the option.
        self._options = {"output_hidden_states": True} if hidden_states else {}
        self.hidden_states: tuple[Tensor, ...] = ()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Run the prompts and return the logits after each one's last token.

        What the cache already holds is taken as the beginning of every prompt.

        Args:
            prompts: token ids of each row, at least one beyond what is cached.

        Returns:
            ``(num_rows, vocab_size)`` logits.

        Raises:
            ValueError: a prompt is not longer than the cached part, or there are more rows than
                the cache keeps exactly.
        """
        start = self._num_slots = int(self.cache.get_seq_length())
        lengths = [len(prompt) for prompt in prompts]
        if min(lengths) <= start:
            raise ValueError(
                f"expected prompts longer than the {start} cached tokens, got {min(lengths)}"
            )
        most = min((k.max_rows for k in self._keepers if k.max_rows), default=len(prompts))
        if len(prompts) > most:
            raise ValueError(
                f"expected a batch of {most} with a cache that is quantised in groups of tokens "
                f"(rows of different lengths would be quantised at other times than in plain "
                f"decoding), got {len(prompts)}"
            )
        device = self._model.device
        width = self._width = max(lengths) - start
        input_ids = torch.zeros((len(prompts), width), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            input_ids[row, : len(prompt) - start] = torch.as_tensor(prompt[start:])
        last = torch.tensor([[length - start - 1] for length in lengths], device=device)
        with self._step_layers(start):
            # Padding stands to the right of a row's own tokens, where causal attention hides it,
            # so no mask is needed; its slots are beyond the row's context length ever after.
            output: ModelOutput = self._model(
                input_ids=input_ids.to(device),
                position_ids=torch.arange(start, start + width, device=device)[None],
                cache=self.cache,
                use_cache=True,
                logits_to_keep=1 if len(prompts) == 1 else last,
                **self._options,
            )
        self._take_hidden_states(output)
        self._keepers += keepers_of(self.cache)[len(self._keepers) :]
        self._keep([start] * len(prompts), [range(length - start) for length in lengths])
        logits: Tensor = output["logits"][:, 0]
        return logits

    def fit(self, trees: Sequence[CandidateTree]) -> list[CandidateTree]:
        """Cut trees to what the next step can verify exactly.

        Args:
            trees: one a row.

        Returns:
            The trees, without what is too deep for a quantised cache or has no slot in one of
            fixed size. What is cut does not depend on a node's own token.
        """
        max_depth = min((k.max_depth for k in self._keepers if k.max_depth is not None), default=-1)
        fitted = list(trees)
        if max_depth >= 0:
            fitted = [tree.cut(tree.num_nodes, max_depth) for tree in fitted]
        if self._max_slots is not None:
            free = self._max_slots - int(self.cache.get_seq_length())
            room = (columns_that_fit(free) if self._is_compiled else max(free, 1)) - 1
            fitted = [tree if tree.num_nodes <= room else tree.keep(range(room)) for tree in fitted]
        return fitted

    def forward(self, trees: Sequence[CandidateTree], root_ids: Sequence[int]) -> Tensor:
        """Score all nodes of all rows in one forward.

        Args:
            trees: one a row, as :meth:`fit` returns them; an empty tree decodes plainly.
            root_ids: last committed token of each row.

        Returns:
            ``(num_rows, width, vocab_size)`` logits: entry 0 after the root, entry i + 1 after
            node i; the width is that of the largest tree, or more where steps are compiled.
        """
        device = self._model.device
        batch = pack_trees(trees, root_ids, device)
        if self._is_compiled:
            batch = batch.widened(bucket_width(batch.width))
        self._width = batch.width
        self._num_slots = int(self.cache.get_seq_length())
        lengths = self._lengths()
        masks = self._masks(batch, lengths)
        with self._step_layers(self._num_slots):
            output: ModelOutput = self._call(
                input_ids=batch.input_ids,
                attention_mask=next(iter(masks.values())) if len(masks) == 1 else masks,
                position_ids=tree_positions(batch, lengths),
                cache=self.cache,
                use_cache=True,
                **self._options,
            )
        self._take_hidden_states(output)
        logits: Tensor = output["logits"]
        return logits

    def move(self, walk: BatchedWalk) -> None:
        """Move the columns of a walk to where they stay, on the device; wait for nothing.

        Layers that are not kept in place are left to :meth:`commit`, which follows in any case.

        Args:
            walk: of the running step, on the model's device.
        """
        if self._width == 1 and min(self.context_lengths) == self._num_slots:
            return  # nothing was drafted, and what ran stands where it stays
        states = [state for keeper in self._keepers for state in keeper.states() or ()]
        lengths = self._lengths()
        forms: dict[object, list[Tensor]] = {}  # one launch for all tensors of one form
        for state in states:
            forms.setdefault((state.shape, state.stride(), state.dtype), []).append(state)
        for alike in forms.values():
            self._operations.compact_cache(
                alike, walk.columns, walk.lengths + 1, lengths, self._num_slots
            )
        self._are_moved = True

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Keep the root and the accepted nodes of each row in the cache and drop the others.

        Args:
            accepted: node indices of each row, from the root's child down; after :meth:`move`, the
                walk's own, or the beginning of its path.
        """
        columns = [[0, *(node + 1 for node in path)] for path in accepted]
        self._keep(self.context_lengths, columns)

    def select(self, rows: Sequence[int]) -> None:
        """Keep the given rows, in that order; the others are done."""
        self.context_lengths = [self.context_lengths[row] for row in rows]
        num_dropped = int(self.cache.get_seq_length()) - max(self.context_lengths)
        for keeper in self._keepers:
            keeper.select(torch.tensor(rows), num_dropped)

    def finish(self) -> None:
        """Leave the cache as it is: it holds all committed tokens but the last at any time."""

    def _masks(self, batch: TreeBatch, lengths: Tensor) -> dict[str, Tensor | BlockMask | None]:
        """Return the mask of each kind of layer, ``None`` where one column sees all keys."""
        masks: dict[str, Tensor | BlockMask | None] = {}
        plain = batch.width == 1 and min(self.context_lengths) == self._num_slots
        for kind, window in self._plan.windows.items():
            slots = self._slots(kind, batch.width)
            sees_all = window is None or slots.num_used < window
            # Compiled code takes a mask at every step or at none.
            if plain and sees_all and slots.num_unused == 0 and not self._is_compiled:
                masks[kind] = None
            elif self._model.config._attn_implementation == FLEX_ATTENTION:
                masks[kind] = block_mask(batch, lengths, slots, window)
            else:
                masks[kind] = additive_mask(batch, lengths, slots, self._model.dtype, window)
        return masks

    def _slots(self, kind: str, width: int) -> Slots:
        """Return where the keys of one kind of layer stand in the running step."""
        keeper = self._keepers[self._plan.first_layer(kind)]
        if keeper.right_aligned:
            return Slots(keeper.num_slots, right_aligned=True)
        unused = 0 if keeper.capacity is None else keeper.capacity - self._num_slots - width
        return Slots(self._num_slots, num_unused=unused)

    def _keep(self, lengths: Sequence[int], columns: Sequence[Sequence[int]]) -> None:
        kept = KeptColumns(lengths, self._num_slots, self._width, columns, self._are_moved)
        self._are_moved = False
        for keeper in self._keepers:
            keeper.keep(kept)
        self.context_lengths = kept.new_lengths

    @contextmanager
    def _step_layers(self, length: int) -> Iterator[None]:
        """Let the keepers' layers stand in the cache while the model runs."""
        own = list(self.cache.layers)
        keepers: list[LayerKeeper] = self._keepers
        self.cache.layers[: len(keepers)] = [keeper.begin(length) for keeper in keepers]
        try:
            yield
        finally:
            self.cache.layers[: len(own)] = own

    def _lengths(self) -> Tensor:
        return torch.tensor(self.context_lengths).to(self._model.device, non_blocking=True)

    def _take_hidden_states(self, output: ModelOutput) -> None:
        if self._options:
            self.hidden_states = tuple(output["hidden_states"])
