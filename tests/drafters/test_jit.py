"""How kernels are compiled, and that no stale one is taken from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from freedraft.drafters._jit import compile_once, kernel, prefetch, u
from freedraft.drafters.tree import IntArray

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
CALLEE = """
from freedraft.drafters._jit import compile_once, kernel

@kernel
def callee(x):
    return x + {}

compile_once(callee, "int64(int64)")
"""
CALLER = """
from callee import callee
from freedraft.drafters._jit import compile_once, kernel

@kernel
def caller(x):
    return 10 * callee(x)

print(compile_once(caller, "int64(int64)", calls=(callee,))(1), caller.stats.cache_hits)
"""


@kernel
def _add(x: int, y: int) -> int:
    return x + y


def test_a_kernel_has_one_signature_and_its_entry_gives_the_same() -> None:
    entry = compile_once(_add, "int64(int64, int64)")
    assert entry(2, 3) == _add(2, 3) == 5
    assert compile_once(_add, "int64(int64, int64)")(4, 5) == 9
    if COMPILED:
        assert len(_add.signatures) == 1
        with pytest.raises(TypeError):
            _add(np.zeros(1), 1)


@kernel
def _sum(values: IntArray, ahead: int) -> int:
    total = 0
    for i in range(values.size):
        prefetch(values, u(i + ahead))
        total += values[u(i)]
    return total


def test_asking_for_memory_changes_nothing_wherever_the_index_lies() -> None:
    compile_once(_sum, "int64(int32[::1], int64)")
    values = np.arange(100, dtype=np.int32)
    for ahead in (0, 16, 100_000_000_000):
        assert _sum(values, ahead) == 4950
    assert values.tolist() == list(range(100))


@pytest.mark.skipif(not COMPILED, reason="Numba is switched off: there is no cache")
def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    def run(added: int) -> list[str]:
        (tmp_path / "callee.py").write_text(CALLEE.format(added))
        (tmp_path / "caller.py").write_text(CALLER)
        os.utime(tmp_path / "caller.py", (1, 1))  # the same file as ever
        command = [sys.executable, "caller.py"]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.split(maxsplit=1)

    assert run(1) == ["20", "Counter()\n"]
    os.utime(tmp_path / "callee.py", (2, 2))
    assert run(200)[0] == "2010"
