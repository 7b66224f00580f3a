"""Ways of decoding with a model of transformers: its own and freedraft's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...integrations.generation import generate
from ...integrations.generation.entry import DEFAULT_MAX_NODES
from ...integrations.generation.results import GenerationResult
from ...integrations.statistics import StepReport
from ...verifier.cpu.fast_path import enable_cpu_fast_path
from .interleave import Arm
from .run import Run
from .settings import PLAIN, PROMPT_LOOKUP, BenchSettings, OpenEngine

PROMPT_LOOKUP_TOKENS = 10
Clock = Callable[[], float]


class _FirstTokenClock:
    """A streamer that notes when the first new token came."""

    def __init__(self, clock: Clock) -> None:
        self.first: float | None = None
        self._clock = clock
        self._had_prompt = False

    def put(self, value: Tensor) -> None:
        if self._had_prompt and self.first is None:
            self.first = self._clock()
        self._had_prompt = True

    def end(self) -> None:
        """Needed by transformers."""


class GenerateArm:
    """transformers' own ``generate``, plain or with options such as its prompt lookup's.

    What it drafts is read off the lengths of its forwards.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        options: dict[str, Any],
        clock: Clock = time.perf_counter,
    ) -> None:
        """Set up the arm.

        Args:
            name: see :class:`~.interleave.Arm`.
            model: the target.
            options: further arguments of ``model.generate``.
            clock: seconds; the wall clock by default.
        """
        self.name = name
        self._model = model
        self._options = options
        self._clock = clock

    def run(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Run:
        """Generate once."""
        input_ids = torch.tensor([list(prompt_ids)], device=self._model.device)
        lengths: list[int] = []

        def note_length(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids: Tensor = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            lengths.append(ids.shape[1])

        clock = _FirstTokenClock(self._clock)
        hook = self._model.register_forward_pre_hook(note_length, with_kwargs=True)
        try:
            begin = self._clock()
            sequences: Tensor = self._model.generate(  # type: ignore[operator]
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                streamer=clock,
                **self._options,
            )
            end = self._clock()
        finally:
            hook.remove()
        token_ids = tuple(sequences[0, input_ids.shape[1] :].tolist())
        # A forward reads the prompt or the last token, then the draft.
        drafted = sum(lengths) - input_ids.shape[1] - (len(lengths) - 1)
        accepted = len(token_ids) - len(lengths)
        first = end if clock.first is None else clock.first
        return Run(token_ids, end - begin, len(lengths), drafted, accepted, first - begin)

    def close(self) -> None:
        """Keep the model: other arms share it."""


class FreedraftArm:
    """``freedraft.generate`` with a fresh drafter each run, or none: then the plain loop."""

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        drafter: str | None,
        *,
        max_nodes: int = DEFAULT_MAX_NODES,
        cost_gate: bool = True,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Set up the arm.

        Args:
            name: see :class:`~.interleave.Arm`.
            model: the target.
            drafter: by name.
            max_nodes: as for ``generate``.
            cost_gate: as for ``generate``.
            clock: seconds; the wall clock by default.
        """
        self.name = name
        self._model = model
        self._drafter = drafter
        self._max_nodes = max_nodes
        self._cost_gate = cost_gate
        self._clock = clock

    def run(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        on_step: Callable[[StepReport], None] | None = None,
    ) -> Run:
        """Generate once; ``on_step`` is told of each step."""
        first: list[float] = []

        def note_step(step: StepReport) -> None:
            if not first:
                first.append(self._clock())
            if on_step is not None:
                on_step(step)

        begin = self._clock()
        result = generate(
            self._model,
            torch.tensor([list(prompt_ids)], device=self._model.device),
            drafter=self._drafter,
            max_nodes=self._max_nodes,
            cost_gate=self._cost_gate,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            on_step=note_step,
            return_dict=True,
        )
        seconds = self._clock() - begin
        assert isinstance(result, GenerationResult)  # asked for with return_dict
        counts = result.statistics
        return Run(
            tuple(result.token_ids[0]),
            seconds,
            counts.steps,
            counts.drafted,
            counts.accepted,
            first[0] - begin,
        )

    def close(self) -> None:
        """Keep the model: other arms share it."""


def open_transformers(
    settings: BenchSettings,
    model: PreTrainedModel,
    encode: Callable[[str], list[int]],
    fast_model: PreTrainedModel | None = None,
) -> OpenEngine:
    """Return the arms of a loaded model.

    Args:
        settings: of the benchmark.
        model: the target.
        encode: a prompt's text to token ids.
        fast_model: the same model once more, for arms on the CPU fast path; it is changed.
    """
    notes = []
    lookup = {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}
    arms: list[Arm] = [
        GenerateArm(PLAIN, model, {}),
        GenerateArm(PROMPT_LOOKUP, model, lookup),
    ]
    models = {"": model}
    if fast_model is not None:
        report = enable_cpu_fast_path(fast_model, allow_extra_memory=True)
        if report.enabled:
            models[" + fast path"] = fast_model
        else:
            notes.append("; ".join(report.lines()))
    for suffix, target in models.items():
        for drafter in settings.drafters:
            arms.append(
                FreedraftArm(
                    drafter + suffix,
                    target,
                    drafter,
                    max_nodes=settings.max_nodes,
                    cost_gate=settings.cost_gate,
                )
            )
    return OpenEngine(arms, encode, notes)
