"""Whether running a model to draft is faster than not to, by what steps really take and bring.

A draft of a model costs forwards, so unlike one that is looked up it can lose much. What counts is
the whole step from one ``propose`` to the next, whoever else drafts and whatever else is paid in
it: tokens per second of the steps with this drafter's draft against those without.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_PLAIN = 0
_DRAFTED = 1
_TRIAL = (4, 2)  # steps in a trial without drafts, and in one with them, which may be dear
_FIRST_PAUSE = 64  # steps until the next trial; doubled each time that nothing changes
_LONGEST_PAUSE = (4096, 256)  # while off, while on
_MEMORY = 0.9  # of one step's times and tokens in the next


class PayGate:
    """Switches between steps with and without a draft; neither is for good.

    The first steps are plain, then some with a draft, and the faster kind goes on, with trials of
    the other. After each trial that changes nothing the pause until the next one doubles.
    """

    def __init__(
        self,
        enabled: bool,
        clock: Callable[[], float] = time.perf_counter,
        *,
        hopeful: bool = True,
    ) -> None:
        """Begin with a trial of both kinds.

        Args:
            enabled: ``False`` always drafts.
            clock: seconds.
            hopeful: ``False`` where drafts are predicted not to pay: the first one is late.
        """
        self._enabled = enabled
        self._clock = clock
        self._tokens = [0.0, 0.0]
        self._seconds = [0.0, 0.0]
        self._is_on = False
        self._kind = _PLAIN
        self._left = _TRIAL[_PLAIN] if hopeful else _LONGEST_PAUSE[_PLAIN]  # until it may change
        self._pause = _FIRST_PAUSE if hopeful else _LONGEST_PAUSE[_PLAIN]
        self._begin: float | None = None  # of the running step
        self._step_tokens = 0
        self._rows = 0

    @property
    def is_on(self) -> bool:
        """Whether drafting is what goes on between trials."""
        return self._is_on or not self._enabled

    def begin_step(self, num_rows: int) -> bool:
        """Begin a step, and say whether it should have a draft.

        Args:
            num_rows: requests in it; what a step brings is compared for the same number only.
        """
        if not self._enabled:
            return True
        now = self._clock()
        if self._begin is not None and num_rows == self._rows and self._step_tokens:
            self._count(now - self._begin)
        self._begin = now
        self._rows = num_rows
        self._step_tokens = 0
        return self._kind == _DRAFTED

    def add_tokens(self, num_tokens: int) -> None:
        """Count tokens that the running step has emitted."""
        self._step_tokens += num_tokens

    def interrupt(self) -> None:
        """Leave the running step out: a request began or ended in it."""
        self._begin = None

    def speedup(self) -> float | None:
        """Return tokens per second with drafts over those without, ``None`` while not known."""
        if not all(self._seconds):
            return None
        plain, drafted = (t / s for t, s in zip(self._tokens, self._seconds, strict=True))
        return drafted / plain

    def _count(self, seconds: float) -> None:
        kind = self._kind
        self._tokens[kind] = self._tokens[kind] * _MEMORY + self._step_tokens / self._rows
        self._seconds[kind] = self._seconds[kind] * _MEMORY + seconds
        self._left -= 1
        if self._left == 0:
            self._change()

    def _change(self) -> None:
        """End a stretch of one kind: try the other one, or go on with the faster one."""
        speedup = self.speedup()
        if speedup is None:
            self._kind, self._left = _DRAFTED, _TRIAL[_DRAFTED]
            return
        is_trial = self._kind != (_DRAFTED if self._is_on else _PLAIN)
        if not is_trial:
            self._kind = 1 - self._kind
            self._forget(self._kind)
            self._left = _TRIAL[self._kind]
            return
        was_on, self._is_on = self._is_on, speedup > 1
        self._kind = _DRAFTED if self._is_on else _PLAIN
        longest = _LONGEST_PAUSE[self._kind]
        self._pause = min(2 * self._pause, longest) if was_on == self._is_on else _FIRST_PAUSE
        self._left = self._pause

    def _forget(self, kind: int) -> None:
        """Let a trial speak for itself: the text is another than at the last one."""
        self._tokens[kind] = 0.0
        self._seconds[kind] = 0.0
