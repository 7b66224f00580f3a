"""Step times by the tokens of a step, learned from steps of any number of requests together."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from .interpolation import extended
from .monotone import isotonic

FloatArray64 = npt.NDArray[np.float64]

# Tokens of a step, those of all requests together, at which times are told apart; between them the
# time is interpolated linearly.
_TOKENS = np.array([2.0**power for power in range(12)], np.float64)
# Of one step, in log seconds: a descheduled step must not tip the balance, but none is too fast.
_MOST_SURPRISE, _LEAST_SURPRISE = 0.7, -3.0
_FIRST_PLAIN = 2  # steps without drafts of which the faster one counts: an engine warms up
_LEAST_TRUST = 0.02  # of what follows from other times, against 1 of what is measured all the time
_SCATTER = 0.05  # of step times; slopes are as doubtful as they are steep
_LEAST_DOUBT = 0.2  # of a time, however often it was measured
_LEVEL_DOUBT = 0.02  # growth of the level's doubt a step without drafts that is not measured


class TokenCosts:
    """Step times of an engine that computes each token of a batch once.

    There it hardly matters whose the tokens are: three drafted tokens of one of four requests cost
    what one more of each of three would. So one curve serves all numbers of requests, and what was
    learned with eight of them holds when the first one ends. What requests cost beside their tokens
    (attention to their contexts) goes into a level, which each step without drafts corrects. What
    was never measured, or long ago, follows from the places below and the slope of all that was
    measured, so that many tokens are tried where a few cost little, and nothing is given up for
    good.
    """

    def __init__(
        self, tokens_that_double: float, rate: float = 0.25, recovery: float = 0.01
    ) -> None:
        """Set the starting point: a time that grows linearly with the tokens.

        Args:
            tokens_that_double: further tokens that make a step twice as long as one of one token.
            rate: weight of a new measurement against the old ones, in (0, 1].
            recovery: share of its trust that each unmeasured time loses a step.

        Raises:
            ValueError: a number is out of its range.
        """
        if not tokens_that_double > 0 or not 0 < rate <= 1 or not 0 <= recovery < 1:
            raise ValueError(
                "expected tokens_that_double > 0, rate in (0, 1] and recovery in [0, 1), got "
                f"{tokens_that_double}, {rate} and {recovery}"
            )
        self._rate = rate
        self._recovery = recovery
        # Lists: twelve numbers, changed at every step, are dearer as arrays.
        self._excess = [(tokens - 1) / tokens_that_double for tokens in _TOKENS.tolist()]
        self._log_time = [math.log1p(excess) for excess in self._excess]  # against the level
        self._trust = [0.0] * _TOKENS.size  # from 0 to 1, how much and how lately measured
        self._log_curve = list(self._log_time)  # the times as they are believed in
        self._level: float | None = None  # log seconds of a step of one token
        self._level_age = 0  # steps since it was measured by a step without drafts
        self._num_plain = 0
        self._fitted: FloatArray64 | None = None  # times against the level, never falling

    @property
    def knows_plain(self) -> bool:
        """Whether steps without drafts were measured: only they say what drafts cost."""
        return self._num_plain >= _FIRST_PLAIN

    def record(self, num_requests: int, num_nodes: int, seconds: float) -> None:
        """Take in one step's time; with drafts only once the time without is known.

        Args:
            num_requests: requests in the step, at least 1.
            num_nodes: drafted tokens that it computed in all.
            seconds: its wall time.
        """
        if num_nodes > 0 and not self.knows_plain:
            return
        plain, whole = _shares(num_requests), _shares(num_requests + num_nodes)
        measured = math.log(max(seconds, 1e-9))
        expected = self._read(whole)
        if self._level is None:
            self._level = measured - expected
        surprise = measured - self._level - expected
        error = max(_LEAST_SURPRISE, min(surprise, _MOST_SURPRISE))
        if num_nodes > 0:
            self._record_drafts(plain, whole, error)
        else:
            self._level += self._rate * error if self.knows_plain else min(surprise, 0.0)
            self._num_plain += 1
            self._level_age = 0
            for place, share in plain.items():
                self._trust[place] += self._rate * share * (1 - self._trust[place])
        self._fade(plain.keys() | whole.keys())
        self._draw_curve(plain)
        self._fitted = None

    def relative(self, num_requests: int, widths: npt.ArrayLike) -> FloatArray64:
        """Return the time of a step against one without drafts; it never falls with the width.

        Args:
            num_requests: requests in the step, at least 1.
            widths: any shape, at least 1; tokens a request, the root included, fractions for an
                average over the requests.
        """
        if self._fitted is None:
            self._fitted = np.exp(
                isotonic(self._log_curve, [_LEAST_TRUST + trust for trust in self._trust])
            )
        times = extended(num_requests * np.asarray(widths, np.float64), _TOKENS, self._fitted)
        return np.asarray(
            times / extended(np.asarray(num_requests, np.float64), _TOKENS, self._fitted)
        )

    def plain_seconds(self, num_requests: int) -> float | None:
        """Return the time of a step without drafts as it seems now; ``None`` before any step."""
        if self._level is None:
            return None
        return math.exp(self._level + self._read(_shares(num_requests)))

    def plain_by_requests(self, num_requests: int) -> FloatArray64:
        """Return ``(num_requests,)``: times of plain steps of 1 to that many requests, any unit."""
        return self.relative(1, np.arange(1, num_requests + 1))

    def _read(self, shares: Mapping[int, float]) -> float:
        return sum(share * self._log_curve[place] for place, share in shares.items())

    def _record_drafts(
        self, plain: Mapping[int, float], whole: Mapping[int, float], error: float
    ) -> None:
        assert self._level is not None
        trust = sum(share * self._trust[place] for place, share in whole.items())
        gain = max(self._rate, 1 - trust)  # the first measurement of a number counts most
        # Are so many tokens dearer, or is everything? What was measured less lately is to blame.
        level_doubt = min(1.0, _LEVEL_DOUBT * self._level_age)
        share = level_doubt / (level_doubt + 1 + _LEAST_DOUBT - trust)
        self._level_age += 1
        self._level += share * gain * error
        for place, weight in whole.items():
            # A step without drafts is what the level stands for.
            moved = max(weight, 1 - self._trust[place]) * (1 - plain.get(place, 0.0))
            self._log_time[place] = self._log_curve[place] + (1 - share) * gain * error * moved
        for place, weight in whole.items():
            self._trust[place] += gain * weight * (1 - self._trust[place])

    def _fade(self, measured: Collection[int]) -> None:
        """Trust the times that a step has not measured less."""
        for place in range(_TOKENS.size):
            if place not in measured:
                self._trust[place] *= 1 - self._recovery

    def _draw_curve(self, plain: Mapping[int, float]) -> None:
        """Join what was measured, and where little was, what follows from the places below.

        Args:
            plain: the places of a step without drafts, from which slopes are measured.
        """
        times = [math.exp(log_time) for log_time in self._log_time]
        first_excess = sum(share * self._excess[place] for place, share in plain.items())
        first_time = sum(share * times[place] for place, share in plain.items())
        # Ridge regression, towards the slope of the prior.
        rise = run = (_SCATTER * first_time) ** 2
        for excess, time, trust in zip(self._excess, times, self._trust, strict=True):
            if excess > first_excess:
                rise += trust * (excess - first_excess) * (time - first_time)
                run += trust * (excess - first_excess) ** 2
        slope = max(rise / run, 0.0)
        value, before = 1.0, 0.0
        for place, (excess, time) in enumerate(zip(self._excess, times, strict=True)):
            value += (slope if excess > first_excess else 1.0) * (excess - before)
            trust = self._trust[place]
            value = (trust * time + _LEAST_TRUST * value) / (trust + _LEAST_TRUST)
            before = excess
            self._log_curve[place] = math.log(value)


def _shares(num_tokens: int) -> dict[int, float]:
    """Return the share of each known number of tokens in another; they add up to 1."""
    low = min(num_tokens.bit_length(), len(_TOKENS)) - 1
    part = min(num_tokens / 2**low - 1, 1.0)
    if part == 0 or low + 1 == len(_TOKENS):
        return {low: 1.0}
    return {low: 1 - part, low + 1: part}
