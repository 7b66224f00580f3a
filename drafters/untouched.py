"""Zeros that cost nothing until they are written to."""

from __future__ import annotations

import mmap
import sys

import numpy as np

from .tree import IntArray


def untouched_zeros(size: int) -> IntArray:
    """Return ``(size,)`` int32 zeros that take memory by small pages, as they are touched.

    NumPy asks the system for huge pages. The first touch of one clears 2 MiB, so that a short
    prompt, scattered over a large hash table, would pay for the clearing of all of it.

    Args:
        size: at least 1.
    """
    if sys.platform == "win32":
        return np.zeros(size, np.int32)
    # Private: a forked process gets a copy, as of any other memory.
    memory = mmap.mmap(-1, 4 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.int32)
