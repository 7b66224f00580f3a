"""From what transformers has prepared to what the loop takes; what cannot be served is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StopStringCriteria,
)

from ...verifier import GrammarState, NoiseKey
from .decode_row import DecodeRow, Recording, StopRules
from .device_walk import DeviceWalk, obstacle
from .row_processors import processors_for_row

GrammarOfRow = Callable[[int], GrammarState]
"""Given a row's index, a fresh state of the grammar that its text must keep to."""

WalkPlace = Literal["auto", "host", "device"]
"""Where trees are walked: see :func:`open_device_walk`."""


def check_options(
    config: GenerationConfig,
    max_nodes: int,
) -> None:
    if max_nodes < 0:
        raise ValueError(f"expected max_nodes >= 0, got {max_nodes}")
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ValueError(f"expected greedy search or sampling, got {mode.value}")
    if config.output_attentions:
        raise ValueError(
            "expected output_attentions=False: a step's attention runs over a tree, rejected "
            "branches included, and not over a text"
        )


KEPT_IMPLEMENTATIONS = ("static", "quantized")
"""Caches of these kinds are used as transformers prepares them."""


def usable_cache(config: GenerationConfig, model_kwargs: dict[str, Any]) -> Cache | None:
    """Return the caller's own cache, or one of a kind that was asked for by name.

    The dynamic cache that transformers prepares otherwise is replaced by ours.
    """
    cache: Cache | None = model_kwargs.pop("cache", None)
    if not model_kwargs.pop("use_cache", True):
        raise ValueError("expected use_cache=True, got False: verification needs the cache")
    implementation = config.cache_implementation
    if implementation not in (None, "dynamic", *KEPT_IMPLEMENTATIONS):
        raise ValueError(
            f"expected cache_implementation None, 'dynamic', 'static' or 'quantized', got "
            f"{implementation!r}: its keys and values are moved away while a step runs"
        )
    is_wanted = implementation in KEPT_IMPLEMENTATIONS or getattr(cache, "_is_user_defined", False)
    return cache if is_wanted else None


def check_model_kwargs(
    model_kwargs: dict[str, Any], paddings: Sequence[int], input_ids: Tensor
) -> None:
    """Refuse what the loop would not pass on."""
    model_kwargs.pop("logits_to_keep", None)
    model_kwargs.pop("output_hidden_states", None)  # taken from the configuration
    position_ids: Tensor | None = model_kwargs.pop("position_ids", None)
    if position_ids is not None:
        own = torch.arange(input_ids.shape[1]) - torch.tensor(paddings)[:, None]
        if (position_ids.cpu() - own)[own >= 0].any():
            raise ValueError("expected positions that count from the first token, got others")
    given = [name for name, value in model_kwargs.items() if value is not None]
    if given:
        raise ValueError(f"expected no further inputs of the model, got {', '.join(given)}")


def noise_keys(
    config: GenerationConfig, seed: int | Sequence[int] | None, batch_size: int
) -> list[NoiseKey | None]:
    if not config.do_sample:
        return [None] * batch_size
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    if isinstance(seed, int):
        return [NoiseKey(seed, row) for row in range(batch_size)]
    if len(seed) != batch_size:
        raise ValueError(f"expected one seed or {batch_size}, got {len(seed)}")
    return [NoiseKey(row_seed) for row_seed in seed]


def stop_rules(
    criteria: StoppingCriteriaList, config: GenerationConfig, max_context: int
) -> StopRules:
    eos: set[int] = set()
    max_length: int = config.max_length
    called: list[tuple[str, StoppingCriteria]] = []
    for criterion in criteria:
        if type(criterion) is EosTokenCriteria:
            eos.update(criterion.eos_token_id.flatten().tolist())
        elif type(criterion) is MaxLengthCriteria:
            max_length = min(max_length, criterion.max_length)
        else:
            reason = "stop" if isinstance(criterion, StopStringCriteria) else "criteria"
            called.append((reason, criterion))
    called.sort(key=lambda pair: pair[0] != "stop")
    return StopRules(frozenset(eos), called, max_length, max_context)


def make_rows(
    input_ids: Tensor,
    paddings: Sequence[int],
    keys: Sequence[NoiseKey | None],
    processors: LogitsProcessorList,
    rules: StopRules,
    config: GenerationConfig,
    grammar: GrammarOfRow | None = None,
) -> list[DecodeRow]:
    wanted = bool(config.return_dict_in_generate)
    recording = Recording(
        wanted,
        wanted and bool(config.output_scores),
        wanted and bool(config.output_logits),
        wanted and bool(config.output_hidden_states),
    )
    length = input_ids.shape[1]
    rows = []
    for index, (padding, key) in enumerate(zip(paddings, keys, strict=True)):
        history = input_ids.new_zeros((1, rules.max_length))
        history[0, :length] = input_ids[index]
        rows.append(
            DecodeRow(
                index,
                history,
                length,
                padding,
                key,
                processors_for_row(processors, index),
                rules,
                recording,
                None if grammar is None else grammar(index),
            )
        )
        if rows[-1].reads_no_history and not rules.criteria:
            # Written token by token, it is cheaper where nobody has to wait for a launch.
            rows[-1].history = history.cpu()
    return rows


def open_device_walk(
    model: PreTrainedModel, rows: Sequence[DecodeRow], walk_on: WalkPlace
) -> DeviceWalk | None:
    """Return what walks all rows at once, or ``None`` where each is walked on the host.

    Args:
        model: the target.
        rows: of the generation.
        walk_on: ``"device"`` where the logits lie; ``"host"`` row by row; ``"auto"`` on the device
            where that is not a CPU and no row needs the host.

    Raises:
        ValueError: another place, or ``"device"`` where a row needs the host or the model lies on
            several devices.
    """
    if walk_on not in get_args(WalkPlace):
        places = ", ".join(map(repr, get_args(WalkPlace)))
        raise ValueError(f"expected walk_on among {places}, got {walk_on!r}")
    if walk_on == "host" or (walk_on == "auto" and model.device.type == "cpu"):
        return None
    found = next(filter(None, map(obstacle, rows)), None)
    if found is None and len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        found = "a model on several devices"
    if found is None:
        return DeviceWalk(model.device)
    if walk_on == "device":
        raise ValueError(
            f"expected greedy choice, or temperature, top_k, top_p and min_p alone, with "
            f"walk_on='device', got {found}: leave walk_on at 'auto'"
        )
    return None
