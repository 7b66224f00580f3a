"""Whether an expensive source pays: what it brings against what its time would have brought."""

from __future__ import annotations


class Price:
    """Running means of a source's time, of its gain, and of the speed of decoding around it.

    All fade, and a source that does not pay is tried now and then, so none is off for good.
    """

    def __init__(self, memory: float, retry_period: int) -> None:
        """Begin with trust: it pays until measured.

        Args:
            memory: calls over which time and gain are averaged.
            retry_period: a source that does not pay is tried once in so many occasions.
        """
        self._rate = 1 / memory
        self._retry_period = retry_period
        self._seconds = 0.0  # of a request's draft
        self._gain = 0.0  # tokens that it added to a step
        self._tokens_per_second = 0.0  # of decoding, the source's own time left out
        self._num_gains = 0
        self._num_steps = 0
        self._skipped = 0

    @property
    def pays(self) -> bool:
        """Whether the tokens it adds outweigh those that its time costs."""
        if min(self._num_gains, self._num_steps) < 1 / self._rate / 4:
            return True  # too little is known
        return self._gain > self._seconds * self._tokens_per_second

    def is_due(self) -> bool:
        """Return whether to ask the source on this occasion."""
        if self.pays:
            return True
        self._skipped += 1
        return self._skipped % self._retry_period == 0

    def record_draft(self, seconds: float, num_requests: int) -> None:
        """Take in the time of one call for so many requests."""
        self._seconds += self._weight(self._num_gains) * (seconds / num_requests - self._seconds)

    def record_gain(self, tokens: int) -> None:
        """Take in how many tokens one request's draft added to a step, beyond all other sources."""
        self._gain += self._weight(self._num_gains) * (tokens - self._gain)
        self._num_gains += 1

    def record_step(self, tokens: int, seconds: float) -> None:
        """Take in what a step of all requests committed, and its time without this source."""
        speed = tokens / max(seconds, 1e-9)
        weight = self._weight(self._num_steps)
        self._tokens_per_second += weight * (speed - self._tokens_per_second)
        self._num_steps += 1

    def _weight(self, seen: int) -> float:
        return max(self._rate, 1 / (seen + 1))
