"""Which implementation runs where: Triton kernels on a GPU, torch everywhere else."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import batched_cache, batched_sampling, batched_walk
from .batched_sampling import RowSampling
from .batched_walk import BatchedWalk


@dataclass(frozen=True, slots=True)
class DeviceOperations:
    """The verifier's work on the device; none of it waits for the device.

    Attributes:
        choose_tokens: as :func:`.batched_sampling.choose_tokens`.
        walk_trees: as :func:`.batched_walk.walk_trees`.
        gather_columns: as :func:`.batched_walk.gather_columns`.
        compact_cache: as :func:`.batched_cache.compact_cache`.
        kind: ``"triton"`` or ``"torch"``.
    """

    choose_tokens: Callable[[Tensor, Tensor, RowSampling], Tensor]
    walk_trees: Callable[[Tensor, Tensor, Tensor], BatchedWalk]
    gather_columns: Callable[[Tensor, Tensor], Tensor]
    compact_cache: Callable[[Sequence[Tensor], Tensor, Tensor, Tensor, int], None]
    kind: str


TORCH_OPERATIONS = DeviceOperations(
    batched_sampling.choose_tokens,
    batched_walk.walk_trees,
    batched_walk.gather_columns,
    batched_cache.compact_cache,
    "torch",
)


def triton_operations() -> DeviceOperations:
    """Return the kernels.

    Raises:
        ImportError: Triton is not installed.
    """
    from . import triton_cache, triton_sampling, triton_walk

    return DeviceOperations(
        triton_sampling.choose_tokens,
        triton_walk.walk_trees,
        triton_walk.gather_columns,
        triton_cache.compact_cache,
        "triton",
    )


def device_operations(device: torch.device) -> DeviceOperations:
    """Return the fastest operations for tensors of ``device``."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return triton_operations()
    return TORCH_OPERATIONS
