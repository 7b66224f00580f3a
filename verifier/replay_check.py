"""Does a recurrent model go on from its own state when several tokens come at once?

Some do not: their scan over several tokens starts from nothing, whatever the cache holds (Mamba 1
and Jamba in transformers 5.24). Verification would be silently wrong, so the model is asked. The
states are enlarged for the question, since those of random or little trained weights may be too
small to show in the logits.
"""

from __future__ import annotations

import inspect
import weakref

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from .recurrent_state import Snapshot

_PROMPT = 5
_RUN = 2
_MAX_ERROR = 0.02  # of the largest entry; recurrences run in float32 or better
_MAX_HALF_ERROR = 0.1

_checked: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()


def check_replay(model: PreTrainedModel) -> None:
    """Compare tokens run at once, after a snapshot was brought back, with the same one by one.

    A model that has passed is not asked again.

    Raises:
        ValueError: the states or the logits differ by more than rounding.
    """
    if model in _checked:
        return
    name = type(model).__name__
    if "cache" not in inspect.signature(model.forward).parameters:
        raise ValueError(f"expected a model whose forward takes a cache, got {name} without it")
    config = model.config.get_text_config(decoder=True)
    ids = torch.arange(1, 1 + _PROMPT + _RUN, device=model.device) % config.vocab_size
    prompt, run = ids[:_PROMPT], ids[_PROMPT:]
    with torch.no_grad():
        single = DynamicCache(config=config)
        _logits(model, prompt, single, 0)
        if not _states(single):
            raise ValueError(
                f"expected recurrent states in the cache, got {name}, which keeps them elsewhere"
            )
        _enlarge(single)
        one_by_one = torch.cat(
            [_logits(model, run[at : at + 1], single, _PROMPT + at) for at in range(_RUN)]
        )
        cache = DynamicCache(config=config)
        _logits(model, prompt, cache, 0)
        _enlarge(cache)
        snapshot = Snapshot(cache)
        _logits(model, run.flip(0), cache, _PROMPT)  # other tokens, which must leave no trace
        snapshot.restore()
        at_once = _logits(model, run, cache, _PROMPT)
    pairs = [(at_once, one_by_one), *zip(_states(cache), _states(single), strict=True)]
    error = max(_relative_error(got, wanted) for got, wanted in pairs)
    allowed = _MAX_ERROR if model.dtype in (torch.float32, torch.float64) else _MAX_HALF_ERROR
    if not error <= allowed:
        raise ValueError(
            f"expected a model that goes on from its recurrent state when several tokens come at "
            f"once, got {name}, which is then off by {error:.2g} of its largest "
            f"value (allowed {allowed:g}): use it without freedraft, through the model's own "
            f"generate"
        )
    _checked.add(model)


def _logits(model: PreTrainedModel, ids: Tensor, cache: Cache, start: int) -> Tensor:
    """Return ``(num_tokens, vocab_size)`` logits of tokens behind a cache."""
    inputs: dict[str, object] = {"input_ids": ids[None], "cache": cache, "use_cache": True}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = torch.arange(start, start + len(ids), device=ids.device)[None]
    logits: Tensor = model(**inputs).logits[0]
    return logits


def _states(cache: Cache) -> list[Tensor]:
    """Return the convolutions' and recurrences' states of all layers."""
    return [
        state
        for layer in cache.layers
        if isinstance(layer, LinearAttentionCacheLayerMixin)
        for states in (layer.conv_states, layer.recurrent_states)
        for state in states.values()
        if state is not None
    ]


def _enlarge(cache: Cache) -> None:
    """Add numbers of about one, different at each place, to all states."""
    for state in _states(cache):
        waves = torch.sin(
            torch.arange(1, 1 + state.numel(), device=state.device, dtype=torch.float)
        )
        state.add_(waves.view(state.shape).to(state.dtype))


def _relative_error(got: Tensor, wanted: Tensor) -> float:
    scale = float(wanted.abs().max())
    return float((got - wanted).abs().max()) / scale if scale > 0 else 0.0
