"""A proposer for vLLM that drafts nonsense of planned lengths and writes down what steps take."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

PLAN = "freedraft_calibration"
"""Its entry in vLLM's ``additional_config``: ``nodes``, ``vocab_size`` and ``file``."""


class PlannedProposer:
    """What vLLM builds when :data:`CLASS_PATH` is its draft model.

    It is called once a step, after it; the time between two calls is the time of the step between
    them. Each line of its file: requests, drafted tokens of each, seconds.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Read the plan.

        Args:
            vllm_config: vLLM's configuration.
        """
        plan: dict[str, Any] = vllm_config.additional_config[PLAN]
        self._nodes: list[int] = plan["nodes"]
        self._vocab_size: int = plan["vocab_size"]
        self._file = Path(plan["file"])
        self._order = random.Random(0)
        self._waiting: list[int] = []
        self._last: tuple[int, int, float] | None = None  # requests, nodes, when it was proposed

    def load_model(self, *_: object, **__: object) -> None:
        """Load nothing: vLLM calls this before the first step."""

    def propose(self, sampled_token_ids: list[list[int]], *_: object, **__: object) -> Any:
        """Return a draft of the planned length for each request.

        Args:
            sampled_token_ids: what the step emitted for each request; empty while a prompt is read.
            *_: the rest of the call, which is not needed.
            **__: the same.
        """
        now = time.perf_counter()
        running = len(sampled_token_ids)
        if self._last is not None and self._last[0] == running and all(sampled_token_ids):
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(f"{running} {self._last[1]} {now - self._last[2]}\n")
        self._last = None
        if not all(sampled_token_ids):
            return [[] for _ in sampled_token_ids]
        if not self._waiting:
            self._waiting = self._order.sample(self._nodes, len(self._nodes))
        nodes = self._waiting.pop()
        draft = [self._order.choices(range(self._vocab_size), k=nodes) for _ in sampled_token_ids]
        self._last = (running, nodes, time.perf_counter())
        return draft


CLASS_PATH = f"{__name__}.{PlannedProposer.__name__}"
