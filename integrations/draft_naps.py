"""Leaves a drafter alone for a few steps at a time while nothing it offers is worth verifying."""

from __future__ import annotations

from collections.abc import Iterable

_AWAKE = 2  # proposals in a row that came to nothing before the first nap
_LONGEST = 32  # steps
_SHARE = 8  # of a nap so much is slept on while the text repeats itself
_GRAM = (1 << 4 * 32) - 1  # keeps four ids of 32 bits: have they stood together before?


class DraftNaps:
    """Decides at which steps a drafter is asked at all.

    Where the target is small, following the text costs a share of each step, even if no draft comes
    of it: the target's weights push all that a drafter has stored out of the caches. Taking in
    several tokens at once costs about as much as taking in one, so the drafter is asked less often
    the longer it has brought nothing: naps of 1, 2, 4, ... up to 32 steps. Meanwhile one set of all
    n-grams so far is looked at; while the text's last one is in it, naps are an eighth as long.

    Attributes:
        num_slept: steps since the drafter was last asked.
    """

    def __init__(self) -> None:
        """Start awake, without a text."""
        self.num_slept = 0
        self._num_idle = 0  # proposals in a row that came to nothing
        self._grams: set[int] = set()
        self._gram = 0  # the last four token ids
        self._repeats = False

    @property
    def _nap(self) -> int:
        num_naps = self._num_idle - _AWAKE
        if num_naps < 0:
            return 0
        nap = _LONGEST if num_naps > _LONGEST else min(1 << num_naps, _LONGEST)
        return nap // _SHARE if self._repeats else nap

    def follow(self, token_ids: Iterable[int]) -> None:
        """Take in how the text went on: its new tokens, or all of them after a restart."""
        gram = self._gram
        for token in token_ids:
            gram = (gram << 32 | token) & _GRAM
            self._repeats = gram in self._grams
            self._grams.add(gram)
        self._gram = gram

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
        self.num_slept = self._num_idle = self._gram = 0
        self._grams.clear()
        self._repeats = False
