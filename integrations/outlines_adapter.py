"""Regular expressions and JSON schemas of Outlines as :class:`freedraft.verifier.GrammarState`."""

from __future__ import annotations

import outlines_core
import torch
from torch import Tensor


class OutlinesState:
    """One request's place in an index of outlines-core."""

    def __init__(
        self,
        index: outlines_core.Index,
        vocab_size: int,
        eos_token_id: int,
        max_rollback: int = 256,
    ) -> None:
        """Start at the index's beginning.

        Args:
            index: built for the model's tokenizer.
            vocab_size: of the model's scores, at least the tokenizer's.
            eos_token_id: the end token of the index's vocabulary.
            max_rollback: most tokens that are taken back at once, at least a tree's depth.
        """
        self._guide = outlines_core.Guide(index, max_rollback)
        self._vocab_size = vocab_size
        self._eos = eos_token_id
        self._ended = False

    def advance(self, token_id: int) -> bool:
        """Go on by one token; return ``False`` and stay where the index does not allow it."""
        if self._ended:
            return False
        if token_id == self._eos:
            self._ended = bool(self._guide.is_finished())
            return self._ended
        if not self._guide.accepts_tokens([token_id]):
            return False
        self._guide.advance(token_id, return_tokens=False)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` tokens."""
        if self._ended and num_tokens:  # the end token moves nothing in the guide
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            self._guide.rollback_state(num_tokens)

    def allowed(self) -> Tensor:
        """Return ``(vocab_size,)`` bool, the tokens that the index allows next."""
        mask = torch.zeros(self._vocab_size, dtype=torch.bool)
        if not self._ended:
            mask[self._guide.get_tokens()] = True
            mask[self._eos] = self._guide.is_finished()
        return mask
