"""Leaves a drafter alone while the text gives no reason to think that a draft could pay."""

from __future__ import annotations

from collections.abc import Iterable

GRAM = 3
"""Tokens of a shortest repeat that is noticed."""

_KEPT = (1 << GRAM * 32) - 1  # keeps the last ids of 32 bits
_FIRST, _LONGEST = 4, 128  # steps of a nap
_SHARE = 0.0025  # of all steps' time that asking a drafter without need may take
_RATE, _MOST_SURPRISE = 0.25, 4.0  # of a measured cost: its weight, and what it may be of the last
_GROWTH = 4  # after a proposal that came to nothing a repeat must grow by a quarter
_DOUBT = 2  # so many such proposals make repeats wait for one more token
_MOST_GRAMS = 1 << 16  # of each of two sets, of which the older goes first


class DraftNaps:
    """Decides at which steps a drafter is asked at all.

    Where the target is small, following the text costs a share of each step, even if no draft comes
    of it: the target's weights push all that a drafter has stored out of the caches. Taking in
    several tokens at once costs about as much as taking in one. So the text itself is watched,
    which costs a thirtieth of that: for how many tokens has each run of three stood before, in this
    text or an earlier one? A repeat as long as could pay wakes the drafter at once; if nothing
    comes of it, the repeat must grow by a quarter before the drafter is asked again. Without a
    repeat it is asked for the sake of what it may know from elsewhere, after naps of 4, 8, 16 steps
    and so on, until asking takes a quarter of a percent of the time; at most 128.

    Attributes:
        num_slept: steps since the drafter was last asked.
        repeat: length of the text's end that seems to have stood before; 0 below three tokens.
    """

    def __init__(self, least_repeat: int = GRAM) -> None:
        """Start without a text.

        Args:
            least_repeat: the shortest repeat for which it is worth asking; below three, three.
        """
        self.num_slept = 0
        self.repeat = 0
        self._least_repeat = max(least_repeat, GRAM)
        self._wanted = self._least_repeat  # length of the repeat that wakes the drafter
        self._num_fruitless = 0  # proposals in a row, made because of a repeat, of which none paid
        self._nap = _FIRST
        self._longest = _LONGEST
        self._cost: float | None = None  # of asking, in steps
        self._gram = _KEPT  # the last ids; no token has all bits set
        self._grams: set[int] = set()
        self._older_grams: set[int] = set()

    def follow(self, token_ids: Iterable[int]) -> None:
        """Take in how the text went on: its new tokens, or all of them after a restart."""
        gram, grams, older, repeat = self._gram, self._grams, self._older_grams, self.repeat
        for token in token_ids:
            gram = (gram << 32 | token & 0xFFFFFFFF) & _KEPT
            if gram in grams or gram in older:
                repeat = repeat + 1 if repeat else GRAM
            else:
                if repeat:
                    self._wanted = self._least_repeat + self._num_fruitless // _DOUBT
                repeat = 0
            grams.add(gram)
        self._gram, self.repeat = gram, repeat
        if len(grams) > _MOST_GRAMS:
            self._grams, self._older_grams = set(), grams

    def sleep(self) -> bool:
        """Return whether the drafter is left alone at this step, and count the step if so."""
        if self.repeat >= self._wanted or self.num_slept >= self._nap:
            return False
        self.num_slept += 1
        return True

    def wake(self, num_drafted: int, cost: float | None = None) -> None:
        """Note that the drafter was asked.

        Args:
            num_drafted: how much of its proposal goes to the target.
            cost: the time that it took, in steps without a draft; ``None`` if it is not known.
        """
        self.num_slept = 0
        if cost is not None:
            self._note_cost(cost)
        if num_drafted:
            self._nap = self._num_fruitless = 0
            self._wanted = self._least_repeat
            return
        self._nap = min(2 * self._nap, self._longest) if self._nap else _FIRST
        if self.repeat >= self._wanted:
            self._num_fruitless += 1
            self._wanted = self.repeat + max(self.repeat // _GROWTH, 1)

    def restart(self, least_repeat: int = GRAM, asleep: bool = True) -> None:
        """Begin a text; earlier ones are remembered.

        Args:
            least_repeat: as at the beginning.
            asleep: whether a text that repeats nothing begins with a nap.
        """
        self.num_slept = self.repeat = self._num_fruitless = 0
        self._gram = _KEPT
        self._least_repeat = self._wanted = max(least_repeat, GRAM)
        self._nap = _FIRST if asleep else 0

    def _note_cost(self, cost: float) -> None:
        last = cost if self._cost is None else self._cost
        # A descheduled process must not tip the balance.
        self._cost = last + _RATE * (min(cost, _MOST_SURPRISE * last) - last)
        self._longest = max(_FIRST, min(round(self._cost / _SHARE), _LONGEST))
