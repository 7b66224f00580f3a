"""Measures an engine's steps from the outside: the time between two calls for drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from ..drafters import RequestId


class StepClock:
    """Times the steps of an engine that asks for drafts once a step.

    Only a step whose requests were all there at the call before counts: then the engine had work
    throughout, and did not compute a prompt.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Start without a measurement.

        Args:
            now: seconds of a steady clock.
        """
        self._now = now
        self._previous: frozenset[RequestId] = frozenset()
        self._called_at = 0.0

    def tick(self, request_ids: Collection[RequestId], is_complete: bool) -> float | None:
        """Return the step's seconds, ``None`` where they tell nothing about decoding.

        Args:
            request_ids: the requests that got tokens.
            is_complete: whether the step computed nothing else.
        """
        now = self._now()
        seconds = now - self._called_at
        current = frozenset(request_ids)
        counts = is_complete and bool(current) and current <= self._previous
        self._called_at, self._previous = now, current
        return seconds if counts else None
