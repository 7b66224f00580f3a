"""``freedraft.generate`` and the same through ``model.generate(custom_generate=...)``."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
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

from ..drafters import DEFAULT_NAMESPACE, NO_DRAFTER, Drafter, create_drafter
from ..verifier import NodeBudget, NoiseKey, TreeForward
from .decode_loop import DecodeLoop
from .decode_row import DecodeRow, Recording, StopRules
from .draft_guard import DraftGuard
from .prompt_input import check_token_ids, encode_prompt, split_padding
from .row_processors import processors_for_row
from .statistics import GenerationStatistics, StepReport

DEFAULT_DRAFTER = "ngram"
DEFAULT_MAX_NODES = 16


class Streamer(Protocol):
    """What transformers' streamers offer: they take tokens as they are emitted."""

    def put(self, value: Tensor) -> None:
        """Take the prompt ``(1, length)``, then each new token ``(1,)``."""

    def end(self) -> None:
        """Learn that no more will come."""


@dataclass(slots=True)
class GenerationResult:
    """All that a generation has to tell.

    Attributes:
        sequences: ``(batch, length)`` int64 as transformers returns them: left padding, prompt, new
            tokens, right padding.
        token_ids: new tokens of each row, the one that ended it included.
        finish_reasons: of each row: ``"eos"``, ``"stop"`` (a stop string), ``"criteria"`` (one of
            the caller's), ``"length"`` or ``"context"``.
        logprobs: log-probability of each new token under the target's raw logits.
        statistics: counts and times.
        steps: each row's part in each target step, in order.
        texts: decoded new tokens of each row, when a tokenizer was given.
        scores: of each new position a ``(batch, vocab_size)`` float32 tensor of processed scores,
            with ``output_scores``; zeros for rows that had ended.
        logits: the same before the processors, with ``output_logits``.
        cache: the target's key-value cache, all tokens of the longest-running rows but the last.
    """

    sequences: Tensor
    token_ids: list[list[int]]
    finish_reasons: list[str]
    logprobs: list[list[float]]
    statistics: GenerationStatistics
    steps: list[StepReport] = field(default_factory=list)
    texts: list[str] | None = None
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    cache: Cache | None = None


def generate(
    model: PreTrainedModel,
    prompt: str | Sequence[str] | Tensor | Sequence[int],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    drafter: Drafter | str | None = DEFAULT_DRAFTER,
    max_nodes: int = DEFAULT_MAX_NODES,
    cost_gate: bool = True,
    seed: int | Sequence[int] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    generation_config: GenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    streamer: Streamer | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    return_dict: bool = False,
    **options: Any,
) -> Tensor | GenerationResult:
    """Generate text with a model of transformers, faster where text repeats, and the same text.

    Args:
        model: a decoder-only model.
        prompt: text, several texts, token ids ``(length,)`` or ``(batch, length)``. Text is encoded
            as it stands; apply a chat template first if the model wants one.
        tokenizer: needed for text and for ``stop_strings``.
        drafter: a name of :data:`freedraft.DRAFTER_NAMES`, a drafter to be kept over several
            calls, or ``None`` (also ``"none"``) for plain decoding with the same loop.
        max_nodes: most candidate tokens of one row and step.
        cost_gate: verify only as many candidates as pay at the step times measured so far.
        seed: for sampling; an integer for the batch or one a row. Drawn from torch's default
            generator when absent.
        namespace: a drafter that is kept learns from earlier requests of the same namespace only.
        generation_config: as for ``model.generate``.
        logits_processor: further processors, called once a token with the row's own history.
        stopping_criteria: further criteria, called once a token.
        streamer: as for ``model.generate``; batch of one.
        on_step: called with each row's part in each step.
        return_dict: return a :class:`GenerationResult`; ``return_dict_in_generate=True`` does too.
        **options: options of transformers' ``GenerationConfig`` (``max_new_tokens``,
            ``do_sample``, ``temperature``, ``eos_token_id``, ``stop_strings``, ...) and
            ``attention_mask`` and ``cache``. Unknown names are refused.

    Returns:
        ``(batch, length)`` int64 sequences as ``model.generate`` returns them, or a result.

    Raises:
        ValueError: an empty prompt, ids outside the vocabulary, a tokenizer that doesn't fit, a
            prompt that fills the context, an unknown drafter name, or a model, cache or option
            that cannot be used; the message says what was expected and what came.
    """
    input_ids, attention_mask = encode_prompt(model, prompt, tokenizer)
    options.setdefault("attention_mask", attention_mask)
    config, options = _split_config(model, generation_config, options)
    if return_dict:
        config.return_dict_in_generate = True
    criteria = StoppingCriteriaList(stopping_criteria or [])
    if config.stop_strings is not None:
        if tokenizer is None:
            raise ValueError("expected a tokenizer beside stop_strings, got none")
        criteria.append(StopStringCriteria(tokenizer, config.stop_strings))
        config.stop_strings = None
    if streamer is not None:
        streamer.put(input_ids.cpu())
    if config.max_new_tokens == 0:
        result: Tensor | GenerationResult = _nothing_to_generate(input_ids, config)
        if streamer is not None:
            streamer.end()
    else:
        result = model.generate(  # type: ignore[operator]
            input_ids,
            generation_config=config,
            logits_processor=logits_processor,
            stopping_criteria=criteria,
            custom_generate=custom_generate,
            drafter=drafter,
            max_nodes=max_nodes,
            cost_gate=cost_gate,
            seed=seed,
            namespace=namespace,
            token_streamer=streamer,
            on_step=on_step,
            **options,
        )
    if isinstance(result, GenerationResult) and tokenizer is not None:
        result.texts = [
            str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in result.token_ids
        ]
    return result


