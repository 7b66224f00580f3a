"""What drafts have cost and brought so far, and how sure the next ones must look for it."""

from __future__ import annotations

_CAUTION = 1.2  # times what drafts cost must come back: of many guesses the best is too good
_MOST_USED = 3.0  # times the bound; beyond it the guesses are wrong, however good they look
_NEVER = 1e9  # times; drafts that cost nothing are still welcome
_MOST_CREDIT = 8.0  # plain steps; what drafts brought long ago is no reason to lose it now


class RegretAccount:
    """Keeps what drafts lose against plain decoding within a share of the time.

    Losses are counted in plain steps. They may come to the given share of all time so far, and to
    one plain step on top, so that a text may be tried at its beginning. From half of that on drafts
    must look twice as good for each further time that it is lost, and at three times none are
    verified. Time without drafts makes room again, and so does what drafts bring, so nothing is
    given up for good.

    Attributes:
        loss: time of the steps with drafts beyond what they saved; below 0 where they paid.
    """

    def __init__(self, share: float) -> None:
        """Begin without losses.

        Args:
            share: of the time, that may be lost.
        """
        self.loss = 0.0
        self._share = share
        self._elapsed = 0.0

    @property
    def bound(self) -> float:
        """The losses that are meant to be the most, in plain steps."""
        return 1.0 + self._share * self._elapsed

    @property
    def caution(self) -> float:
        """How many times what drafts cost beyond a plain step they must look to save."""
        used = self.loss / self.bound
        return _NEVER if used > _MOST_USED else float(_CAUTION * 2 ** max(0.0, used - 0.5))

    def record(self, value: float, cost: float) -> None:
        """Take in one step.

        Args:
            value: the plain steps that it saved; 1 without drafts.
            cost: its time in plain steps; 1 without drafts.
        """
        self._elapsed += cost
        self.loss = max(self.loss + cost - value, -_MOST_CREDIT)
