"""Stands in a cache for one of its layers while a step runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin


class StepLayer(CacheLayerMixin):
    """Shows the model what a layer holds and the step's own columns behind it.

    Layers that evict or quantise as they are written cannot be cut back. They are not written
    until it is known what stays: the step's keys and values wait here.

    Attributes:
        keys: ``(num_rows, num_heads, num_slots, head_size)`` from before the step, or ``None``.
        values: the same, its own head size.
        new_keys: the step's columns, once the model has run.
        new_values: likewise.
    """

    def __init__(
        self,
        keys: Tensor | None,
        values: Tensor | None,
        length: int,
        is_sliding: bool,
        is_static: bool = False,
    ) -> None:
        """Take over what the layer holds.

        Args:
            keys: from before the step, or ``None`` where there is nothing yet.
            values: likewise.
            length: tokens of the longest row before the step.
            is_sliding: whether the layer is one of a sliding window.
            is_static: whether the layer is one of a static cache. The other layers of such a cache
                show unused slots, and transformers leaves the mask of a single token out unless
                every layer says so.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys = keys
        self.values = values
        self.is_sliding = is_sliding
        self.is_compileable = is_static
        self.is_initialized = True
        self.new_keys: Tensor | None = None
        self.new_values: Tensor | None = None
        self._length = length

    @property
    def num_slots(self) -> int:
        """Slots from before the step."""
        return 0 if self.keys is None else self.keys.shape[2]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: nothing is allocated here."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep the step's columns aside and return them behind what was there."""
        self.new_keys, self.new_values = key_states, value_states
        if self.keys is None or self.values is None:
            return key_states, value_states
        return (
            torch.cat([self.keys, key_states], dim=2),
            torch.cat([self.values, value_states], dim=2),
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys, for rows of one length."""
        return self.num_slots + query_length, self._length - self.num_slots

    def get_seq_length(self) -> int:
        """Return the tokens of the longest row before the step."""
        return self._length

    def get_max_length(self) -> int:
        """Return -1: a step has no limit."""
        return -1

    def states(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of all slots, the step's columns last."""
        assert self.new_keys is not None and self.new_values is not None
        if self.keys is None or self.values is None:
            return self.new_keys, self.new_values
        return (
            torch.cat([self.keys, self.new_keys], dim=2),
            torch.cat([self.values, self.new_values], dim=2),
        )


def gather_slots(states: Tensor, sources: Tensor) -> Tensor:
    """Return ``(num_rows, num_heads, num_kept, head_size)``: the given slots of each row.

    Args:
        states: ``(num_rows, num_heads, num_slots, head_size)``.
        sources: ``(num_rows, num_kept)`` int64.
    """
    index = sources[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, index)
