"""What a replay keeps beside sums: call times, memory over time, the extreme requests."""

from __future__ import annotations

import math
import os
import sys
from bisect import insort
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

NUM_HIGHLIGHTS = 10
MIN_HIGHLIGHT_TOKENS = 16
_STEPS_AN_OCTAVE = 16
_NUM_TIMES = 40 * _STEPS_AN_OCTAVE  # up to 2**40 ns, about 18 minutes
_BUFFER = 4096
_STATM = Path("/proc/self/statm")


@dataclass(slots=True)
class TimeHistogram:
    """Call times in buckets of 4.4 % each, so that any number of calls takes the same memory.

    Attributes:
        counts: calls by bucket.
    """

    counts: dict[str, int] = field(default_factory=dict)
    _recent: list[int] = field(default_factory=list)

    def add(self, nanoseconds: int) -> None:
        """Count one call."""
        self._recent.append(nanoseconds)
        if len(self._recent) >= _BUFFER:
            self.settle()

    def settle(self) -> None:
        """Sort the latest calls into buckets."""
        if not self._recent:
            return
        times = np.maximum(np.array(self._recent, np.float64), 1)
        buckets = np.minimum((np.log2(times) * _STEPS_AN_OCTAVE).astype(np.int64), _NUM_TIMES - 1)
        for bucket, count in zip(*np.unique(buckets, return_counts=True), strict=True):
            key = str(bucket)
            self.counts[key] = self.counts.get(key, 0) + int(count)
        self._recent.clear()

    def percentile_us(self, percent: float) -> float:
        """Return a percentile in microseconds, at most 2.2 % off; 0 without calls."""
        self.settle()
        left = percent / 100 * self.num_calls
        for bucket in sorted(map(int, self.counts)):
            left -= self.counts[str(bucket)]
            if left <= 0:
                return _middle_us(bucket)
        return 0.0

    @property
    def num_calls(self) -> int:
        """Calls so far."""
        return sum(self.counts.values()) + len(self._recent)

    def mean_us(self, percent: float) -> float:
        """Return the mean of the fastest ``percent`` of the calls in microseconds; 0 without calls.

        The slowest calls of a busy machine are those in which somebody else had the processor.
        """
        self.settle()
        left = kept = percent / 100 * self.num_calls
        total = 0.0
        for bucket in sorted(map(int, self.counts)):
            count = min(self.counts[str(bucket)], left)
            total += count * _middle_us(bucket)
            left -= count
        return total / kept if kept else 0.0

    def merge(self, other: TimeHistogram) -> None:
        """Add another's calls."""
        other.settle()
        for key, count in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + count


def _middle_us(bucket: int) -> float:
    return float(2 ** ((bucket + 0.5) / _STEPS_AN_OCTAVE)) / 1000


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Memory at one moment.

    Attributes:
        tokens: response tokens walked so far by the drafter at hand.
        process_bytes: resident memory of the process; 0 where it cannot be told.
        drafter_bytes: what the drafter says that it holds; None where it does not say.
    """

    tokens: int
    process_bytes: int
    drafter_bytes: int | None


def sample_memory(tokens: int, drafter: object) -> MemorySample:
    """Return the memory now."""
    held = getattr(drafter, "num_bytes", None)
    return MemorySample(tokens, resident_bytes(), held if isinstance(held, int) else None)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Highlight:
    """One request that gained much or little.

    Attributes:
        number: in the store of requests.
        place: ``file:line`` of the log.
        tokens: response tokens.
        accepted: accepted nodes of each step; a step emitted one token more, save perhaps the last.
    """

    number: int
    place: str
    tokens: int
    accepted: list[int]

    @property
    def tokens_per_step(self) -> float:
        """Response tokens over steps."""
        return self.tokens / max(len(self.accepted), 1)


def keep_extremes(most: list[Highlight], least: list[Highlight], new: Highlight) -> None:
    """Put a request into the two bounded lists if it belongs there.

    Args:
        most: by falling tokens a step, mutated.
        least: by rising tokens a step, mutated.
        new: the request.
    """
    for kept, sign in ((most, -1), (least, 1)):

        def rank(entry: Highlight, sign: int = sign) -> tuple[float, int, int]:
            return sign * entry.tokens_per_step, -entry.tokens, entry.number

        if all(entry.number != new.number for entry in kept):
            insort(kept, new, key=rank)
            del kept[NUM_HIGHLIGHTS:]


def every(total: int, samples: int) -> int:
    """Return after how many tokens to take a sample so that there are about that many in all."""
    return max(1, math.ceil(total / samples))
