"""Which models a tree can be verified on, and which masks their layers want.

The test is made on the classes of the layers' caches, not on model names: a model whose layers
keep anything that cannot be cut back (a recurrent state, a rolling window) is refused by name
instead of being silently wrong.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .block_masks import FLEX_ATTENTION
from .cpu.attention import PACKED_ATTENTION

SUPPORTED_ATTENTION = ("eager", "sdpa", FLEX_ATTENTION, PACKED_ATTENTION)


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """The masks that a model's forward takes.

    Attributes:
        windows: for each kind of layer, the width of its sliding window, or ``None`` for full
            attention. One kind only: the mask is passed as it is; several: as a dictionary.
        layer_kinds: the kind of each layer.
    """

    windows: dict[str, int | None]
    layer_kinds: list[str]

    @property
    def layer_windows(self) -> list[int | None]:
        """The width of each layer's sliding window, or ``None``."""
        return [self.windows[kind] for kind in self.layer_kinds]

    def first_layer(self, kind: str) -> int:
        """Return the index of the first layer of that kind."""
        return self.layer_kinds.index(kind)


def plan_masks(model: PreTrainedModel) -> MaskPlan:
    """Check that trees can be verified on ``model`` and return the masks it needs.

    Raises:
        ValueError: an encoder-decoder, a layer whose cache cannot be cut back, several window
            widths, positions that cannot be given, or an attention implementation that does not
            read additive masks. The message names what was found.
    """
    name = type(model).__name__
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise ValueError(f"expected a decoder-only model, got the encoder-decoder {name}")
    parameters = inspect.signature(model.forward).parameters
    for needed in ("attention_mask", "position_ids", "cache"):
        if needed not in parameters:
            raise ValueError(
                f"expected a model whose forward takes {needed} (a sliceable key-value cache and "
                f"explicit positions), got {name} without it"
            )
    _check_attention(model)
    windows: dict[str, int | None] = {}
    kinds: list[str] = []
    for layer in DynamicCache(config=config).layers:
        if type(layer) is DynamicLayer:
            windows["full_attention"] = None
            kinds.append("full_attention")
        elif type(layer) is DynamicSlidingWindowLayer and not _is_chunked(config):
            width = windows.setdefault("sliding_attention", layer.sliding_window)
            kinds.append("sliding_attention")
            if width != layer.sliding_window:
                raise ValueError(
                    f"expected one sliding-window width, got {width} and {layer.sliding_window} "
                    f"in {name}"
                )
        else:
            raise ValueError(
                f"expected layers whose cache can be cut back to a shorter text, got "
                f"{type(layer).__name__} in {name}: use it without a drafter through the model's "
                f"own generate"
            )
    return MaskPlan(windows, kinds)


def _check_attention(model: PreTrainedModel) -> None:
    implementation = model.config._attn_implementation
    if implementation not in SUPPORTED_ATTENTION:
        raise ValueError(
            f"expected attn_implementation among {', '.join(SUPPORTED_ATTENTION)}, got "
            f"{implementation!r}, which does not read an additive tree mask: call "
            f"model.set_attn_implementation('sdpa')"
        )
    if implementation == FLEX_ATTENTION and not _has_flex_kernel(model):
        raise ValueError(
            f"expected attn_implementation {FLEX_ATTENTION!r} on a GPU only, got the device "
            f"{model.device.type!r}, for which tree masks do not compile: call "
            f"model.set_attn_implementation('sdpa')"
        )
    if getattr(model.config, "alibi", False):
        raise ValueError(
            f"expected a model with explicit positions, got {type(model).__name__} with alibi, "
            f"which derives them from the mask"
        )


def _has_flex_kernel(model: PreTrainedModel) -> bool:
    # torch 2.13 generates no CPU code for a mask that reads several tensors.
    return bool(model.device.type != "cpu")


def _is_chunked(config: object) -> bool:
    layer_types = getattr(config, "layer_types", None) or ()
    return "chunked_attention" in layer_types or (
        getattr(config, "attention_chunk_size", None) is not None
    )
