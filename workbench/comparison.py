"""One prompt four ways, interleaved: the plain loop, transformers' own two, and freedraft.

All four decode greedily with the same model in the same process; each is timed as a whole, the
prompt included. What transformers drafts is read off the lengths of its forwards.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..integrations.generation import generate
from ..integrations.generation.results import GenerationResult
from ..integrations.statistics import StepReport

PLAIN_LOOP = "plain loop"
GENERATE = "generate"
PROMPT_LOOKUP = "prompt lookup"
FREEDRAFT = "freedraft"
FAST_PATH = "+ fast path"
ARMS = (PLAIN_LOOP, GENERATE, PROMPT_LOOKUP, FREEDRAFT)
"""What every comparison runs; :data:`FAST_PATH` joins where a second model is given."""
PROMPT_LOOKUP_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One generation.

    Attributes:
        token_ids: new tokens.
        seconds: wall time of the call.
        steps: forwards of the target, the prompt's included.
        drafted: tokens verified.
        accepted: of them.
    """

    token_ids: tuple[int, ...]
    seconds: float
    steps: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One way's runs of one prompt.

    Attributes:
        name: one of :data:`ARMS`.
        seconds: of each run.
        median_seconds: of the runs.
        tokens_per_second: new tokens over the median time.
        tokens_per_step: new tokens over all steps.
        drafted: tokens verified in one run.
        accepted: of them.
        speedup: median time of ``generate`` over this one's.
        same_text: every run has the tokens of ``generate``.
        num_tokens: new tokens.
        num_equal: leading tokens that agree with ``generate``.
    """

    name: str
    seconds: tuple[float, ...]
    median_seconds: float
    tokens_per_second: float
    tokens_per_step: float
    drafted: int
    accepted: int
    speedup: float
    same_text: bool
    num_tokens: int
    num_equal: int


class Comparison:
    """Runs prompts through the four arms."""

    def __init__(
        self,
        model: PreTrainedModel,
        drafter: str,
        max_new_tokens: int,
        cost_gate: bool = True,
        fast_model: PreTrainedModel | None = None,
    ) -> None:
        """Set up the arms.

        Args:
            model: the target.
            drafter: name of the drafter of the freedraft arm, a fresh one each run.
            max_new_tokens: most new tokens of a run.
            cost_gate: of the freedraft arms, as for ``generate``.
            fast_model: the same model on the CPU fast path, for an arm of its own.
        """
        self._cost_gate = cost_gate
        self._model = model
        self._fast_model = fast_model
        self._drafter = drafter
        self._max_new_tokens = max_new_tokens

    @property
    def arms(self) -> tuple[str, ...]:
        """The ways that are compared, in the order of their results."""
        return ARMS if self._fast_model is None else (*ARMS, FAST_PATH)

    def run_once(
        self, arm: str, input_ids: Tensor, on_step: Callable[[StepReport], None] | None = None
    ) -> Run:
        """Generate once.

        Args:
            arm: one of :attr:`arms`.
            input_ids: ``(1, length)`` int64.
            on_step: told of each step of the two arms that are freedraft's.
        """
        if arm == PLAIN_LOOP:
            return self._freedraft(self._model, input_ids, None, on_step)
        if arm == FREEDRAFT:
            return self._freedraft(self._model, input_ids, self._drafter, on_step)
        if arm == FAST_PATH and self._fast_model is not None:
            return self._freedraft(self._fast_model, input_ids, self._drafter, on_step)
        lookup = {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS} if arm == PROMPT_LOOKUP else {}
        return self._transformers(input_ids, lookup)

    def compare(
        self, input_ids: Tensor, num_rounds: int, after_run: Callable[[], None]
    ) -> list[ArmResult]:
        """Run all arms ``num_rounds`` times, in another order each round.

        Args:
            input_ids: ``(1, length)`` int64.
            num_rounds: at least 1.
            after_run: called after each run.

        Returns:
            One result an arm, in the order of :attr:`arms`.
        """
        arms = self.arms
        runs: dict[str, list[Run]] = {arm: [] for arm in arms}
        for number in range(num_rounds):
            shift = number % len(arms)
            for arm in arms[shift:] + arms[:shift]:
                runs[arm].append(self.run_once(arm, input_ids))
                after_run()
        base = runs[GENERATE]
        return [summarize(arm, runs[arm], base) for arm in arms]

    def _freedraft(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        drafter: str | None,
        on_step: Callable[[StepReport], None] | None,
    ) -> Run:
        begin = time.perf_counter()
        result = generate(
            model,
            input_ids,
            drafter=drafter,
            cost_gate=self._cost_gate,
            max_new_tokens=self._max_new_tokens,
            do_sample=False,
            on_step=on_step,
            return_dict=True,
        )
        seconds = time.perf_counter() - begin
        assert isinstance(result, GenerationResult)  # asked for with return_dict
        counts = result.statistics
        return Run(
            tuple(result.token_ids[0]), seconds, counts.steps, counts.drafted, counts.accepted
        )

    def _transformers(self, input_ids: Tensor, options: dict[str, int]) -> Run:
        lengths: list[int] = []

        def note_length(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids: Tensor = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            lengths.append(ids.shape[1])

        hook = self._model.register_forward_pre_hook(note_length, with_kwargs=True)
        try:
            begin = time.perf_counter()
            sequences: Tensor = self._model.generate(  # type: ignore[operator]
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=self._max_new_tokens,
                do_sample=False,
                **options,
            )
            seconds = time.perf_counter() - begin
        finally:
            hook.remove()
        token_ids = tuple(sequences[0, input_ids.shape[1] :].tolist())
        # A forward reads the prompt or the last token, then the draft.
        drafted = sum(lengths) - input_ids.shape[1] - (len(lengths) - 1)
        return Run(token_ids, seconds, len(lengths), drafted, len(token_ids) - len(lengths))


def summarize(name: str, runs: Sequence[Run], base: Sequence[Run]) -> ArmResult:
    """Put an arm's runs of one prompt together.

    Args:
        name: of the arm.
        runs: at least one.
        base: the runs of ``generate``.
    """
    seconds = tuple(run.seconds for run in runs)
    median = statistics.median(seconds)
    expected = base[0].token_ids
    num_equal = min(_num_equal(run.token_ids, expected) for run in runs)
    first = runs[0]
    return ArmResult(
        name=name,
        seconds=seconds,
        median_seconds=median,
        tokens_per_second=len(first.token_ids) / median,
        tokens_per_step=len(first.token_ids) / first.steps,
        drafted=first.drafted,
        accepted=first.accepted,
        speedup=statistics.median(run.seconds for run in base) / median,
        same_text=all(run.token_ids == expected for run in runs),
        num_tokens=len(first.token_ids),
        num_equal=num_equal,
    )


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))
