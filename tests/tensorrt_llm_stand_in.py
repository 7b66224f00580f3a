"""A stand-in for TensorRT-LLM with recorded signatures: what the adapter calls, and no more."""

from __future__ import annotations

import json
import types
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

RECORDED = json.loads(
    (Path(__file__).parent / "integrations" / "tensorrt_llm_signatures.json").read_text()
)
GENERATIONS: dict[str, dict[str, Any]] = RECORDED["generations"]


def read_schedule(schedule: dict[int, int], batch_size: int, meaning: str) -> int:
    """Read a schedule as the releases do, each in its own way."""
    sizes = sorted(schedule)
    if meaning == "from":
        place = bisect_right(sizes, batch_size) - 1
        return schedule[sizes[place]] if place >= 0 else 0
    place = bisect_left(sizes, batch_size)
    return schedule[sizes[place]] if place < len(sizes) else 0


def make_drafter_base(generation: dict[str, Any]) -> type:
    """Return the abstract drafter of a generation."""
    names = generation["constructor"]
    source = f"def __init__(self, {', '.join(f'{name}=None' for name in names)}):\n"
    source += "".join(f"    self.{name} = {name}\n" for name in names)
    made: dict[str, Any] = {}
    exec(source, made)
    body: dict[str, Any] = {
        "__init__": made["__init__"],
        "prepare_draft_tokens": abstractmethod(lambda self, scheduled_requests, manager=None: None),
    }
    if generation["reader"] == "drafter":

        def get_draft_len_for_batch_size(self: Any, batch_size: int) -> int:
            return read_schedule(self.draft_len_schedule, batch_size, generation["meaning"])

        body["get_draft_len_for_batch_size"] = get_draft_len_for_batch_size

    def update_max_total_draft_tokens(self: Any, number: int) -> None:
        for name in names:
            if "draft" in name and "schedule" not in name:
                setattr(self, name, number)

    body["update_max_total_draft_tokens"] = update_max_total_draft_tokens
    return type(ABC)("Drafter", (ABC,), body)


def make_manager_base() -> type:
    """Return the abstract resource manager."""
    body: dict[str, Any] = {}
    for name in RECORDED["manager"]["abstract"]:
        body[name] = abstractmethod(lambda self, *_: None)
    for name in RECORDED["manager"]["optional"]:
        body[name] = lambda self, *_: None
    return type(ABC)("BaseResourceManager", (ABC,), body)


class UserProvidedDecodingConfig:
    """Keeps what it is given; a name that is not recorded is refused."""

    def __init__(self, **given: Any) -> None:
        unknown = set(given) - set(RECORDED["config"])
        assert not unknown, unknown
        self.__dict__.update(given)


def make_modules(generation: dict[str, Any]) -> dict[str, types.ModuleType]:
    """Return the package's modules by their names."""
    names = (
        "",
        "._torch",
        "._torch.pyexecutor",
        "._torch.pyexecutor.resource_manager",
        "._torch.speculative",
        "._torch.speculative.drafter",
        "._torch.speculative.interface",
        ".llmapi",
    )
    modules = {f"tensorrt_llm{name}": types.ModuleType(f"tensorrt_llm{name}") for name in names}
    for module in modules.values():
        module.__path__ = []
    parts: dict[str, Any] = {name.rpartition(".")[2]: module for name, module in modules.items()}
    parts["drafter"].Drafter = make_drafter_base(generation)
    parts["resource_manager"].BaseResourceManager = make_manager_base()
    parts["llmapi"].UserProvidedDecodingConfig = UserProvidedDecodingConfig
    if generation["reader"] == "interface":

        def get_draft_len_for_batch_size(
            draft_len_schedule: dict[int, int], batch_size: int, max_draft_len: int
        ) -> int:
            return read_schedule(draft_len_schedule, batch_size, generation["meaning"])

        parts["interface"].get_draft_len_for_batch_size = get_draft_len_for_batch_size
    return modules


class Request:
    """The recorded fields of a request."""

    def __init__(self, request_id: int, prompt: list[int], max_new_tokens: int = 40) -> None:
        self.request_id = request_id
        self.py_batch_idx: int | None = None
        self.py_orig_prompt_len = len(prompt)
        self.py_max_new_tokens = max_new_tokens
        self.py_draft_tokens: list[int] = []
        self.tokens = list(prompt)

    def get_tokens(self, beam: int) -> list[int]:
        """Return the tokens so far."""
        assert beam == 0
        return self.tokens
