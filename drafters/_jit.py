"""How kernels are compiled: lazily, without the GIL, cached on disk where a folder is writable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

u = np.uintp
"""What kernels make of an index. Where it is signed, Numba looks at every access whether it counts
from the end, which took a third of the n-gram drafter's time."""

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Dispatcher[Callable[P, R]]:
    """Return ``function`` as a Numba kernel that compiles nothing until it is told to.

    Numba raises at decoration time when it finds no writable cache folder; such a kernel is
    compiled once a process instead of once a machine.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        return njit(nogil=True)(function)


def compile_once(
    dispatcher: Dispatcher[Callable[P, R]],
    signature: str,
    calls: Sequence[Dispatcher[Callable[..., object]]] = (),
) -> Callable[P, R]:
    """Compile ``dispatcher`` for exactly one signature, so that no request waits for the compiler.

    Calls with other types raise ``TypeError`` afterwards. Does nothing when the kernel is compiled
    already or when Numba is switched off (``NUMBA_DISABLE_JIT=1`` leaves plain functions).

    Args:
        dispatcher: what :func:`kernel` returned.
        signature: a Numba signature, for example ``"int64(int32[::1], int64)"``.
        calls: kernels of other files that it calls, compiled before. Numba's cache does not see
            when these files change, so where one was compiled anew, this kernel is too.

    Returns:
        The compiled function itself. It does not look at the types of its arguments, which takes
        longer than many a kernel: only for callers that made all arguments themselves.
    """
    compile_for = getattr(dispatcher, "compile", None)
    if compile_for is None:
        return dispatcher
    if not dispatcher.signatures:
        compile_for(signature)
        if dispatcher.stats.cache_hits and any(callee.stats.cache_misses for callee in calls):
            dispatcher.recompile()
        dispatcher.disable_compile()
    compiled: Any
    (compiled,) = dispatcher.overloads.values()
    entry_point: Callable[P, R] = compiled.entry_point
    return entry_point
