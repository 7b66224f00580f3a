"""Layers that quantise groups of tokens from time to time, behind a few in full precision."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, QuantizedLayer

from .kept import KeptColumns
from .step_layer import StepLayer


class QuantizedKeeper:
    """Keeps a quantised layer: it is written with the accepted tokens alone.

    Plain decoding quantises everything anew when the tokens in full precision reach a limit, and
    every token after that sees other values than the ones before. So no path may go beyond it:
    the token that reaches the limit is the deepest that a step may hold. The layer's own update
    then writes what plain decoding would have written. Rows that advance by different numbers
    would reach the limit at different times, hence one row only.
    """

    right_aligned = False
    capacity: int | None = None
    max_rows: int | None = 1

    def __init__(self, layer: QuantizedLayer) -> None:
        """Watch over ``layer``."""
        self._layer = layer
        self._step: StepLayer | None = None

    @property
    def max_depth(self) -> int | None:
        return max(0, self._layer.residual_length - self._num_exact - 1)

    @property
    def num_slots(self) -> int:
        return self._layer.get_seq_length()

    def states(self) -> tuple[Tensor, Tensor] | None:
        return None

    def begin(self, length: int) -> CacheLayerMixin:
        layer = self._layer
        if not layer.is_initialized:
            self._step = StepLayer(None, None, length, False)
            return self._step
        # The layer's own update without new tokens would be the same sum of parts, but writes.
        keys: Tensor = layer._dequantize(layer._quantized_keys)  # type: ignore[no-untyped-call]
        values: Tensor = layer._dequantize(layer._quantized_values)  # type: ignore[no-untyped-call]
        if self._num_exact:
            exact_keys, exact_values = layer.keys, layer.values
            assert exact_keys is not None and exact_values is not None
            keys = torch.cat([keys, exact_keys], dim=2)
            values = torch.cat([values, exact_values], dim=2)
        self._step = StepLayer(keys, values, length, False)
        return self._step

    def keep(self, kept: KeptColumns) -> None:
        step = self._step
        assert step is not None and step.new_keys is not None and step.new_values is not None
        columns = kept.columns(0, step.new_keys.device)
        self._layer.update(step.new_keys[:, :, columns], step.new_values[:, :, columns])
        self._step = None

    def select(self, rows: Tensor, num_dropped: int) -> None:
        """Do nothing: there is one row."""

    @property
    def _num_exact(self) -> int:
        """Tokens in full precision."""
        keys = self._layer.keys
        return keys.shape[2] if keys is not None and keys.dim() == 4 else 0
