"""Zeros that cost nothing until they are written to."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from freedraft.drafters.untouched import HUGE_PAGE, untouched_zeros

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("huge_pages", [False, True])
def test_they_are_zeros_of_ones_own(huge_pages: bool) -> None:
    first, second = (untouched_zeros(1_000_000, huge_pages) for _ in range(2))
    assert first.dtype == np.int32 and first.shape == (1_000_000,)
    first[:] = 7
    assert not second.any()
    if huge_pages:
        assert first.ctypes.data % HUGE_PAGE == 0


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc to see the memory in use")
def test_scattered_writes_take_small_pages_only() -> None:
    before = resident_bytes()
    zeros = untouched_zeros(1 << 26)  # 256 MiB, 128 huge pages
    zeros[:: 1 << 20] = 1
    assert resident_bytes() - before < 16 << 20
    assert int(zeros[:: 1 << 20].sum()) == 64
