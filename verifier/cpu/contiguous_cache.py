"""A growing key-value cache that appends, cuts back and compacts in place.

transformers' ``DynamicCache`` copies every key and value of the context at each step, once to
append and once to keep an accepted path. Here each layer writes into storage with room to spare,
and cutting back moves no data at all. Works on any device, in any dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_GRANULE = 64  # capacities are multiples of this many tokens
_HEADROOM = 256  # room left after the first append, about one answer


class _GrowingStates:
    """Keys or values of one layer: storage with spare room and a view of its valid prefix.

    Attributes:
        view: ``(batch, heads, length, head_dim)``, the valid prefix of the storage.
    """

    __slots__ = ("_storage", "view")

    def __init__(self, like: Tensor, capacity: int) -> None:
        """Allocate room for ``capacity`` tokens of the shape and dtype of ``like``, none valid."""
        self._storage = _allocate(like, capacity)
        self.view = self._storage[:, :, :0]

    @property
    def capacity(self) -> int:
        return self._storage.shape[2]

    def append(self, states: Tensor) -> Tensor:
        """Write ``(batch, heads, num_new, head_dim)`` states behind the prefix; return the view."""
        start = self.view.shape[2]
        num_new = states.shape[2]
        if start + num_new > self._storage.shape[2]:
            self._grow(start + num_new)
        # Detached: a storage that lives through many steps must not collect their graphs. narrow
        # and not a slice: this runs twice a layer and step, and indexing takes half as long again.
        self._storage.narrow(2, start, num_new).copy_(states.detach())
        self.view = self._storage.narrow(2, 0, start + num_new)
        return self.view

    def truncate(self, length: int) -> None:
        self.view = self._storage[:, :, :length]

    def gather(self, start: int, sources: Tensor) -> None:
        """Move the tokens at ``sources`` to ``start`` and on, and end there.

        Args:
            start: first slot written.
            sources: slots, ``(num_kept,)`` int64 for all rows, or ``(batch, num_kept)``.
        """
        stop = start + sources.shape[-1]
        if sources.ndim == 1:
            kept = self._storage.index_select(2, sources)
        else:
            index = sources[:, None, :, None].expand(
                -1, self._storage.shape[1], -1, self._storage.shape[3]
            )
            kept = self._storage.gather(2, index)
        self._storage[:, :, start:stop].copy_(kept)
        self.truncate(stop)

    def assign(self, states: Tensor) -> None:
        """Make ``states`` the valid prefix: a prefix of the storage stays where it is."""
        storage = self._storage
        same_rows = states.shape[:2] == storage.shape[:2] and states.shape[3] == storage.shape[3]
        same_memory = states.device == storage.device and states.dtype == storage.dtype
        if same_rows and same_memory and states.shape[2] <= self.capacity:
            in_place = (
                states.data_ptr() == storage.data_ptr() and states.stride() == storage.stride()
            )
            if not in_place:
                # Cloned first, as the states may be another part of this very storage.
                storage[:, :, : states.shape[2]].copy_(states.detach().clone())
        else:
            capacity = max(self.capacity, _rounded(states.shape[2] + _HEADROOM))
            self._storage = _allocate(states, capacity)
            self._storage[:, :, : states.shape[2]].copy_(states.detach())
        self.truncate(states.shape[2])

    def _grow(self, needed: int) -> None:
        """Move to a storage for ``needed`` tokens or half as many again as now, if that is more."""
        old = self.view
        self._storage = _allocate(old, _rounded(max(needed, self.capacity * 3 // 2)))
        self._storage[:, :, : old.shape[2]].copy_(old)


class ContiguousLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a :class:`ContiguousCache`.

    ``keys`` and ``values`` are views of the valid prefix, ``(batch, heads, length, head_dim)``:
    writing into them writes into the cache. A tensor assigned to them is taken over (copied, unless
    it is a prefix of what is there), so code written for ``DynamicLayer`` keeps working. States are
    stored without their autograd graph: for inference only.
    """

    def __init__(self, min_capacity: int = 0) -> None:
        """Create an empty layer.

        Args:
            min_capacity: tokens to leave room for at the first append.
        """
        self._keys: _GrowingStates | None = None
        self._values: _GrowingStates | None = None
        self._min_capacity = min_capacity
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def keys(self) -> Tensor | None:
        return None if self._keys is None else self._keys.view

    @keys.setter
    def keys(self, states: Tensor | None) -> None:
        self._keys = _assigned(self._keys, states)

    @property
    def values(self) -> Tensor | None:
        return None if self._values is None else self._values.view

    @values.setter
    def values(self, states: Tensor | None) -> None:
        self._values = _assigned(self._values, states)

    @property
    def capacity(self) -> int:
        """Tokens that fit before the storage has to grow; 0 before the first append."""
        return 0 if self._keys is None else self._keys.capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the storage for states of this shape; nothing is stored yet."""
        self.device = key_states.device
        capacity = _rounded(max(self._min_capacity, key_states.shape[2] + _HEADROOM))
        self._keys = _GrowingStates(key_states, capacity)
        self._values = _GrowingStates(value_states, capacity)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append states in place.

        Args:
            key_states: ``(batch, heads, num_new, head_dim)``.
            value_states: the same, its own ``head_dim``.
            *args: ignored, as in ``DynamicLayer``.
            **kwargs: ignored, as in ``DynamicLayer``.

        Returns:
            Keys and values of all tokens, views of the storage.

        Raises:
            ValueError: the batch, the heads or the head size differ from what is stored.
        """
        if self._keys is None or self._values is None:
            self.lazy_initialization(key_states, value_states)
        assert self._keys is not None and self._values is not None
        old = self._keys.view.shape
        new = key_states.shape
        if old[0] != new[0] or old[1] != new[1] or old[3] != new[3]:
            raise ValueError(
                f"expected keys of shape ({old[0]}, {old[1]}, tokens, {old[3]}), got {tuple(new)}"
            )
        return self._keys.append(key_states), self._values.append(value_states)

    def get_seq_length(self) -> int:
        """Return the number of valid tokens."""
        return 0 if self._keys is None else self._keys.view.shape[2]

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last ``-tokens_to_remove`` tokens; no data moves.

        Raises:
            ValueError: a positive count (as in transformers 5), or more tokens than there are.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"expected a count of at most 0, got {tokens_to_remove}")
        if self._keys is None or self._values is None:
            return
        length = self.get_seq_length() + tokens_to_remove
        if length < 0:
            raise ValueError(
                f"expected to remove at most {self.get_seq_length()} tokens, "
                f"got {-tokens_to_remove}"
            )
        self._keys.truncate(length)
        self._values.truncate(length)

    def gather(self, start: int, sources: Tensor) -> None:
        """Move the tokens at ``sources`` to ``start`` and on, and end there.

        See :meth:`ContiguousCache.compact`, which checks the arguments.
        """
        if self._keys is None or self._values is None:
            return
        sources = sources.to(self.device)
        self._keys.gather(start, sources)
        self._values.gather(start, sources)


