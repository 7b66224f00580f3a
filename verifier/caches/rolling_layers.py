"""Layers that keep the last tokens of a sliding window only.

Rows are kept right-aligned: the last slot is each row's last token, so that rows of different
lengths lose the same slots. A layer is written when it is known what stays.
"""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicSlidingWindowLayer,
    StaticSlidingWindowLayer,
)

from .kept import KeptColumns
from .step_layer import StepLayer, gather_slots


class RollingKeeper:
    """Keeps a growing layer of a sliding window; see :class:`.keepers.LayerKeeper`."""

    right_aligned = True
    capacity: int | None = None
    max_rows: int | None = None

    def __init__(self, layer: DynamicSlidingWindowLayer) -> None:
        """Watch over ``layer``."""
        self._layer = layer
        self._step: StepLayer | None = None

    @property
    def window(self) -> int:
        """Tokens that a token sees, itself included."""
        return self._layer.sliding_window

    @property
    def max_depth(self) -> int | None:
        return None

    @property
    def num_slots(self) -> int:
        return self._layer.keys.shape[2] if _holds_tokens(self._layer) else 0

    def begin(self, length: int) -> CacheLayerMixin:
        held = _holds_tokens(self._layer)
        self._step = StepLayer(
            self._layer.keys if held else None, self._layer.values if held else None, length, True
        )
        return self._step

    def keep(self, kept: KeptColumns) -> None:
        step = self._step
        assert step is not None and step.new_keys is not None and step.new_values is not None
        layer = self._layer
        if not layer.is_initialized:
            layer.lazy_initialization(step.new_keys, step.new_values)
        sources = kept.window(step.num_slots, self.window - 1, step.new_keys.device)
        keys, values = step.states()
        layer.keys = gather_slots(keys, sources)
        layer.values = gather_slots(values, sources)
        layer.cumulative_length = max(kept.new_lengths)
        self._step = None

    def select(self, rows: Tensor, num_dropped: int) -> None:
        layer = self._layer
        if layer.keys is not None and layer.values is not None:
            layer.keys = layer.keys[rows.to(layer.keys.device)]
            layer.values = layer.values[rows.to(layer.values.device)]
        layer.cumulative_length -= num_dropped


class StaticRollingKeeper:
    """Keeps a layer of a sliding window with as many slots as the window is wide, in place."""

    right_aligned = True
    capacity: int | None = None
    max_rows: int | None = None

    def __init__(self, layer: StaticSlidingWindowLayer) -> None:
        """Watch over ``layer``."""
        self._layer = layer
        self._step: StepLayer | None = None

    @property
    def window(self) -> int:
        """Tokens that a token sees, itself included."""
        return self._layer.max_cache_len

    @property
    def max_depth(self) -> int | None:
        return None

    @property
    def num_slots(self) -> int:
        return min(self._layer.cumulative_length_int, self.window - 1)

    def begin(self, length: int) -> CacheLayerMixin:
        layer = self._layer
        keys = values = None
        if self.num_slots:
            stop = min(layer.cumulative_length_int, self.window)
            keys = layer.keys[:, :, stop - self.num_slots : stop]
            values = layer.values[:, :, stop - self.num_slots : stop]
        self._step = StepLayer(keys, values, length, True)
        return self._step

    def keep(self, kept: KeptColumns) -> None:
        step = self._step
        assert step is not None and step.new_keys is not None and step.new_values is not None
        layer = self._layer
        if not layer.is_initialized:
            layer.lazy_initialization(step.new_keys, step.new_values)
        sources = kept.window(step.num_slots, self.window, step.new_keys.device)
        for storage, states in zip((layer.keys, layer.values), step.states(), strict=True):
            storage[:, :, : sources.shape[1]].copy_(gather_slots(states, sources))
        layer.cumulative_length_int = max(kept.new_lengths)
        layer.cumulative_length.fill_(max(kept.new_lengths))
        self._step = None

    def select(self, rows: Tensor, num_dropped: int) -> None:
        layer = self._layer
        if layer.is_initialized and rows.numel() < layer.keys.shape[0]:
            layer.keys = layer.keys[rows.to(layer.keys.device)]
            layer.values = layer.values[rows.to(layer.values.device)]
        used = min(layer.cumulative_length_int, self.window)
        layer.cumulative_length_int -= num_dropped
        layer.cumulative_length.fill_(layer.cumulative_length_int)
        left = min(layer.cumulative_length_int, self.window)
        if left < used:  # the last slot in use must stay each row's last token
            for storage in (layer.keys, layer.values):
                storage[:, :, :left].copy_(storage[:, :, used - left : used].clone())


def _holds_tokens(layer: DynamicSlidingWindowLayer) -> bool:
    return layer.keys is not None and layer.keys.dim() == 4 and layer.keys.shape[2] > 0