def custom_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    drafter: Drafter | str | None = DEFAULT_DRAFTER,
    max_nodes: int = DEFAULT_MAX_NODES,
    cost_gate: bool = True,
    seed: int | Sequence[int] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    on_step: Callable[[StepReport], None] | None = None,
    token_streamer: Streamer | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerationResult:
    """Decode speculatively behind ``model.generate(..., custom_generate=custom_generate)``.

    transformers prepares the configuration, the processors and the criteria, and calls this in the
    place of its own loop. ``drafter``, ``max_nodes``, ``cost_gate``, ``seed``, ``namespace`` and
    ``on_step`` are given to ``model.generate`` by name, with the meaning they have in
    :func:`generate`.

    Returns:
        What :func:`generate` returns.
    """
    _check_options(generation_config, max_nodes)
    cache = _usable_cache(generation_config, model_kwargs)
    paddings = split_padding(input_ids, model_kwargs.pop("attention_mask", None))
    _check_model_kwargs(model_kwargs, paddings, input_ids)
    text_config = model.config.get_text_config(decoder=True)
    vocab_size: int = text_config.vocab_size
    check_token_ids(input_ids, vocab_size)
    max_context: int = getattr(text_config, "max_position_embeddings", None) or sys.maxsize
    prompts = [ids[skip:] for ids, skip in zip(input_ids.tolist(), paddings, strict=True)]
    longest = max(map(len, prompts))
    if longest >= max_context:
        raise ValueError(
            f"expected a prompt shorter than the model's context of {max_context} tokens, "
            f"got {longest}"
        )
    rows = _make_rows(
        input_ids,
        paddings,
        _noise_keys(generation_config, seed, len(prompts)),
        logits_processor,
        _stop_rules(stopping_criteria, generation_config, max_context),
        generation_config,
    )
    streamer = token_streamer or _callers_streamer()
    steps: list[StepReport] = []

    def report(step: StepReport) -> None:
        steps.append(step)
        if streamer is not None:
            for token in step.token_ids:
                streamer.put(torch.tensor([token]))
        if on_step is not None:
            on_step(step)

    if isinstance(drafter, str):
        drafter = None if drafter == NO_DRAFTER else create_drafter(drafter)
    target = TreeForward(model, cache)
    loop = DecodeLoop(
        target,
        DraftGuard(drafter, vocab_size),
        NodeBudget() if cost_gate else None,
        max_nodes,
        report,
    )
    loop.run(rows, prompts, namespace)
    if streamer is not None:
        streamer.end()
    sequences = _sequences(rows, input_ids, generation_config)
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerationResult(
        sequences=sequences,
        token_ids=[row.token_ids for row in rows],
        finish_reasons=[row.finish_reason or "" for row in rows],
        logprobs=[row.logprobs for row in rows],
        statistics=loop.statistics,
        steps=steps,
        scores=_stack([row.scores for row in rows]) if generation_config.output_scores else None,
        logits=_stack([row.logits for row in rows]) if generation_config.output_logits else None,
        cache=target.cache,
    )


