"""How wide the look-ahead window may be: as wide as what it brings pays for its probes."""

from __future__ import annotations

_RATE = 1 / 32
_PERIOD = 32
"""Steps between two decisions."""
_MAX_WAIT = 64 * _PERIOD


class WindowGate:
    """Halves the window while its probes cost more than they bring, down to none; tries again.

    Attributes:
        width: columns allowed now.
    """

    def __init__(self, max_width: int) -> None:
        """Begin with the widest window.

        Args:
            max_width: columns at most.
        """
        self.width = max_width
        self._max_width = max_width
        self._gain = 0.0  # tokens that guesses from the window brought, a step
        self._emitted = 1.0  # tokens a step
        self._cost = 0.0  # time of the probes, in steps without them
        self._num_steps = 0
        self._wait = _PERIOD

    def record(self, gain: int, num_emitted: int, cost: float) -> None:
        """Take in one request's step.

        Args:
            gain: accepted tokens that the pool had proposed.
            num_emitted: tokens that the step committed.
            cost: time of the step's probes over the time of the step without them.
        """
        self._num_steps += 1
        weight = max(_RATE, 1 / self._num_steps)
        self._gain += weight * (gain - self._gain)
        self._emitted += weight * (num_emitted - self._emitted)
        if self.width == 0:
            if self._num_steps >= self._wait:
                self._restart(self._max_width)
            return
        self._cost += weight * (cost - self._cost)
        if self._num_steps % _PERIOD:
            return
        if self._gain >= self._cost * self._emitted:
            self._wait = _PERIOD
            self.width = min(2 * self.width, self._max_width)
        elif self.width > 1:
            self.width //= 2
        else:
            self._wait = min(2 * self._wait, _MAX_WAIT)
            self._restart(0)

    def _restart(self, width: int) -> None:
        self.width = width
        self._num_steps = 0
        self._gain = self._cost = 0.0
