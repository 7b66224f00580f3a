"""What the Triton kernels share; importing it needs Triton."""

# mypy: disable-error-code="import-not-found,import-untyped"
# Triton is optional, and carries no types where it is there.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction


def jit(function: Callable[..., Any]) -> Any:
    """Return ``function`` as a Triton kernel (Triton's own decorator carries no types)."""
    return triton.jit(function)


def is_interpreted() -> bool:
    """Say whether kernels run in Triton's interpreter, on tensors of the CPU.

    That is decided by ``TRITON_INTERPRET=1`` at the moment Triton is first imported.
    """
    return isinstance(tl.sum, InterpretedFunction)


def can_run_on(device: torch.device) -> bool:
    """Say whether the kernels run on tensors of ``device``."""
    return device.type == "cuda" or is_interpreted()


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is not smaller than ``number``, at least 2."""
    return max(2, 1 << (number - 1).bit_length())
