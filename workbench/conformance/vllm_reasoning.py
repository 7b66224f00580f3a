"""Tells vLLM where the suite's requests end their reasoning, so that a grammar begins there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from vllm.reasoning import ReasoningParser


class MarkedReasoning(ReasoningParser):  # type: ignore[misc]  # vLLM has no types here
    """Reasoning ends at a token that the suite chooses; without one there is none.

    Attributes:
        end: the token, for all requests that come in.
    """

    end: ClassVar[int | None] = None

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return whether a text holds the end."""
        return self.end is None or self.end in input_ids

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Iterable[int]
    ) -> bool:
        """Return whether the newest tokens hold the end."""
        return self.end is None or self.end in delta_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return what comes behind the end."""
        return input_ids[input_ids.index(self.end) + 1 :] if self.end in input_ids else []

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Return a finished text undivided: only vLLM's chat server asks for that."""
        return None, model_output

    def extract_reasoning_streaming(self, *texts: Any) -> None:
        """Return nothing for the same reason."""
