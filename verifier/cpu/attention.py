"""Attention on the CPU for models whose query heads share keys and values.

transformers repeats keys and values once per query head of a group before each masked attention of
more than one query, which at long contexts costs more than the attention itself. Here the queries
of one group are packed as rows of a single head instead: the same products, nothing repeated.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

PACKED_ATTENTION = "freedraft_cpu"
"""Name of the attention implementation; it reads masks as ``sdpa`` does (boolean or additive)."""

_MAX_PACKED_QUERIES = 64  # more queries share their mask among the heads instead of repeating it


def register_packed_attention() -> None:
    """Make :data:`PACKED_ATTENTION` known to transformers; again is harmless.

    Both registries are needed: without a mask function of its own, an implementation gets no mask
    at all unless the caller passes a 4-D one.
    """
    AttentionInterface.register(PACKED_ATTENTION, packed_attention_forward)
    AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)


def packed_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend, with the signature that transformers calls.

    What this function is not for (ungrouped heads, other devices, training, a position bias, a
    causal prefill without a mask, a mask that differs among heads) goes to transformers' own
    ``sdpa`` unchanged.

    Args:
        module: the attention layer.
        query: ``(batch, num_heads, num_queries, head_dim)``.
        key: ``(batch, num_key_value_heads, num_keys, head_dim)``.
        value: the same, its own ``head_dim``.
        attention_mask: ``(batch or 1, 1, num_queries, num_keys)``, boolean (True = attend) or added
            to the scores, or ``None``.
        dropout: probability, 0 outside of training.
        scaling: factor of the scores; ``head_dim ** -0.5`` when absent.
        is_causal: for ``sdpa``.
        **kwargs: what models pass beside these, for ``sdpa``.

    Returns:
        ``(batch, num_queries, num_heads, value_head_dim)`` and no attention weights.
    """
    batch, num_heads, num_queries, head_dim = query.shape
    num_groups = key.shape[1]
    if (
        num_groups == num_heads
        or query.device.type != "cpu"
        or dropout != 0.0
        or (attention_mask is None and num_queries > 1)
        or (attention_mask is not None and attention_mask.shape[1] != 1)
        or kwargs.get("position_bias") is not None
        or kwargs.get("softcap") is not None
    ):
        return _stock_attention(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **kwargs,
        )
    if num_queries > _MAX_PACKED_QUERIES:
        output = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
        )
        return output.transpose(1, 2).contiguous(), None
    group_size = num_heads // num_groups
    if attention_mask is not None and num_queries > 1:
        layer_idx = getattr(module, "layer_idx", None)
        attention_mask = _masks.get(attention_mask, group_size, query.dtype, layer_idx)
    # (batch, num_groups, group_size * num_queries, head_dim)
    rows = query.reshape(batch, num_groups, group_size * num_queries, head_dim)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    output = output.reshape(batch, num_heads, num_queries, value.shape[-1])
    if num_queries == 1:  # both orders are the same memory
        return output.view(batch, 1, num_heads, value.shape[-1]), None
    return output.transpose(1, 2).contiguous(), None


def _stock_attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    output, _ = sdpa_attention_forward(module, *args, **kwargs)
    return output, None


@dataclass(slots=True)
class _RepeatedMask:
    mask: weakref.ref[Tensor]
    version: int | None
    group_size: int
    dtype: torch.dtype
    layer_idx: int
    repeated: Tensor


class _RepeatedMasks(threading.local):
    """The masks of the running forward, repeated for packed queries, so that layers share the work.

    A model passes the same mask to all its layers in turn, or one mask to each of two kinds of
    layers. An entry serves only layers after the one that used it last, and only while the mask's
    version stays: a mask may be refilled between two forwards, and one made in inference mode
    doesn't count versions.
    """

    def __init__(self) -> None:
        self._entries: list[_RepeatedMask] = []

    def get(
        self, mask: Tensor, group_size: int, dtype: torch.dtype, layer_idx: int | None
    ) -> Tensor:
        """Return ``(batch or 1, 1, group_size * num_queries, num_keys)`` of ``dtype``, additive.

        Args:
            mask: ``(batch or 1, 1, num_queries, num_keys)``, boolean or additive.
            group_size: query heads that share a key-value head.
            dtype: of the scores.
            layer_idx: of the layer that asks; without one nothing is shared.
        """
        if layer_idx is None:
            return _repeat(mask, group_size, dtype)
        version = None if mask.is_inference() else mask._version
        for entry in self._entries:
            if (
                entry.mask() is mask
                and entry.layer_idx < layer_idx
                and (entry.version, entry.group_size, entry.dtype) == (version, group_size, dtype)
            ):
                entry.layer_idx = layer_idx
                return entry.repeated
        repeated = _repeat(mask, group_size, dtype)
        others = [e for e in self._entries if e.mask() is not mask and e.mask() is not None]
        new = _RepeatedMask(weakref.ref(mask), version, group_size, dtype, layer_idx, repeated)
        self._entries = [*others[-1:], new]
        return repeated


def _repeat(mask: Tensor, group_size: int, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        # Minus infinity as sdpa itself does it: a row that may look nowhere comes out as zeros.
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf"))
    return mask.to(dtype).repeat(1, 1, group_size, 1)


_masks = _RepeatedMasks()
