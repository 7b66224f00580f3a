"""The target's key-value cache: checked at the start, cut back to the accepted path each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from transformers.cache_utils import Cache, DynamicLayer


def check_cache(cache: Cache) -> None:
    """Check that a cache which the caller brings can be cut back slot by slot.

    Raises:
        ValueError: a layer is not a growing full-attention layer; the message names its class.
    """
    replicated = cache.layer_class_to_replicate
    kinds = [type(layer) for layer in cache.layers] + ([replicated] if replicated else [])
    for kind in kinds:
        if not issubclass(kind, DynamicLayer) or not kind.is_croppable or kind.is_sliding:
            raise ValueError(
                f"expected a cache of full-length dynamic layers, got {kind.__name__}, which "
                f"cannot be cut back to the accepted tokens: pass DynamicCache() or no cache"
            )


def keep_accepted(
    cache: Cache,
    context_lengths: Sequence[int],
    num_slots: int,
    accepted: Sequence[Sequence[int]],
) -> list[int]:
    """Keep of a step's new slots the root and the accepted path of each row; drop the rest.

    Rows stay left-aligned: a row's kept slots move down to its own end, and the cache is cut to
    the longest row.

    Args:
        cache: mutated. Holds ``num_slots`` slots from before the step and the step's after them.
        context_lengths: tokens of each row before the step.
        num_slots: physical length before the step.
        accepted: of each row, the columns of the step that are kept, increasing along the path,
            column 0 (the root) first.

    Returns:
        The new context lengths.
    """
    new_lengths = [n + len(path) for n, path in zip(context_lengths, accepted, strict=True)]
    rows: list[int] = []
    sources: list[int] = []
    targets: list[int] = []
    for row, (length, path) in enumerate(zip(context_lengths, accepted, strict=True)):
        for offset, column in enumerate(path):
            if num_slots + column != length + offset:
                rows.append(row)
                sources.append(num_slots + column)
                targets.append(length + offset)
    moves = torch.tensor([rows, sources, targets])
    for layer in _dynamic_layers(cache):
        if rows:
            for states in (layer.keys, layer.values):
                assert states is not None
                row, source, target = moves.to(states.device)
                # Advanced indexing copies before it writes, so overlapping moves are safe.
                states[row, :, target] = states[row, :, source]
        layer.crop(max(new_lengths) - layer.get_seq_length())
    return new_lengths


def select_rows(cache: Cache, rows: Sequence[int]) -> None:
    """Keep the given batch rows of the cache, in that order."""
    for layer in _dynamic_layers(cache):
        assert layer.keys is not None
        layer.batch_select_indices(torch.tensor(rows, device=layer.keys.device))


def _dynamic_layers(cache: Cache) -> list[DynamicLayer]:
    """Return the layers; :func:`check_cache` and the model's check have vouched for their kind."""
    return cast(list[DynamicLayer], cache.layers)
