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

_States = tuple[Tensor, Tensor]


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
        held = _held(self._layer)
        return 0 if held is None else held[0].shape[2]

    def states(self) -> tuple[Tensor, Tensor] | None:
        return None

    def begin(self, length: int) -> CacheLayerMixin:
        keys, values = _held(self._layer) or (None, None)
        self._step = StepLayer(keys, values, length, is_sliding=True)
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

    def states(self) -> tuple[Tensor, Tensor] | None:
        return None

    def begin(self, length: int) -> CacheLayerMixin:
        layer = self._layer
        keys, values = _held(layer) or (None, None)
        if keys is not None and values is not None:
            stop = min(layer.cumulative_length_int, self.window)
            keys = keys[:, :, stop - self.num_slots : stop]
            values = values[:, :, stop - self.num_slots : stop]
        self._step = StepLayer(keys, values, length, is_sliding=True, is_static=True)
        return self._step

    def keep(self, kept: KeptColumns) -> None:
        step = self._step
        assert step is not None and step.new_keys is not None and step.new_values is not None
        layer = self._layer
        if not layer.is_initialized:
            layer.lazy_initialization(step.new_keys, step.new_values)
        sources = kept.window(step.num_slots, self.window, step.new_keys.device)
        held = _held(layer)
        assert held is not None
        for storage, states in zip(held, step.states(), strict=True):
            storage[:, :, : sources.shape[1]].copy_(gather_slots(states, sources))
        layer.cumulative_length_int = max(kept.new_lengths)
        layer.cumulative_length.fill_(max(kept.new_lengths))
        self._step = None

    def select(self, rows: Tensor, num_dropped: int) -> None:
        layer = self._layer
        held = _held(layer)
        assert held is not None
        if rows.numel() < held[0].shape[0]:
            held = (held[0][rows.to(held[0].device)], held[1][rows.to(held[1].device)])
            layer.keys, layer.values = held
        used = min(layer.cumulative_length_int, self.window)
        layer.cumulative_length_int -= num_dropped
        layer.cumulative_length.fill_(layer.cumulative_length_int)
        left = min(layer.cumulative_length_int, self.window)
        if left < used:  # the last slot in use must stay each row's last token
            for storage in held:
                storage[:, :, :left].copy_(storage[:, :, used - left : used].clone())


def _held(layer: DynamicSlidingWindowLayer | StaticSlidingWindowLayer) -> _States | None:
    """Return the keys and values of a layer that has any."""
    if layer.keys is None or layer.values is None or layer.keys.numel() == 0:
        return None
    return layer.keys, layer.values