def _split_config(
    model: PreTrainedModel, config: GenerationConfig | None, options: dict[str, Any]
) -> tuple[GenerationConfig, dict[str, Any]]:
    """Put the options that belong to the generation config into a copy of it."""
    config = copy.deepcopy(model.generation_config if config is None else config)
    rest: dict[str, Any] = config.update(**options)  # type: ignore[no-untyped-call]
    return config, rest


def _check_options(
    config: GenerationConfig,
    max_nodes: int,
) -> None:
    if max_nodes < 0:
        raise ValueError(f"expected max_nodes >= 0, got {max_nodes}")
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ValueError(f"expected greedy search or sampling, got {mode.value}")
    for option in ("output_attentions", "output_hidden_states"):
        if getattr(config, option, None):
            raise ValueError(f"expected {option}=False: it is not available with freedraft")


def _usable_cache(config: GenerationConfig, model_kwargs: dict[str, Any]) -> Cache | None:
    """Return the caller's own cache; what transformers has prepared is replaced by ours."""
    cache: Cache | None = model_kwargs.pop("cache", None)
    if not model_kwargs.pop("use_cache", True):
        raise ValueError("expected use_cache=True, got False: verification needs the cache")
    if config.cache_implementation is not None and config.cache_implementation != "dynamic":
        raise ValueError(
            f"expected cache_implementation None or 'dynamic', got "
            f"{config.cache_implementation!r}, which cannot be cut back to the accepted tokens"
        )
    return cache if getattr(cache, "_is_user_defined", False) else None


def _check_model_kwargs(
    model_kwargs: dict[str, Any], paddings: Sequence[int], input_ids: Tensor
) -> None:
    """Refuse what the loop would not pass on."""
    model_kwargs.pop("logits_to_keep", None)
    position_ids: Tensor | None = model_kwargs.pop("position_ids", None)
    if position_ids is not None:
        own = torch.arange(input_ids.shape[1]) - torch.tensor(paddings)[:, None]
        if (position_ids.cpu() - own)[own >= 0].any():
            raise ValueError("expected positions that count from the first token, got others")
    given = [name for name, value in model_kwargs.items() if value is not None]
    if given:
        raise ValueError(f"expected no further inputs of the model, got {', '.join(given)}")


def _noise_keys(
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


def _stop_rules(
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


def _make_rows(
    input_ids: Tensor,
    paddings: Sequence[int],
    keys: Sequence[NoiseKey | None],
    processors: LogitsProcessorList,
    rules: StopRules,
    config: GenerationConfig,
) -> list[DecodeRow]:
    wanted = bool(config.return_dict_in_generate)
    recording = Recording(
        wanted, wanted and bool(config.output_scores), wanted and bool(config.output_logits)
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
            )
        )
    return rows


def _callers_streamer() -> Streamer | None:
    """Return the streamer that was given to ``model.generate``.

    transformers puts the prompt into it but hands it to no callable; taking it from the caller's
    frame is the only way not to ignore it silently.
    """
    frame = sys._getframe(2)  # 0 is here, 1 is custom_generate
    streamer: Streamer | None = frame.f_locals.get("streamer")
    return streamer


def _sequences(rows: Sequence[DecodeRow], input_ids: Tensor, config: GenerationConfig) -> Tensor:
    pad = config._pad_token_tensor
    longest = max(row.length for row in rows)
    sequences = input_ids.new_full((len(rows), longest), 0 if pad is None else int(pad))
    for row in rows:
        sequences[row.index, : row.length] = row.history[0, : row.length]
    return sequences


def _stack(per_row: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """Turn each row's ``(1, vocab_size)`` tensors into ``(batch, vocab_size)`` by position."""
    longest = max(map(len, per_row))
    blank = torch.zeros_like(per_row[0][0])
    return tuple(
        torch.cat([row[position] if position < len(row) else blank for row in per_row])
        for position in range(longest)
    )


def _nothing_to_generate(input_ids: Tensor, config: GenerationConfig) -> Tensor | GenerationResult:
    if not config.return_dict_in_generate:
        return input_ids
    rows = input_ids.shape[0]
    return GenerationResult(
        sequences=input_ids,
        token_ids=[[] for _ in range(rows)],
        finish_reasons=["length"] * rows,
        logprobs=[[] for _ in range(rows)],
        statistics=GenerationStatistics(),
    )
