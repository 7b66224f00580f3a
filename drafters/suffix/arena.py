"""One flat int32 array that hands out extents and gives their memory back to the system."""

from __future__ import annotations

import mmap
import sys
from bisect import bisect_left, insort

import numpy as np

from ..tree import IntArray

ALIGNMENT = 1024
"""Extents begin and end at multiples of this many int32: a page of 4 KiB."""


class Arena:
    """A reserved range of memory, cut into extents.

    The range is mapped once, so that kernels see one array whatever moves in it. The system backs
    a page when it is first written, and takes it back when its extent is released. It is not asked
    for huge pages: with many long texts they would save a tenth of a step, but the first touch of
    one takes milliseconds where memory is in pieces.

    Attributes:
        array: ``(size,)`` int32, not initialised.
    """

    def __init__(self, max_bytes: int) -> None:
        """Reserve the range.

        Args:
            max_bytes: the most that all extents together may take.

        Raises:
            ValueError: less than one extent, or more than kernels can address.
        """
        size = max_bytes // 4 // ALIGNMENT * ALIGNMENT
        if not ALIGNMENT <= size < 1 << 31:
            raise ValueError(
                f"expected max_bytes within {4 * ALIGNMENT}..{(1 << 33) - 1}, got {max_bytes}"
            )
        self._map = _reserve(4 * size)
        self.array: IntArray = np.frombuffer(self._map, np.int32)
        self._free: list[tuple[int, int]] = [(0, size)]  # (start, stop), sorted, never adjacent
        self._sizes: dict[int, int] = {}

    @property
    def num_used(self) -> int:
        """Bytes in extents that are handed out."""
        return 4 * sum(self._sizes.values())

    def allocate(self, size: int) -> int | None:
        """Return where an extent of at least ``size`` int32 begins, or None when none is free."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        for index, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                if stop - start == size:
                    del self._free[index]
                else:
                    self._free[index] = (start + size, stop)
                self._sizes[start] = size
                return start
        return None

    def release(self, start: int) -> None:
        """Take back the extent that begins at ``start``."""
        stop = start + self._sizes.pop(start)
        if hasattr(self._map, "madvise"):  # not on Windows: there the pages stay until reused
            self._map.madvise(mmap.MADV_DONTNEED, 4 * start, 4 * (stop - start))
        index = bisect_left(self._free, (start, stop))
        if index < len(self._free) and self._free[index][0] == stop:
            stop = self._free.pop(index)[1]
        if index > 0 and self._free[index - 1][1] == start:
            start = self._free.pop(index - 1)[0]
        insort(self._free, (start, stop))


def _reserve(num_bytes: int) -> mmap.mmap:
    """Return a mapping of so many bytes that takes memory as it is written."""
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    # Private: a forked process gets a copy, and what is given back is really gone.
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
