"""``freedraft.generate`` and the same through ``model.generate(custom_generate=...)``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.stopping_criteria import StopStringCriteria

from ...drafters import (
    DEFAULT_DRAFTER,
    DEFAULT_NAMESPACE,
    NO_DRAFTER,
    Drafter,
    TakesPrediction,
    create_drafter,
)
from ...drafters.blend import BlendDrafter
from ...drafters.catalog import CORPUS_PREFIX
from ...drafters.corpus.pool_file import tokenizer_fingerprint
from ...verifier import TreeForward, open_target
from ...verifier.tree_growth import TreeGrowth
from ..budget import (
    PADDED,
    BudgetConfig,
    Calibration,
    PooledBudget,
    StepCosts,
    load_calibration,
)
from ..draft_guard import DraftGuard
from ..layer_skip_file import LAYER_SKIP, layer_skip_drafter
from ..statistics import StepReport
from .decode_loop import DecodeLoop
from .prompt_input import (
    Prompt,
    check_token_ids,
    encode_prediction,
    encode_prompt,
    split_padding,
)
from .results import GenerationResult, padded_sequences
from .setup import (
    GrammarOfRow,
    WalkPlace,
    check_model_kwargs,
    check_options,
    make_rows,
    noise_keys,
    open_device_walk,
    stop_rules,
    usable_cache,
)

DEFAULT_MAX_NODES = 16
_MAX_LOSS = 0.005  # share of the time that drafts may lose: see RegretAccount


class Streamer(Protocol):
    """What transformers' streamers offer: they take tokens as they are emitted."""

    def put(self, value: Tensor) -> None:
        """Take the prompt ``(1, length)``, then each new token ``(1,)``."""

    def end(self) -> None:
        """Learn that no more will come."""


@overload
def generate(
    model: PreTrainedModel,
    prompt: Prompt,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    drafter: Drafter | str | None = DEFAULT_DRAFTER,
    max_nodes: int = DEFAULT_MAX_NODES,
    cost_gate: bool = True,
    calibration: Calibration | str | Path | None = None,
    seed: int | Sequence[int] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    prediction: str | Sequence[int] | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    grammar: GrammarOfRow | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    streamer: Streamer | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    walk_on: WalkPlace = "auto",
    return_dict: Literal[True],
    **options: Any,
) -> GenerationResult: ...


@overload
def generate(
    model: PreTrainedModel,
    prompt: Prompt,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    drafter: Drafter | str | None = DEFAULT_DRAFTER,
    max_nodes: int = DEFAULT_MAX_NODES,
    cost_gate: bool = True,
    calibration: Calibration | str | Path | None = None,
    seed: int | Sequence[int] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    prediction: str | Sequence[int] | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    grammar: GrammarOfRow | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    streamer: Streamer | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    walk_on: WalkPlace = "auto",
    return_dict: Literal[False] = False,
    **options: Any,
) -> Tensor | GenerationResult: ...


