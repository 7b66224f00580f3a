"""The speed-up that a replay and measured step times promise, before anything is generated.

Predicted speed-up = N_emit * T_1 / (T_draft + T_verify(n)), summed over the steps of a response:
what its tokens would take one by one, over what the drafting and the steps take.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..recorded_steps import RecordedSteps, plain_steps
from ..simulation.step_times import DecodingTimes


@dataclass(frozen=True, slots=True)
class Prediction:
    """One request, decoded alone, from its first token to its last.

    Attributes:
        plain_seconds: all steps without drafts.
        verify_seconds: all steps with them.
        draft_seconds: time inside the drafter.
        steps: target steps with drafts, the prefill left out.
    """

    plain_seconds: float
    verify_seconds: float
    draft_seconds: float
    steps: int

    @property
    def speedup(self) -> float:
        """Predicted speed-up; 1 where there is nothing to decode."""
        seconds = self.verify_seconds + self.draft_seconds
        return self.plain_seconds / seconds if seconds else 1.0


def predict(steps: RecordedSteps, times: DecodingTimes) -> Prediction:
    """Return what a request would take with drafts and without.

    Args:
        steps: from :func:`~..recorded_steps.record_steps`, on this machine.
        times: of the machine and model that would decode.
    """
    plain = plain_steps(steps.prompt_length, steps.num_tokens)
    return Prediction(
        plain_seconds=_seconds(plain, times),
        verify_seconds=_seconds(steps, times),
        draft_seconds=float(steps.draft_seconds.sum()),
        steps=steps.num_steps,
    )


def _seconds(steps: RecordedSteps, times: DecodingTimes) -> float:
    pairs = zip(steps.drafted.tolist(), steps.contexts().tolist(), strict=True)
    return float(sum(float(times.step_seconds(1, nodes, context)) for nodes, context in pairs))
