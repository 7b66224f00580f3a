"""Grammars of XGrammar as :class:`freedraft.verifier.GrammarState`."""

from __future__ import annotations

import torch
import xgrammar
from torch import Tensor


class XGrammarState:
    """One request's place in a compiled grammar of XGrammar."""

    def __init__(self, grammar: xgrammar.CompiledGrammar, vocab_size: int) -> None:
        """Start at the grammar's beginning.

        Args:
            grammar: compiled for the model's tokenizer, with its end tokens.
            vocab_size: of the model's scores, at least the tokenizer's.
        """
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._bits = xgrammar.allocate_token_bitmask(1, vocab_size)
        self._places = torch.arange(vocab_size)

    def advance(self, token_id: int) -> bool:
        """Go on by one token; return ``False`` and stay where the grammar does not allow it."""
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` tokens."""
        self._matcher.rollback(num_tokens)

    def allowed(self) -> Tensor:
        """Return ``(vocab_size,)`` bool, the tokens that the grammar allows next."""
        self._matcher.fill_next_token_bitmask(self._bits)
        words: Tensor = self._bits[0, self._places // 32]
        return ((words >> (self._places % 32)) & 1).bool()