def generate(
    model: PreTrainedModel,
    prompt: Prompt,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    drafter: Drafter | str | None = DEFAULT_DRAFTER,
    max_nodes: int = DEFAULT_MAX_NODES,
    cost_gate: bool = True,
    calibration: Calibration | str | Path | None = None,
    seed: int | Sequence[int] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    prediction: str | Sequence[int] | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    grammar: GrammarOfRow | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    streamer: Streamer | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    walk_on: WalkPlace = "auto",
    return_dict: bool = False,
    **options: Any,
) -> Tensor | GenerationResult:
    """Generate text with a model of transformers, faster where text repeats, and the same text.

    Args:
        model: a decoder-only model.
        prompt: text, several texts, token ids ``(length,)`` or ``(batch, length)``. Text is encoded
            as it stands; apply a chat template first if the model wants one.
        tokenizer: needed for text and for ``stop_strings``.
        drafter: a name of :data:`freedraft.DRAFTER_NAMES`, ``corpus:`` and the path of a pool
            file, ``"layer_skip"`` for the model's own layers (as the calibration found them), a
            drafter to be kept over several calls, or ``None`` (also ``"none"``) for plain decoding
            with the same loop.
        max_nodes: most candidate tokens of one row and step.
        cost_gate: verify only as many candidates as pay at the step times measured so far.
        calibration: step times to begin with: a calibration, the path of a file that
            ``freedraft calibrate`` wrote, or the name of a ready-made curve.
        seed: for sampling; an integer for the batch or one a row. Drawn from torch's default
            generator when absent.
        namespace: a drafter that is kept learns from earlier requests of the same namespace only.
        prediction: text or token ids that the answer will probably be like, such as a file that is
            to be changed a little; what of it comes true is emitted in few steps.
        generation_config: as for ``model.generate``.
        logits_processor: further processors, called once a token with the row's own history.
        grammar: given a row's index, a fresh :class:`freedraft.verifier.GrammarState` that the
            row's answer keeps to; what it forbids is neither verified nor emitted.
        stopping_criteria: further criteria, called once a token.
        streamer: as for ``model.generate``; batch of one.
        on_step: called with each row's part in each step.
        walk_on: where the target's tokens are chosen and the trees are walked: ``"auto"`` is on the
            device of the logits, all rows at once and without waiting, where that is not a CPU and
            the options allow it, and else row by row on the host; ``"host"`` or ``"device"`` force
            one of them.
        return_dict: return a :class:`GenerationResult`; ``return_dict_in_generate=True`` does too.
        **options: options of transformers' ``GenerationConfig`` (``max_new_tokens``,
            ``do_sample``, ``temperature``, ``eos_token_id``, ``stop_strings``, ...) and
            ``attention_mask`` and ``cache``. Unknown names are refused.

    Returns:
        ``(batch, length)`` int64 sequences as ``model.generate`` returns them, or a result.

    Raises:
        ValueError: an empty prompt, ids outside the vocabulary, a tokenizer that doesn't fit, a
            prompt that fills the context, an unknown drafter name, a calibration that cannot be
            read, or a model, cache or option that cannot be used; the message says what was
            expected and what came.
    """
    input_ids, attention_mask = encode_prompt(model, prompt, tokenizer)
    if isinstance(drafter, str) and drafter.startswith(CORPUS_PREFIX) and tokenizer is not None:
        # Opened here, where it can be seen whether the pool was built with this tokenizer.
        drafter = create_drafter(drafter, tokenizer_fingerprint(tokenizer.get_vocab()))
    options.setdefault("attention_mask", attention_mask)
    split_padding(input_ids, options["attention_mask"])  # refused here, before transformers guesses
    if options.get("max_new_tokens") == 0:  # transformers refuses to be asked for nothing
        if streamer is not None:
            streamer.put(input_ids.cpu())
            streamer.end()
        return GenerationResult.of_nothing(input_ids) if return_dict else input_ids
    if return_dict:
        options["return_dict_in_generate"] = True
    criteria = StoppingCriteriaList(stopping_criteria or [])
    config = model.generation_config if generation_config is None else generation_config
    stop_strings = options.get("stop_strings", config.stop_strings)
    if stop_strings is not None:
        if tokenizer is None:
            raise ValueError("expected a tokenizer beside stop_strings, got none")
        criteria.append(StopStringCriteria(tokenizer, stop_strings))
    # Said here, it wins over any configuration's: the criterion above stands for it.
    options["stop_strings"] = None
    if streamer is not None:
        streamer.put(input_ids.cpu())
    result: Tensor | GenerationResult = model.generate(  # type: ignore[operator]
        input_ids,
        generation_config=generation_config,
        logits_processor=logits_processor,
        stopping_criteria=criteria,
        custom_generate=custom_generate,
        drafter=drafter,
        max_nodes=max_nodes,
        cost_gate=cost_gate,
        calibration=calibration,
        seed=seed,
        namespace=namespace,
        prediction=encode_prediction(model, prediction, tokenizer),
        grammar=grammar,
        token_streamer=streamer,
        on_step=on_step,
        walk_on=walk_on,
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
    calibration: Calibration | str | Path | None = None,
    seed: int | Sequence[int] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    prediction: Sequence[int] | None = None,
    grammar: GrammarOfRow | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    walk_on: WalkPlace = "auto",
    token_streamer: Streamer | None = None,
    **model_kwargs: Any,
) -> Tensor | GenerationResult:
    """Decode speculatively behind ``model.generate(..., custom_generate=custom_generate)``.

    transformers prepares the configuration, the processors and the criteria, and calls this in the
    place of its own loop. ``drafter``, ``max_nodes``, ``cost_gate``, ``calibration``, ``seed``,
    ``namespace``, ``prediction`` (token ids), ``grammar``, ``on_step`` and ``walk_on`` are given to
    ``model.generate`` by name, with the meaning they have in :func:`generate`.

    Returns:
        What :func:`generate` returns.
    """
    check_options(generation_config, max_nodes)
    cache = usable_cache(generation_config, model_kwargs)
    paddings = split_padding(input_ids, model_kwargs.pop("attention_mask", None))
    check_model_kwargs(model_kwargs, paddings, input_ids)
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
    rows = make_rows(
        input_ids,
        paddings,
        noise_keys(generation_config, seed, len(prompts)),
        logits_processor,
        stop_rules(stopping_criteria, generation_config, max_context),
        generation_config,
        grammar,
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

    drafter = _resolve(model, drafter, prediction)
    longest_text = min(rows[0].rules.max_length, max_context)
    # The last token is never a key, so a cache of fixed size need not hold it.
    target = open_target(
        model,
        cache,
        capacity=longest_text + max_nodes + 1,
        num_tokens=longest_text - 1,
        hidden_states=rows[0].recording.hidden_states,
        compile_config=generation_config.compile_config,
    )
    loop = DecodeLoop(
        target,
        DraftGuard(drafter, vocab_size),
        _open_budget(calibration) if cost_gate else None,
        max_nodes,
        report,
        TreeGrowth(model, target) if isinstance(target, TreeForward) else None,
        open_device_walk(model, rows, walk_on),
    )
    loop.run(rows, prompts, namespace, prediction)
    if streamer is not None:
        streamer.end()
    sequences = padded_sequences(rows, input_ids, generation_config)
    if not generation_config.return_dict_in_generate:
        return sequences
    target.finish()
    return GenerationResult.of_rows(rows, sequences, loop.statistics, steps, target.cache)


def _open_budget(calibration: Calibration | str | Path | None) -> PooledBudget:
    prior = None if calibration is None else load_calibration(calibration)
    return PooledBudget(StepCosts(prior), BudgetConfig(PADDED, max_loss=_MAX_LOSS))


def _resolve(
    model: PreTrainedModel, drafter: Drafter | str | None, prediction: Sequence[int] | None
) -> Drafter | None:
    """Return the drafter of that name; one that takes predictions joins where there is one.

    Raises:
        ValueError: an unknown name, or a prediction for a drafter that takes none.
    """
    if drafter is None or drafter == NO_DRAFTER:
        return None  # a prediction costs nothing where nothing is drafted
    if not isinstance(drafter, str):
        if prediction is not None and not isinstance(drafter, TakesPrediction):
            raise ValueError(f"expected a drafter that takes predictions, got {drafter.name!r}")
        return drafter
    named = layer_skip_drafter(model) if drafter == LAYER_SKIP else create_drafter(drafter)
    if prediction is None or drafter == "phrase":
        return named
    return BlendDrafter([create_drafter("phrase"), named])


def _callers_streamer() -> Streamer | None:
    """Return the streamer that was given to ``model.generate``.

    transformers puts the prompt into it but hands it to no callable; taking it from the caller's
    frame is the only way not to ignore it silently.
    """
    frame = sys._getframe(2)  # 0 is here, 1 is custom_generate
    streamer: Streamer | None = frame.f_locals.get("streamer")
    return streamer
