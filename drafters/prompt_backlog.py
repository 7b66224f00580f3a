"""Long prompts on their way into a drafter's index, a slice a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .base import RequestId
from .tree import IntArray

_PACE = 8
"""Tokens of prompts that are indexed beside each token that a waiting request emits: so the rest
shrinks even where nobody asks for drafts."""


@dataclass(slots=True)
class _Waiting:
    """A request whose prompt is not indexed to its end."""

    prompt: IntArray  # (prompt_length,) int32
    num_indexed: int = 0
    outputs: list[IntArray] = field(default_factory=list)  # committed meanwhile

    @property
    def num_left(self) -> int:
        """Tokens of the prompt that are not indexed yet."""
        return self.prompt.size - self.num_indexed


class PromptBacklog:
    """Bounds the tokens of prompts that a drafter indexes a step, whatever the batch brings.

    The shortest rest comes first, so that a short prompt does not wait behind long ones. What a
    request emits while its prompt waits is kept and indexed behind it, so that in the end the index
    is the same as without slices. A request that waits has no drafts.
    """

    def __init__(
        self, slice_tokens: int | None, append: Callable[[RequestId, IntArray, bool], None]
    ) -> None:
        """Begin with nothing to do.

        Args:
            slice_tokens: most tokens of prompts a step; without it they are indexed at once.
            append: indexes tokens of a request; they are output, or else a part of the prompt.
        """
        self._slice_tokens = slice_tokens
        self._append = append
        self._room = slice_tokens or 0  # tokens that this step may still index
        self._waiting: dict[RequestId, _Waiting] = {}

    def __contains__(self, request_id: object) -> bool:
        """Return whether a request's prompt is not indexed to its end."""
        return request_id in self._waiting

    def __len__(self) -> int:
        """Return how many requests' prompts are not indexed to their end."""
        return len(self._waiting)

    def start(self, request_id: RequestId, prompt: IntArray) -> None:
        """Index a prompt as far as this step allows, and queue the rest."""
        if self._slice_tokens is None:
            self._append(request_id, prompt, False)
            return
        # A copy: the caller's array may change before its turn has come.
        self._waiting[request_id] = _Waiting(prompt.copy())
        self._work()

    def extend(self, request_id: RequestId, tokens: IntArray) -> None:
        """Index committed tokens, or keep them while the request's prompt waits."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            self._append(request_id, tokens, True)
        elif tokens.size:
            waiting.outputs.append(tokens.copy())
            if self._room <= 0:
                self._room = _PACE * tokens.size
                self._work()

    def begin_step(self) -> None:
        """Index what one step allows."""
        self._room = self._slice_tokens or 0
        self._work()

    def finish(self, request_id: RequestId) -> None:
        """Index all that waits of one request, whatever the step allows."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            self._index(request_id, waiting, waiting.num_left)

    def drop(self, request_id: RequestId) -> None:
        """Forget what waits of a request."""
        self._waiting.pop(request_id, None)

    def _work(self) -> None:
        while self._waiting and self._room > 0:
            request_id, waiting = min(self._waiting.items(), key=lambda item: item[1].num_left)
            num_tokens = min(waiting.num_left, self._room)
            self._room -= max(num_tokens, 1)  # an empty prompt is work too: the loop must end
            self._index(request_id, waiting, num_tokens)

    def _index(self, request_id: RequestId, waiting: _Waiting, num_tokens: int) -> None:
        stop = waiting.num_indexed + num_tokens
        self._append(request_id, waiting.prompt[waiting.num_indexed : stop], False)
        waiting.num_indexed = stop
        if waiting.num_left == 0:
            del self._waiting[request_id]
            for tokens in waiting.outputs:
                self._append(request_id, tokens, True)
