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

_MOST_SURPRISE = 0.7  # of one step, in log seconds: a descheduled step must not tip the balance
_LEAST_TRUST = 0.02  # of the prior, against 1 of what is measured all the time
_LEAST_DOUBT = 0.2  # of a time, however often it was measured
_LEVEL_DOUBT = 0.02  # growth of the level's doubt a step without drafts that is not measured


class TokenCosts:
    """Step times of an engine that computes each token of a batch once.

    There it hardly matters whose the tokens are: three drafted tokens of one of four requests cost
    what one more of each of three would. So one curve serves all numbers of requests, and what was
    learned with eight of them holds when the first one ends. What requests cost beside their tokens
    (attention to their contexts) goes into a level, which each step without drafts corrects. Times
    that were measured long ago fade back to the prior, so that none is given up for good.
    """

    def __init__(
        self, tokens_that_double: float, rate: float = 0.25, recovery: float = 0.01
    ) -> None:
        """Set the starting point: a time that grows linearly with the tokens.

        Args:
            tokens_that_double: further tokens that make a step twice as long as one of one token.
            rate: weight of a new measurement against the old ones, in (0, 1].
            recovery: share by which each step's unmeasured times move back to the prior.

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
        self._prior = np.log1p((_TOKENS - 1) / tokens_that_double).tolist()
        self._log_time: list[float] = list(self._prior)  # against the level
        self._trust = [0.0] * _TOKENS.size  # from 0 to 1, how much and how lately measured
        self._level: float | None = None  # log seconds of a step of one token
        self._level_age = 0  # steps since it was measured by a step without drafts
        self._fitted: FloatArray64 | None = None  # times against the level, never falling

    def record(self, num_requests: int, num_nodes: int, seconds: float) -> None:
        """Take in one step's time.

        Args:
            num_requests: requests in the step, at least 1.
            num_nodes: drafted tokens that it computed in all.
            seconds: its wall time.
        """
        plain, whole = _shares(num_requests), _shares(num_requests + num_nodes)
        measured = math.log(max(seconds, 1e-9))
        expected = self._read(whole)
        if self._level is None:
            self._level = measured - expected
        error = max(-_MOST_SURPRISE, min(measured - self._level - expected, _MOST_SURPRISE))
        if num_nodes > 0:
            self._record_drafts(plain, whole, error)
        else:
            self._level += self._rate * error
            self._level_age = 0
            for place, share in plain.items():
                self._trust[place] += self._rate * share * (1 - self._trust[place])
        self._fade(plain.keys() | whole.keys())
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
                isotonic(self._log_time, [_LEAST_TRUST + trust for trust in self._trust])
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
        return sum(share * self._log_time[place] for place, share in shares.items())

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
        # Where one number surprises, those that were never tried probably would as well; a step
        # without drafts is what the level stands for.
        for place in range(min(plain), _TOKENS.size):
            moved = max(whole.get(place, 0.0), 1 - self._trust[place])
            moved *= 1 - plain.get(place, 0.0)
            self._log_time[place] += (1 - share) * gain * error * moved
        for place, weight in whole.items():
            self._trust[place] += gain * weight * (1 - self._trust[place])

    def _fade(self, measured: Collection[int]) -> None:
        """Move the times that a step has not measured back to the prior."""
        log_time, trust = self._log_time, self._trust
        for place, prior in enumerate(self._prior):
            if place not in measured:
                back = self._recovery * (1 - trust[place])
                log_time[place] += back * (prior - log_time[place])
                trust[place] *= 1 - self._recovery


def _shares(num_tokens: int) -> dict[int, float]:
    """Return the share of each known number of tokens in another; they add up to 1."""
    low = min(num_tokens.bit_length(), len(_TOKENS)) - 1
    part = min(num_tokens / 2**low - 1, 1.0)
    if part == 0 or low + 1 == len(_TOKENS):
        return {low: 1.0}
    return {low: 1 - part, low + 1: part}
