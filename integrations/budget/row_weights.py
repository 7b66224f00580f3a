"""What a token of each request is worth, where a batch may end with its last one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...drafters import RequestId

FloatArray64 = npt.NDArray[np.float64]

_WITHIN = 10.0  # tokens: one draft that comes true brings a request that much ahead of another
_MOST_CLOSED = 0.75  # a request may end by itself, and then nobody knows which is the last
_MEMORY = 64.0  # ends over which the arrivals are averaged
_DOUBT = 2.0  # arrivals that are believed in at the start, each with an end
_UNDER_WAY = 32  # steps of the others, after which one that joins them was not sent with them


def row_weights(num_left: npt.ArrayLike, row_costs: npt.ArrayLike, closed: float) -> FloatArray64:
    """Return the worth of a token of each request, 1 on average.

    A plain step of n requests takes a fixed time and one that grows with n. A token that brings one
    request ahead saves its share of the latter. The former is saved by the last request alone if
    nobody takes the place of one that ends, and by all alike if somebody does. Which one is the
    last is known as far as drafts may change it: its weight is shared among those that are within a
    few tokens.

    Args:
        num_left: ``(n,)`` tokens that each request may still emit.
        row_costs: ``(n,)`` time of a plain step of 1 to n requests, in any unit.
        closed: the probability that the batch only shrinks.
    """
    left = np.asarray(num_left, np.float64)
    times = np.asarray(row_costs, np.float64)
    if left.size < 2:
        return np.ones(left.size)
    fixed = (times[0] - (times[-1] - times[-2])) / times[-1]
    sure = closed * min(max(float(fixed), 0.0), 1.0)
    last = np.exp((left - left.max()) / _WITHIN)
    return np.asarray(sure * left.size * last / last.sum() + (1 - sure))


class Arrivals:
    """Tells batches that only shrink from those in which others take the places."""

    def __init__(self) -> None:
        """Begin in doubt."""
        self._started: dict[RequestId, int] = {}
        self._num_steps = 0
        self._ends = self._joined = _DOUBT

    @property
    def closed(self) -> float:
        """The probability that the batch at hand only shrinks."""
        return _MOST_CLOSED * max(0.0, 1 - self._joined / self._ends)

    def step(self, request_ids: Sequence[RequestId]) -> None:
        """Take in who is there in a step."""
        self._num_steps += 1
        new = [request_id for request_id in request_ids if request_id not in self._started]
        if not new:
            return
        is_under_way = self._num_steps - min(self._started.values(), default=0) > _UNDER_WAY
        if self._started and is_under_way:
            self._joined += len(new)
        self._started.update(dict.fromkeys(new, self._num_steps))

    def end(self, request_id: RequestId) -> None:
        """Take in that a request has ended."""
        if self._started.pop(request_id, None) is None:
            return
        self._ends = self._ends * (1 - 1 / _MEMORY) + 1
        self._joined *= 1 - 1 / _MEMORY
