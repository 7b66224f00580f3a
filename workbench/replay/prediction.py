"""From a replay and measured step times to a predicted speed-up, by number of requests at a time.

A step of B requests drafts N_1 ... N_B nodes, taken as independent draws of the replay's own
distribution. Engines that compute each token once pay for the sum; loops that pad rows to one width
pay for the largest. Predicted speed-up = tokens per step x T(B, 0) / (T_draft + E[T(B, N)]), where
T_draft is what the drafter took in the replay, once for each request of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...integrations.budget import Calibration
from ..formulas import predicted_speedup
from .result import ReplayResult

FloatArray64 = npt.NDArray[np.float64]
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
_PADDED_ENGINES = ("transformers",)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What drafts would change at one load.

    Attributes:
        concurrency: requests in each step.
        plain_seconds: of a step without drafts, a token for each request.
        verify_seconds: expected, of a step with drafts.
        draft_seconds: expected, for drafting a step.
        speedup: predicted.
    """

    concurrency: int
    plain_seconds: float
    verify_seconds: float
    draft_seconds: float
    speedup: float


def predict(
    result: ReplayResult, calibration: Calibration, concurrencies: Sequence[int] = CONCURRENCIES
) -> list[Prediction]:
    """Return a prediction for each number of requests at a time.

    Args:
        result: of a replay with at least one step.
        calibration: step times of the machine.
        concurrencies: each at least 1.
    """
    context = mean_context(result)
    counts = np.array(result.tally.steps_by_drafted, np.float64)
    shares = counts / counts.sum()
    predictions: list[Prediction] = []
    for concurrency in concurrencies:
        plain = float(calibration.step_seconds(concurrency, 0, context))
        if calibration.engine in _PADDED_ENGINES:
            likely, nodes = _of_largest(shares, concurrency)
        else:
            likely, nodes = _of_mean(shares, concurrency)
        verify = float(likely @ calibration.step_seconds(concurrency, nodes, context))
        draft = concurrency * result.draft_us_mean * 1e-6 if result.max_nodes else 0.0
        speedup = predicted_speedup(result.tokens_per_step, verify, plain, draft)
        predictions.append(Prediction(concurrency, plain, verify, draft, speedup))
    return predictions


def mean_context(result: ReplayResult) -> float:
    """Return the mean number of tokens in a request's cache while it decodes."""
    return (result.prompt_tokens + result.tokens / 2) / max(result.requests, 1)


def _of_mean(shares: FloatArray64, concurrency: int) -> tuple[FloatArray64, FloatArray64]:
    """Return the distribution of the mean of independent draws: probabilities and values."""
    size = (shares.size - 1) * concurrency + 1
    spectrum = np.fft.rfft(shares, size)
    likely = np.clip(np.fft.irfft(spectrum**concurrency, size), 0, None)
    return likely / likely.sum(), np.arange(size) / concurrency


def _of_largest(shares: FloatArray64, concurrency: int) -> tuple[FloatArray64, FloatArray64]:
    """Return the distribution of the largest of independent draws: probabilities and values."""
    below = np.cumsum(shares) ** concurrency
    return np.diff(below, prepend=0.0), np.arange(shares.size, dtype=np.float64)
