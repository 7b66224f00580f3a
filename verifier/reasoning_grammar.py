"""A grammar that binds only behind some tokens, such as those that end a model's reasoning."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .grammar import GrammarState


class GrammarAfter:
    """A grammar state that is free until certain tokens have come, and a grammar from there on.

    The switch happens token by token: in a tree whose path holds the end of the reasoning, what
    comes behind that end is pruned by the grammar, and taking the end back frees the text again.
    """

    def __init__(self, state: GrammarState, end_token_ids: Sequence[int]) -> None:
        """Begin free.

        Args:
            state: a fresh state of the grammar; it is asked for its mask once, for the size of the
                vocabulary.
            end_token_ids: the tokens, one behind the other, that end the free part.

        Raises:
            ValueError: no end is given.
        """
        if not end_token_ids:
            raise ValueError("expected at least one token that ends the free part, got none")
        self._state = state
        self._end = list(end_token_ids)
        self._free: list[int] = []
        self._num_bound = 0
        self._everything = torch.ones_like(state.allowed())

    @property
    def is_bound(self) -> bool:
        """Whether the end of the free part has come, so that the grammar holds."""
        return self._free[-len(self._end) :] == self._end

    def advance(self, token_id: int) -> bool:
        """Go on by one token; return ``False`` and stay where the grammar holds and forbids it."""
        if not self.is_bound:
            self._free.append(token_id)
            return True
        if not self._state.advance(token_id):
            return False
        self._num_bound += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` tokens, through the switch if they reach that far.

        Raises:
            ValueError: fewer have come.
        """
        if not 0 <= num_tokens <= self._num_bound + len(self._free):
            raise ValueError(
                f"expected 0 to {self._num_bound + len(self._free)} tokens to take back, "
                f"got {num_tokens}"
            )
        bound = min(num_tokens, self._num_bound)
        if bound:
            self._state.rollback(bound)
            self._num_bound -= bound
        del self._free[len(self._free) - (num_tokens - bound) :]

    def allowed(self) -> Tensor:
        """Return ``(vocab_size,)`` bool: all tokens before the switch, the grammar's behind it."""
        return self._state.allowed() if self.is_bound else self._everything
