"""Layers that keep every token in a slot of its own: dynamic, contiguous, static, FP8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, StaticLayer

from .kept import KeptColumns


class SlotKeeper:
    """Keeps a growing layer; see :class:`.keepers.LayerKeeper`."""

    right_aligned = False
    capacity: int | None = None
    max_rows: int | None = None

    def __init__(self, layer: DynamicLayer) -> None:
        """Watch over ``layer``."""
        self._layer = layer

    @property
    def max_depth(self) -> int | None:
        return None

    @property
    def num_slots(self) -> int:
        return self._layer.get_seq_length()

    def states(self) -> tuple[Tensor, Tensor] | None:
        assert self._layer.keys is not None and self._layer.values is not None
        return self._layer.keys, self._layer.values

    def begin(self, length: int) -> CacheLayerMixin:
        return self._layer

    def keep(self, kept: KeptColumns) -> None:
        if kept.keeps_all:
            return  # to ask every layer what to move takes 0.6 % of a step of SmolLM2-135M
        assert self._layer.keys is not None and self._layer.values is not None
        move_slots(self._layer.keys, kept)
        move_slots(self._layer.values, kept)
        self._layer.crop(-kept.num_dropped)

    def select(self, rows: Tensor, num_dropped: int) -> None:
        assert self._layer.keys is not None
        self._layer.batch_select_indices(rows.to(self._layer.keys.device))
        self._layer.crop(-num_dropped)


class StaticKeeper:
    """Keeps a layer of fixed capacity: what stays is moved in place, the rest is forgotten.

    Serves a static layer of a sliding window too, as long as it has room for every token.
    """

    right_aligned = False
    max_rows: int | None = None

    def __init__(self, layer: StaticLayer) -> None:
        """Watch over ``layer``."""
        self._layer = layer
        self.capacity: int | None = layer.max_cache_len

    @property
    def max_depth(self) -> int | None:
        return None

    @property
    def num_slots(self) -> int:
        return int(self._layer.get_seq_length())

    def states(self) -> tuple[Tensor, Tensor] | None:
        assert self._layer.keys is not None and self._layer.values is not None
        return self._layer.keys, self._layer.values

    def begin(self, length: int) -> CacheLayerMixin:
        return self._layer

    def keep(self, kept: KeptColumns) -> None:
        assert self._layer.keys is not None and self._layer.values is not None
        move_slots(self._layer.keys, kept)
        move_slots(self._layer.values, kept)
        self._layer.crop(-kept.num_dropped)

    def select(self, rows: Tensor, num_dropped: int) -> None:
        layer = self._layer
        layer.crop(-num_dropped)
        assert layer.keys is not None and layer.values is not None
        if rows.numel() < layer.keys.shape[0]:
            layer.keys = layer.keys[rows.to(layer.keys.device)]
            layer.values = layer.values[rows.to(layer.values.device)]


class Fp8Keeper(SlotKeeper):
    """Keeps a layer of 8-bit floats: its scale is fixed, so a slot means the same anywhere."""

    def __init__(self, layer: Any) -> None:
        """Watch over ``layer``, an ``Fp8QuantizedLayer``."""
        super().__init__(layer)
        self._fp8 = layer

    def states(self) -> tuple[Tensor, Tensor] | None:
        keys, values = self._fp8._quantized_keys[0], self._fp8._quantized_values[0]
        return keys.view(torch.uint8), values.view(torch.uint8)  # few operations know the floats

    def keep(self, kept: KeptColumns) -> None:
        for states in self.states() or ():
            move_slots(states, kept)
        self._crop(kept.num_dropped)

    def select(self, rows: Tensor, num_dropped: int) -> None:
        for name in ("_quantized_keys", "_quantized_values"):
            states, scale = getattr(self._fp8, name)
            chosen = states.view(torch.uint8)[rows.to(states.device)].view(states.dtype)
            setattr(self._fp8, name, (chosen, scale))
        self._crop(num_dropped)

    def _crop(self, num_dropped: int) -> None:
        stop = self._fp8.cumulative_length - num_dropped
        for name in ("_quantized_keys", "_quantized_values"):
            states, scale = getattr(self._fp8, name)
            setattr(self._fp8, name, (states[:, :, :stop], scale))
        self._fp8.cumulative_length = stop


def move_slots(states: Tensor, kept: KeptColumns) -> None:
    """Move each row's kept columns down to its own end.

    Args:
        states: ``(num_rows, num_heads, capacity, head_size)``, mutated.
        kept: what stays.
    """
    if kept.are_moved:
        return
    row, source, target = kept.moves(states.device)
    if row.numel():
        # Advanced indexing copies before it writes, so overlapping moves are safe.
        states[row, :, target] = states[row, :, source]