class ContiguousCache(DynamicCache):
    """A cache of :class:`ContiguousLayer`: pass it as ``cache`` to a model's forward or generate.

    Every layer keeps all its tokens, also where the model attends through a sliding window (the
    window then has to be in the mask, as with a ``DynamicCache`` made without a config).
    """

    def __init__(self, min_capacity: int = 0) -> None:
        """Create an empty cache; layers appear as the model fills them.

        Args:
            min_capacity: tokens to leave room for at the first append, such as the prompt and the
                longest answer. More can always be appended; the storage then grows by half.

        Raises:
            ValueError: a negative capacity.
        """
        if min_capacity < 0:
            raise ValueError(f"expected a min_capacity of at least 0, got {min_capacity}")
        super().__init__()
        self.layer_class_to_replicate = ContiguousLayer
        self._min_capacity = min_capacity

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the states of one layer in place; see :meth:`ContiguousLayer.update`."""
        while len(self.layers) <= layer_idx:
            self.layers.append(ContiguousLayer(self._min_capacity))
        layer = self.layers[layer_idx]
        assert isinstance(layer, ContiguousLayer)
        return layer.update(key_states, value_states)

    def compact(self, start: int, kept: Sequence[int] | Tensor) -> None:
        """Keep some of the tokens from ``start`` on, in place, and drop the others.

        Args:
            start: first slot that may be dropped: the length of the context before the step.
            kept: offsets from ``start``, in the order in which they are kept; an accepted path with
                its root. A sequence or ``(num_kept,)`` int64 for all rows, or ``(batch, num_kept)``
                int64 where rows keep different tokens. The values of a tensor are not checked, as
                reading them would wait for its device.

        Raises:
            ValueError: a start or an offset outside of what is stored.
        """
        length = self.get_seq_length()
        if not 0 <= start <= length:
            raise ValueError(f"expected a start from 0 to {length}, got {start}")
        if isinstance(kept, Tensor):
            sources = kept + start
        else:
            if kept and not (min(kept) >= 0 and max(kept) < length - start):
                raise ValueError(
                    f"expected offsets from 0 to {length - start - 1}, got {list(kept)}"
                )
            in_place = 0
            while in_place < len(kept) and kept[in_place] == in_place:
                in_place += 1
            start += in_place
            if in_place == len(kept):
                self.crop(start - length)
                return
            sources = torch.tensor(kept[in_place:], dtype=torch.int64) + (start - in_place)
        for layer in self.layers:
            assert isinstance(layer, ContiguousLayer)
            layer.gather(start, sources)


def _assigned(old: _GrowingStates | None, states: Tensor | None) -> _GrowingStates | None:
    """Return the storage that holds ``states`` from now on."""
    if states is None:
        return None
    if old is None:
        old = _GrowingStates(states, _rounded(states.shape[2] + _HEADROOM))
    old.assign(states)
    return old


def _allocate(like: Tensor, capacity: int) -> Tensor:
    """Return ``(batch, heads, capacity, head_dim)`` uninitialized states of the dtype of ``like``.

    Made outside of inference mode, since a tensor made inside could never be written outside.
    """
    batch, heads, _, head_dim = like.shape
    with torch.inference_mode(False):
        return torch.empty((batch, heads, capacity, head_dim), dtype=like.dtype, device=like.device)


def _rounded(capacity: int) -> int:
    return -(-capacity // _GRANULE) * _GRANULE
