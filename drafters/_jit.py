"""How kernels are compiled: lazily, without the GIL, cached on disk where a folder is writable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic, overload

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


def prefetch(array: npt.NDArray[np.generic], index: np.uintp) -> None:
    """Ask for the cache line of ``array.ravel()[index]``; an index outside it does no harm.

    It is a hint alone, and nothing at all where Numba is switched off.

    Args:
        array: contiguous.
        index: made by ``u``.
    """


@intrinsic
def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.gep(struct.data, [args[1]])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", fnty=kind)
        to_read, keep, data = number(0), number(3), number(1)
        builder.call(function, [pointer, to_read, keep, data])
        return context.get_dummy_value()

    return types.void(array, index), codegen


@overload(prefetch)
def _overload_prefetch(array: Any, index: Any) -> Any:
    def implementation(array: Any, index: Any) -> None:
        _prefetch(array, index)  # type: ignore[call-arg]

    return implementation
