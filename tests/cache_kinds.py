"""The kinds of caches that a generation may run on, and a check that drafts change no token."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tiny_models import RandomTreeDrafter, random_prompt
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, QuantizedCache, StaticCache
from transformers.cache_utils import QuantizedLayer

import freedraft
from freedraft import GenerationResult

Options = Callable[[PreTrainedModel, int], dict[str, Any]]


class RoundedLayer(QuantizedLayer):
    """Quantises groups of tokens as transformers' own layers do, by rounding to 15 levels."""

    def __init__(self) -> None:
        super().__init__(residual_length=6)

    def _quantize(self, tensor: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        # One scale for all tokens, so that quantising anew changes old tokens too.
        scale = tensor.abs().amax() / 7
        return (tensor / scale).round().to(torch.int8), scale

    def _dequantize(self, quantized: tuple[Tensor, Tensor]) -> Tensor:
        tensor, scale = quantized
        return tensor.to(scale.dtype) * scale


def rounded_cache(model: PreTrainedModel) -> QuantizedCache:
    """Return a quantised cache that needs no further package."""
    cache = QuantizedCache("fp8", config=model.config)
    cache.layers = [RoundedLayer() for _ in cache.layers]
    return cache


KINDS: dict[str, Options] = {
    "own": lambda model, length: {},
    "dynamic": lambda model, length: {"cache": DynamicCache()},
    "rolling": lambda model, length: {"cache": DynamicCache(config=model.config)},
    "static": lambda model, length: {
        "cache": StaticCache(config=model.config, max_cache_len=length)
    },
    "static_by_name": lambda model, length: {"cache_implementation": "static"},
    "fp8": lambda model, length: {"cache": QuantizedCache("fp8", config=model.config)},
    "quantised": lambda model, length: {"cache": rounded_cache(model)},
}
SINGLE_ROW = ("quantised",)
FULL_ATTENTION_ONLY = ("fp8", "quantised")


def decode(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, new_tokens: int, **options: Any
) -> GenerationResult:
    """Generate without a cost gate, so that all that is drafted is verified."""
    result = freedraft.generate(
        model,
        ids,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        cost_gate=False,
        return_dict=True,
        **options,
    )
    assert isinstance(result, GenerationResult)
    return result


def own_generate(
    model: PreTrainedModel, kind: Options, prompt: list[int], new_tokens: int
) -> list[int]:
    """Return what transformers' own loop emits for one prompt on a cache of that kind."""
    ids = torch.tensor([prompt])
    text: Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        disable_compile=True,
        **kind(model, len(prompt) + new_tokens - 1),
    )
    new: list[int] = text[0, len(prompt) :].tolist()
    return new


def count_differences(
    model: PreTrainedModel, kind: Options, num_prompts: int, batch_size: int, new_tokens: int
) -> tuple[int, int]:
    """Return in how many prompts drafts changed a token, and how many drafts were accepted.

    Each prompt is decoded greedily and with a seed. Greedily, plain decoding is the model's own
    ``generate`` of each prompt alone, on a cache of the same kind; with a seed it is our loop
    without drafts.
    """
    rng = random.Random(batch_size)
    different = accepted = 0
    for number in range(num_prompts // batch_size):
        prompts = [random_prompt(rng, rng.randint(1, 14)) for _ in range(batch_size)]
        longest = max(map(len, prompts))
        ids = torch.zeros((batch_size, longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        length = longest + new_tokens - 1
        for options in ({"do_sample": False}, {"do_sample": True, "top_k": 8, "seed": number}):
            if options["do_sample"]:
                plain = decode(
                    model, ids, mask, new_tokens, drafter=None, **options, **kind(model, length)
                ).token_ids
            else:
                plain = [own_generate(model, kind, prompt, new_tokens) for prompt in prompts]
            answers = [prompt + new for prompt, new in zip(prompts, plain, strict=True)]
            result = decode(
                model,
                ids,
                mask,
                new_tokens,
                drafter=RandomTreeDrafter(number, answers),
                **options,
                **kind(model, length),
            )
            assert result.statistics.switched_off == 0
            different += sum(a != b for a, b in zip(result.token_ids, plain, strict=True))
            accepted += result.statistics.accepted
    return different, accepted
