"""Snapshots of caches that hold a recurrent state, which no cut can bring back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

_SNAPSHOT_LAYERS = (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)


def has_recurrent_state(model: PreTrainedModel) -> bool:
    """Say whether a layer of the model keeps a convolution's or a recurrence's state."""
    if model.config.is_encoder_decoder:
        return False
    config = model.config.get_text_config(decoder=True)
    layers = DynamicCache(config=config).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def check_snapshot(cache: Cache) -> None:
    """Check that all layers can be brought back.

    Raises:
        ValueError: one cannot; the message names its class.
    """
    for layer in cache.layers:
        if type(layer) not in _SNAPSHOT_LAYERS:
            raise ValueError(
                f"expected layers of attention or with a recurrent state, got "
                f"{type(layer).__name__}, of which no snapshot is known"
            )


class Snapshot:
    """What a cache of one row held at a moment."""

    def __init__(self, cache: Cache) -> None:
        """Take the snapshot: recurrent states are copied, keys and values are not.

        Args:
            cache: dynamic layers, which replace their keys at each update and write into none.
        """
        self._restores = [_restore_of(layer) for layer in cache.layers]

    def restore(self) -> None:
        """Bring the cache back, as often as wanted."""
        for restore in self._restores:
            restore()


def _restore_of(layer: object) -> Callable[[], None]:
    parts: list[Callable[[], None]] = []
    if isinstance(layer, DynamicLayer):
        parts.append(_attention_restore(layer))
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        parts.append(_recurrence_restore(layer))

    def restore() -> None:
        for part in parts:
            part()

    return restore


def _attention_restore(layer: DynamicLayer) -> Callable[[], None]:
    keys, values, initialized = layer.keys, layer.values, layer.is_initialized
    length = getattr(layer, "cumulative_length", None)

    def restore() -> None:
        layer.keys, layer.values, layer.is_initialized = keys, values, initialized
        if length is not None:
            cast(DynamicSlidingWindowLayer, layer).cumulative_length = length

    return restore


def _recurrence_restore(layer: LinearAttentionCacheLayerMixin) -> Callable[[], None]:
    had_state = dict(layer.has_previous_state)
    saved: list[tuple[dict[int, Any], int, Any]] = [
        (states, index, state.clone())
        for states in (layer.conv_states, layer.recurrent_states)
        for index, state in states.items()
        if state is not None
    ]

    def restore() -> None:
        layer.has_previous_state.update(had_state)
        for states, index, state in saved:
            # Copied in place: compiled steps know the states by their address.
            states[index].copy_(state)

    return restore
