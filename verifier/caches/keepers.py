"""Which keeper watches over which layer of a cache; what cannot be kept exactly is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    Fp8QuantizedLayer,
    QuantizedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from ..cpu.contiguous_cache import ContiguousLayer
from .kept import KeptColumns
from .quantized_layers import QuantizedKeeper
from .rolling_layers import RollingKeeper, StaticRollingKeeper
from .slot_layers import Fp8Keeper, SlotKeeper, StaticKeeper


class LayerKeeper(Protocol):
    """Brings one layer of a cache from step to step.

    Attributes:
        right_aligned: whether the last slot is each row's last token (a rolling window) or slot =
            logical position.
        capacity: slots that the layer shows the model whatever is in use, or ``None`` if it grows.
        max_rows: most rows that can be kept exactly, or ``None``.
    """

    @property
    def right_aligned(self) -> bool: ...

    @property
    def capacity(self) -> int | None: ...

    @property
    def max_rows(self) -> int | None: ...

    @property
    def max_depth(self) -> int | None:
        """Deepest node that the next step may hold, or ``None``."""
        ...

    @property
    def num_slots(self) -> int:
        """Slots in use, which the step's columns follow."""
        ...

    def states(self) -> tuple[Tensor, Tensor] | None:
        """Return what :meth:`keep` moves in place, or ``None`` where it does something else.

        Returns:
            Keys and values, ``(num_rows, num_heads, capacity, head_size)``, the step's columns
            behind the slots in use.
        """
        ...

    def begin(self, length: int) -> CacheLayerMixin:
        """Return what stands in the cache while a step runs.

        Args:
            length: tokens of the longest row.
        """
        ...

    def keep(self, kept: KeptColumns) -> None:
        """Keep the given columns of the step that has run, and forget the others."""

    def select(self, rows: Tensor, num_dropped: int) -> None:
        """Keep the ``(num_left,)`` int64 rows, in that order.

        Args:
            rows: the rows that stay.
            num_dropped: slots at the end that none of them uses, where slot = position.
        """


def keepers_of(cache: Cache, kinds: list[int | None] | None = None) -> list[LayerKeeper]:
    """Return a keeper for each layer that the cache has so far.

    Args:
        cache: layers that appear later are those of its ``layer_class_to_replicate``.
        kinds: of each layer of the model, the width of its sliding window or ``None``; checked
            against the layers where given.

    Raises:
        ValueError: a layer that cannot be cut back to the accepted tokens, or one that keeps less
            than the model's layer sees. The message names its class.
    """
    replicated = cache.layer_class_to_replicate
    if replicated is not None and replicated not in (DynamicLayer, ContiguousLayer):
        raise ValueError(_refusal(cast("type[object]", replicated)))
    keepers = [_keeper(layer) for layer in cache.layers]
    if kinds is not None:
        _check_kinds(cache, keepers, kinds)
    return keepers


def _check_kinds(cache: Cache, keepers: list[LayerKeeper], kinds: list[int | None]) -> None:
    """Check that the layers keep what the model's layers see, and those of a kind alike."""
    kinds_seen: dict[int | None, type[LayerKeeper]] = {}
    for index, (keeper, window) in enumerate(zip(keepers, kinds, strict=False)):
        found = type(cache.layers[index]).__name__
        if isinstance(keeper, (RollingKeeper, StaticRollingKeeper)) and keeper.window != window:
            raise ValueError(
                f"expected a cache layer that keeps {'all' if window is None else window} tokens "
                f"in layer {index}, got {found} of {keeper.window}: make the cache from the "
                f"model's own config"
            )
        if kinds_seen.setdefault(window, type(keeper)) is not type(keeper):
            raise ValueError(
                f"expected one class of cache layers for all layers of a kind, got another one, "
                f"{found}, in layer {index}"
            )


def _keeper(layer: object) -> LayerKeeper:
    if isinstance(layer, QuantizedLayer):
        return QuantizedKeeper(layer)
    if type(layer) is Fp8QuantizedLayer:
        return Fp8Keeper(layer)
    if type(layer) in (DynamicLayer, ContiguousLayer):
        return SlotKeeper(cast(DynamicLayer, layer))
    if type(layer) is DynamicSlidingWindowLayer:
        return RollingKeeper(layer)
    if type(layer) is StaticSlidingWindowLayer and not layer.is_croppable:
        return StaticRollingKeeper(layer)
    if type(layer) in (StaticLayer, StaticSlidingWindowLayer):
        return StaticKeeper(cast(StaticLayer, layer))
    raise ValueError(_refusal(type(layer)))


def _refusal(kind: type[object]) -> str:
    return (
        f"expected a cache of dynamic, static, sliding-window or quantized layers, got "
        f"{kind.__name__}, which cannot be cut back to the accepted tokens: pass DynamicCache() "
        f"or no cache"
    )


def keep_accepted(
    cache: Cache,
    context_lengths: Sequence[int],
    num_slots: int,
    accepted: Sequence[Sequence[int]],
) -> list[int]:
    """Keep of a step's new slots those of the accepted path of each row; drop the rest.

    For caches whose layers keep every token; rows stay left-aligned.

    Args:
        cache: mutated. Holds ``num_slots`` slots from before the step and the step's after them.
        context_lengths: tokens of each row before the step.
        num_slots: slots in use before the step.
        accepted: of each row, the columns of the step that are kept, increasing along the path.

    Returns:
        The new context lengths.
    """
    width = int(cache.get_seq_length()) - num_slots
    kept = KeptColumns(context_lengths, num_slots, width, accepted)
    for keeper in keepers_of(cache):
        keeper.keep(kept)
    return kept.new_lengths
