"""The target model as the decode loop sees it, whichever way it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import CompileConfig

from ..drafters import CandidateTree
from .chain_forward import ChainForward
from .device.batched_walk import BatchedWalk
from .recurrent_state import has_recurrent_state
from .tree_forward import TreeForward


class Target(Protocol):
    """Scores trees and keeps what was accepted; see :class:`.TreeForward`."""

    @property
    def cache(self) -> Cache | None: ...

    @property
    def context_lengths(self) -> list[int]: ...

    @property
    def hidden_states(self) -> tuple[Tensor, ...]: ...

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor: ...

    def fit(self, trees: Sequence[CandidateTree]) -> list[CandidateTree]: ...

    def forward(self, trees: Sequence[CandidateTree], root_ids: Sequence[int]) -> Tensor: ...

    def move(self, walk: BatchedWalk) -> None: ...

    def commit(self, accepted: Sequence[Sequence[int]]) -> None: ...

    def select(self, rows: Sequence[int]) -> None: ...

    def finish(self) -> None: ...


def open_target(
    model: PreTrainedModel,
    cache: Cache | None = None,
    capacity: int = 0,
    num_tokens: int = 0,
    hidden_states: bool = False,
    compile_config: CompileConfig | None = None,
) -> TreeForward | ChainForward:
    """Return the target: trees where attention is all, chains where a layer is recurrent.

    Args:
        model: a decoder-only model.
        cache: a cache to go on with, or ``None``.
        capacity: slots that a new cache leaves room for.
        num_tokens: tokens of the longest row to come.
        hidden_states: keep the hidden states of each forward.
        compile_config: how to compile the steps, or ``None``.

    Raises:
        ValueError: the model or the cache cannot be verified on exactly, or steps on it cannot be
            compiled.
    """
    if has_recurrent_state(model):
        if compile_config is not None:
            raise ValueError(
                f"expected a model of attention alone with compile_config, got "
                f"{type(model).__name__}, whose recurrent states are replayed step by step"
            )
        return ChainForward(model, cache, hidden_states)
    return TreeForward(model, cache, capacity, num_tokens, hidden_states, compile_config)
