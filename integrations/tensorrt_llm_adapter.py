"""freedraft inside TensorRT-LLM's PyTorch backend: a user-provided drafter and its manager."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorrt_llm._torch.pyexecutor.resource_manager import (  # pyright: ignore[reportMissingImports]
    BaseResourceManager,
)
from tensorrt_llm._torch.speculative.drafter import Drafter  # pyright: ignore[reportMissingImports]

from .budget.config import check_schedule
from .engine_config import EngineConfig
from .statistics import GenerationStatistics
from .tensorrt_llm_chains import RequestChains, read_vocab_size

_LENGTH_NAMES = ("max_draft_len", "max_total_draft_tokens", "max_draft_tokens")
_ANY_BATCH = 1 << 20


class FreedraftDrafter(Drafter):  # type: ignore[misc]  # no types without the engine
    """Writes a chain of tokens into each request of a step."""

    def __init__(
        self,
        chains: RequestChains,
        max_draft_len: int,
        max_concurrency: int | None = None,
        schedule: Mapping[int, int] | None = None,
    ) -> None:
        """Pass to the engine's part what its release takes.

        Args:
            chains: follows the requests.
            max_draft_len: most tokens of a draft.
            max_concurrency: requests in a batch above which the engine does not speculate.
            schedule: most tokens of a draft by the number of requests from which on it holds.

        Raises:
            ValueError: a limit is out of its range, or this release knows no schedule.
        """
        if max_draft_len < 1:
            raise ValueError(f"expected max_draft_len >= 1, got {max_draft_len}")
        taken = inspect.signature(Drafter.__init__).parameters
        offered: dict[str, Any] = dict.fromkeys(_LENGTH_NAMES, max_draft_len)
        offered["max_concurrency"] = max_concurrency
        offered["draft_len_schedule"] = None
        if schedule is not None:
            if "draft_len_schedule" not in taken:
                raise ValueError("expected no schedule: this release of TensorRT-LLM takes none")
            offered["draft_len_schedule"] = engine_schedule(schedule, max_draft_len)
        super().__init__(**{name: value for name, value in offered.items() if name in taken})
        self._chains = chains
        self._longest = max_draft_len

    @property
    def statistics(self) -> GenerationStatistics:
        """Counts of all requests of this process so far."""
        return self._chains.statistics

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Write a draft into each generation request.

        Raises:
            ValueError: the model keeps a state that the engine does not turn back.
        """
        _refuse_state(resource_manager)
        self._chains.prepare(scheduled_requests.generation_requests, self._step_length())

    def _step_length(self) -> int:
        """Return the most tokens of a draft now: the engine writes its schedule's choice here."""
        given: list[int | None] = [getattr(self, name, None) for name in _LENGTH_NAMES]
        return min([self._longest, *(number for number in given if number is not None)])


class FreedraftManager(BaseResourceManager):  # type: ignore[misc]
    """Hears of each step and of each request's end, also while speculation is off."""

    def __init__(self, chains: RequestChains, max_requests: int = 4096) -> None:
        """Share what the drafter follows.

        Args:
            chains: the drafter's.
            max_requests: what the engine is told of its capacity.
        """
        self._chains = chains
        self._max_requests = max_requests

    def get_max_resource_count(self) -> int:
        """Return how many requests may run."""
        return self._max_requests

    def get_needed_resource_to_completion(self, request: Any) -> int:
        """Return 0: a request takes nothing that could run out."""
        return 0

    def prepare_resources(self, scheduled_batch: Any) -> None:
        """Prepare nothing."""

    def update_resources(self, scheduled_batch: Any) -> None:
        """Take in the step's tokens: the drafter is not asked while speculation is off."""
        self._chains.follow(scheduled_batch.generation_requests)

    def free_resources(self, request: Any) -> None:
        """Release a request that has ended."""
        self._chains.free(request)


def create_decoding_config(
    model: str | Path,
    max_draft_len: int = 8,
    config: EngineConfig | None = None,
    max_concurrency: int | None = None,
    schedule: Mapping[int, int] | None = None,
    vocab_size: int | None = None,
) -> Any:
    """Return the ``speculative_config`` for ``tensorrt_llm.LLM``.

    Args:
        model: the model's folder.
        max_draft_len: most tokens of a draft.
        config: freedraft's settings; the defaults when absent.
        max_concurrency: requests in a batch above which the engine does not speculate.
        schedule: most tokens of a draft by the number of requests from which on it holds, for
            example ``{1: 8, 8: 4, 32: 0}``; handed on in the form that the release reads.
        vocab_size: the vocabulary's size; read from the model's folder when absent.

    Raises:
        ValueError: the model keeps a state, or a limit or setting is out of its range.
        OSError: the model's configuration cannot be read.
    """
    from tensorrt_llm.llmapi import (  # pyright: ignore[reportMissingImports]
        UserProvidedDecodingConfig,
    )

    found = read_vocab_size(model)
    chains = RequestChains(found if vocab_size is None else vocab_size, config)
    drafter = FreedraftDrafter(chains, max_draft_len, max_concurrency, schedule)
    manager = FreedraftManager(chains)
    return UserProvidedDecodingConfig(
        max_draft_len=max_draft_len, drafter=drafter, resource_manager=manager
    )


def engine_schedule(schedule: Mapping[int, int], max_draft_len: int) -> dict[int, int]:
    """Return a schedule in the form that the installed release reads.

    Older releases read a key as "from that many requests on", newer ones as "up to that many", with
    no drafts beyond the last one. Which one it is, is found out by asking.

    Args:
        schedule: lengths by the number of requests from which on they hold.
        max_draft_len: lengths are cut to it.

    Raises:
        ValueError: the schedule does not begin at one request, or a length is negative.
    """
    check_schedule(schedule)
    lengths = {load: min(schedule[load], max_draft_len) for load in sorted(schedule)}
    if _reads_from():
        return lengths
    loads = list(lengths)
    stops = [*(load - 1 for load in loads[1:]), _ANY_BATCH]
    up_to = {stop: lengths[load] for stop, load in zip(stops, loads, strict=True)}
    if lengths[loads[-1]] == 0:
        del up_to[_ANY_BATCH]  # beyond the last key there are no drafts anyway
    return up_to


def _reads_from() -> bool:
    """Return whether the release reads a key as the number of requests from which on it holds."""
    ask: Callable[..., int] | None = getattr(Drafter, "get_draft_len_for_batch_size", None)
    if ask is not None:
        probe = Drafter.__new__(_Probe)
        probe.draft_len_schedule = {1: 2, 4: 1}
        return ask(probe, 3) == 2
    from tensorrt_llm._torch.speculative.interface import (  # pyright: ignore[reportMissingImports]
        get_draft_len_for_batch_size,
    )

    return bool(get_draft_len_for_batch_size({1: 2, 4: 1}, 3, 2) == 2)


class _Probe(Drafter):  # type: ignore[misc]
    """Only carries a schedule to the method that reads it."""

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Do nothing."""


def _refuse_state(resource_manager: Any) -> None:
    """Raise where the engine's cache keeps the state of state-space layers."""
    managers = getattr(resource_manager, "resource_managers", None) or {}
    for manager in managers.values():
        if "mamba" in type(manager).__name__.lower():
            raise ValueError(
                f"expected a cache of attention layers only, got {type(manager).__name__}: the "
                "engine does not turn a state back behind rejected drafts"
            )
