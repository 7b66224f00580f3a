"""Zeros that cost nothing until they are written to."""

from __future__ import annotations

import contextlib
import mmap
import sys

import numpy as np

from .tree import IntArray

HUGE_PAGE = 1 << 21
"""Bytes of a huge page, as x86 and most others have it."""


def untouched_zeros(size: int, huge_pages: bool = False) -> IntArray:
    """Return ``(size,)`` int32 zeros that take memory as they are touched.

    They take it by small pages, where NumPy asks the system for huge ones. The first touch of a
    huge page clears 2 MiB, so that a short prompt, scattered over a large hash table, would pay for
    the clearing of all of it. What is touched from its beginning on does not, and is found faster.

    Args:
        size: at least 1.
        huge_pages: whether to ask for them, where the system has them; the zeros then begin at the
            start of one.
    """
    if sys.platform == "win32":
        return np.zeros(size, np.int32)
    num_bytes = 4 * size
    if huge_pages:  # whole ones: what lies beside the last one is as hot as the rest
        num_bytes = (num_bytes // HUGE_PAGE + 2) * HUGE_PAGE
    # Private: a forked process gets a copy, as of any other memory.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    zeros = np.frombuffer(memory, np.int32)
    start = -zeros.ctypes.data % HUGE_PAGE // 4 if huge_pages else 0
    return zeros[start : start + size]
