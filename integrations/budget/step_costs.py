"""Step times by batch and width, learned while decoding on top of what a calibration says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .calibration_file import Calibration
from .interpolation import extended, shares
from .monotone import isotonic

FloatArray64 = npt.NDArray[np.float64]

# Tokens of a request (root and nodes) at which step times are told apart; between them the time is
# interpolated linearly.
WIDTHS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256], np.float64)

# Time of a step of that many tokens (``WIDTHS``), all requests together, against one of a single
# token, before anything is measured: a small model on a CPU with stock transformers in fp32, where
# the second token is the dear one and a processor is soon busy (benchmarks/forward_cost.py). Drafts
# that are all but sure pay even so, and their steps then tell what the machine really takes.
_CPU_PRIOR = np.array([1.0, 1.8, 1.8, 1.85, 2.0, 2.6, 4.0, 7.5, 15.0])

_MOST_SURPRISE = 0.7  # of one step, in log seconds: a descheduled step must not tip the balance
_LEAST_TRUST = 0.02  # of the prior, against 1 of what is measured all the time
_LEAST_DOUBT = 0.2  # of a width's ratio, however often it was measured
_LEVEL_DOUBT = 0.02  # growth of the level's doubt a step without drafts that is not measured
_DESERTED = 64  # steps of other batches after which a batch's level counts as out of date
_LAZY_STEPS = 16  # plain steps after which fading is carried out; it changes little in fewer


@dataclass(slots=True)
class _Curve:
    """What is known of steps of about one number of requests.

    Attributes:
        prior: ``(num_widths,)`` log of t(width) / t(1) before anything was measured.
        log_ratio: the same as it seems now, 0 at width 1.
        trust: ``(num_widths,)`` from 0 to 1, how much and how lately each width was measured.
        level: log of the seconds that a width of 1 takes; ``None`` before the first step.
        level_age: steps since it was measured by a step without drafts.
        last_step: when any step was last measured.
        num_faded: steps without drafts whose fading is still to be carried out.
        ratio: ``(num_widths,)`` t(width) / t(1), never falling; ``None`` when out of date.
    """

    prior: FloatArray64
    log_ratio: FloatArray64
    trust: FloatArray64
    level: float | None = None
    level_age: int = 0
    last_step: int = 0
    num_faded: int = 0
    ratio: FloatArray64 | None = None


class StepCosts:
    """Step times by requests and width, relative to a step without drafts.

    Times are kept relative to a running level, so that they stay comparable while the context
    grows or the machine slows down. What was measured long ago fades back to the prior: a width
    that was given up because of one slow step is tried again. Numbers of requests are told apart
    by powers of two.
    """

    def __init__(
        self, prior: Calibration | None = None, rate: float = 0.25, recovery: float = 0.01
    ) -> None:
        """Set the starting point.

        Args:
            prior: times measured before; those of a small model on a CPU when absent.
            rate: weight of a new measurement against the old ones, in (0, 1].
            recovery: share by which each step's unmeasured widths move back to the prior.

        Raises:
            ValueError: a rate is out of its range.
        """
        if not 0 < rate <= 1 or not 0 <= recovery < 1:
            raise ValueError(
                f"expected rate in (0, 1] and recovery in [0, 1), got {rate} and {recovery}"
            )
        self._prior = prior
        self._rate = rate
        self._recovery = recovery
        self._curves: dict[int, _Curve] = {}
        self._plain: dict[int, FloatArray64] = {}  # asked for each step, and always the same
        self._num_steps = 0

    @property
    def knows_plain(self) -> bool:
        """Whether drafts can be held against a step without: always, each width has its ratio."""
        return True

    def record(self, num_requests: int, num_nodes: int, seconds: float) -> None:
        """Take in one step's time.

        Args:
            num_requests: requests in the step, at least 1.
            num_nodes: drafted tokens that it computed in all, padding included.
            seconds: its wall time.
        """
        self._num_steps += 1
        curve = self._curve(num_requests)
        measured = math.log(max(seconds, 1e-9))
        deserted = self._num_steps - curve.last_step > _DESERTED
        curve.last_step = self._num_steps
        if num_nodes > 0:
            self._record_drafts(curve, 1 + num_nodes / num_requests, measured, deserted)
            return
        # The usual step where nothing is drafted: a few operations, since it is to cost nothing.
        if curve.level is None or deserted:
            curve.level = measured
        doubt = _LEVEL_DOUBT * curve.level_age  # after many steps with drafts it may be anything
        curve.level += max(self._rate, min(doubt, 1.0) / 2) * _clip(measured - curve.level)
        curve.level_age = 0
        curve.num_faded += 1
        if curve.num_faded >= _LAZY_STEPS:
            self._fade(curve)

    def relative(self, num_requests: int, widths: npt.ArrayLike) -> FloatArray64:
        """Return t(width) / t(1) at ``widths`` (tokens a request, the root included); never falls.

        Args:
            num_requests: requests in the step, at least 1.
            widths: any shape, at least 1; fractions for an average over the requests.
        """
        curve = self._curve(num_requests)
        ratio = curve.ratio
        if ratio is None:
            # A width that was never tried gives way to a wider one that proved cheap.
            fitted = np.exp(isotonic(curve.log_ratio, _LEAST_TRUST + curve.trust))
            ratio = curve.ratio = fitted / fitted[0]
        return extended(np.asarray(widths, np.float64), WIDTHS, ratio)

    def plain_seconds(self, num_requests: int) -> float | None:
        """Return the time of a step without drafts as it seems now; ``None`` before any step."""
        level = self._curve(num_requests).level
        return None if level is None else math.exp(level)

    def plain_by_requests(self, num_requests: int) -> FloatArray64:
        """Return ``(num_requests,)``: the prior's times of plain steps of 1 to that many requests.

        In any unit; what was measured in between is left out, as it came under other loads.
        """
        times = self._plain.get(num_requests)
        if times is None:
            requests = np.arange(1.0, num_requests + 1)
            if self._prior is None:
                times = extended(requests, WIDTHS, _CPU_PRIOR)
            else:
                times = np.array([float(self._prior.step_seconds(r, [0])[0]) for r in requests])
            self._plain[num_requests] = times
        return times

    def _record_drafts(self, curve: _Curve, width: float, measured: float, deserted: bool) -> None:
        self._fade(curve)
        weights = shares(width, WIDTHS)
        expected = float(weights @ curve.log_ratio)
        if curve.level is None or deserted:
            curve.level = measured - expected
        trust = float(weights @ curve.trust)
        gain = max(self._rate, 1 - trust)  # the first measurement of a width counts most
        error = gain * _clip(measured - curve.level - expected)
        # Is the width dearer, or everything? Whichever was measured less lately is to blame.
        level_doubt = min(1.0, _LEVEL_DOUBT * curve.level_age)
        share = level_doubt / (level_doubt + 1 + _LEAST_DOUBT - trust)
        curve.level_age += 1
        curve.level += share * error
        # Where one width surprises, those that were never tried probably would as well.
        moved = np.maximum(weights, 1 - curve.trust)
        moved[0] = 0.0
        curve.log_ratio += (1 - share) * error * moved
        curve.trust += gain * weights * (1 - curve.trust)
        self._forget(curve, self._recovery * (weights == 0))

    def _fade(self, curve: _Curve) -> None:
        """Carry out the fading of the plain steps so far."""
        lost = 1 - (1 - self._recovery) ** curve.num_faded
        curve.num_faded = 0
        self._forget(curve, np.full(WIDTHS.size, lost))

    def _forget(self, curve: _Curve, lost: FloatArray64) -> None:
        """Let trust fade by a share, and what is not trusted any more drift to the prior."""
        curve.log_ratio += lost * (1 - curve.trust) * (curve.prior - curve.log_ratio)
        curve.trust *= 1 - lost
        curve.ratio = None

    def _curve(self, num_requests: int) -> _Curve:
        bucket = max(num_requests, 1).bit_length() - 1
        curve = self._curves.get(bucket)
        if curve is None:
            prior = np.log(self._prior_ratio(2**bucket))
            curve = self._curves[bucket] = _Curve(
                prior, prior.copy(), np.zeros(WIDTHS.size), last_step=self._num_steps
            )
        return curve

    def _prior_ratio(self, num_requests: int) -> FloatArray64:
        if self._prior is not None:
            seconds = self._prior.step_seconds(num_requests, WIDTHS - 1)
            return np.asarray(seconds / seconds[0])
        # A batch pays for all its tokens, and the second of a row is the dear one there too.
        tokens = extended(num_requests * WIDTHS, WIDTHS, _CPU_PRIOR)
        return np.asarray(np.maximum(_CPU_PRIOR, tokens / tokens[0]))


def _clip(error: float) -> float:
    return max(-_MOST_SURPRISE, min(error, _MOST_SURPRISE))
