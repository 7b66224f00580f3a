"""Leaves a drafter alone for a few steps at a time while nothing it offers is worth verifying."""

from __future__ import annotations

_AWAKE = 4  # proposals in a row that came to nothing before the first nap
_LONGEST = 8  # steps; a passage that begins to repeat is noticed this much later at most


class DraftNaps:
    """Decides at which steps a drafter is asked at all.

    Where the target is small, following the text costs a share of each step, even if no draft comes
    of it. Taking in several tokens at once costs about as much as taking in one, so the drafter is
    asked less often the longer it has brought nothing: naps of 1, 2, ... up to 8 steps.

    Attributes:
        num_slept: steps since the drafter was last asked.
    """

    def __init__(self) -> None:
        """Start awake."""
        self.num_slept = 0
        self._num_idle = 0  # proposals in a row that came to nothing

    @property
    def _nap(self) -> int:
        return min(max(self._num_idle - _AWAKE + 1, 0), _LONGEST)

    def sleep(self) -> bool:
        """Return whether the drafter is left alone at this step, and count the step if so."""
        if self.num_slept >= self._nap:
            return False
        self.num_slept += 1
        return True

    def wake(self, num_drafted: int) -> None:
        """Note that the drafter was asked and how much of its proposal goes to the target."""
        self.num_slept = 0
        self._num_idle = 0 if num_drafted else self._num_idle + 1

    def restart(self) -> None:
        """Begin a text: the next steps ask the drafter."""
        self.num_slept = self._num_idle = 0
