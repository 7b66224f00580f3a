"""One prompt four ways, interleaved: the plain loop, transformers' own two, and freedraft.

All four decode greedily with the same model in the same process; each is timed as a whole, the
prompt included. What transformers drafts is read off the lengths of its forwards.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from ..integrations.statistics import StepReport
from .bench.interleave import rotated
from .bench.run import Run, num_equal_tokens, same_tokens, speedup
from .bench.transformers_arms import PROMPT_LOOKUP_TOKENS, FreedraftArm, GenerateArm

PLAIN_LOOP = "plain loop"
GENERATE = "generate"
PROMPT_LOOKUP = "prompt lookup"
FREEDRAFT = "freedraft"
FAST_PATH = "+ fast path"
ARMS = (PLAIN_LOOP, GENERATE, PROMPT_LOOKUP, FREEDRAFT)
"""What every comparison runs; :data:`FAST_PATH` joins where a second model is given."""


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
        lookup = {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}
        self._own = {
            PLAIN_LOOP: FreedraftArm(PLAIN_LOOP, model, None),
            FREEDRAFT: FreedraftArm(FREEDRAFT, model, drafter, cost_gate=cost_gate),
        }
        self._theirs = {
            GENERATE: GenerateArm(GENERATE, model, {}),
            PROMPT_LOOKUP: GenerateArm(PROMPT_LOOKUP, model, lookup),
        }
        if fast_model is not None:
            self._own[FAST_PATH] = FreedraftArm(FAST_PATH, fast_model, drafter, cost_gate=cost_gate)
        self._max_new_tokens = max_new_tokens

    @property
    def arms(self) -> tuple[str, ...]:
        """The ways that are compared, in the order of their results."""
        return (*ARMS, FAST_PATH) if FAST_PATH in self._own else ARMS

    def run_once(
        self, arm: str, input_ids: Tensor, on_step: Callable[[StepReport], None] | None = None
    ) -> Run:
        """Generate once.

        Args:
            arm: one of :attr:`arms`.
            input_ids: ``(1, length)`` int64.
            on_step: told of each step of the two arms that are freedraft's.
        """
        prompt_ids = input_ids[0].tolist()
        if arm in self._own:
            return self._own[arm].run(prompt_ids, self._max_new_tokens, on_step)
        return self._theirs[arm].run(prompt_ids, self._max_new_tokens)

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
            for arm in rotated(arms, number):
                runs[arm].append(self.run_once(arm, input_ids))
                after_run()
        base = runs[GENERATE]
        return [summarize(arm, runs[arm], base) for arm in arms]


def summarize(name: str, runs: Sequence[Run], base: Sequence[Run]) -> ArmResult:
    """Put an arm's runs of one prompt together.

    Args:
        name: of the arm.
        runs: at least one.
        base: the runs of ``generate``.
    """
    seconds = tuple(run.seconds for run in runs)
    median = statistics.median(seconds)
    first = runs[0]
    return ArmResult(
        name=name,
        seconds=seconds,
        median_seconds=median,
        tokens_per_second=len(first.token_ids) / median,
        tokens_per_step=len(first.token_ids) / first.steps,
        drafted=first.drafted,
        accepted=first.accepted,
        speedup=speedup(runs, base),
        same_text=same_tokens(runs, base[0]),
        num_tokens=len(first.token_ids),
        num_equal=num_equal_tokens(runs, base[0]),
    )
