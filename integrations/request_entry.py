"""What a request book keeps of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..drafters import CandidateTree
from ..drafters.tree import IntArray
from .request_naps import RequestNaps

WINDOW = 64
"""Tokens before a text's end that are compared to recognise the text again."""


@dataclass(slots=True)
class RequestEntry:
    """One request: its text as the engine last told it, and what was last proposed for it.

    While it naps the drafter is not told of new tokens, nor are they compared with anything.
    """

    namespace: str
    tokens: IntArray  # (capacity,) int32, the engine's own ids, the first num_tokens are valid
    num_tokens: int
    num_prompt_tokens: int
    proposed: CandidateTree = field(default_factory=CandidateTree.empty)
    is_chain: bool = False  # that proposal, for certain
    naps: RequestNaps | None = None
    num_counted: int = 0  # tokens that are in the statistics, or were there before
    recent: list[int] = field(default_factory=list)  # the last WINDOW tokens
    is_asleep: bool = False
    missed: list[int] = field(default_factory=list)  # tokens that came during the nap

    def propose(self, tree: CandidateTree, is_chain: bool = False) -> None:
        """Note what is proposed now."""
        self.proposed, self.is_chain = tree, is_chain

    def wake(self) -> None:
        """Follow the text again; what was missed is read from there."""
        self.is_asleep = False
        self.missed.clear()

    def cut(self, length: int) -> None:
        """Keep the first tokens only."""
        self.num_tokens = length
        self.recent = self.tokens[max(0, length - WINDOW) : length].tolist()

    def append(self, new: IntArray, ids: list[int] | None = None) -> None:
        """Add tokens, which may be at hand as a list too; the buffer doubles when it is full."""
        stop = self.num_tokens + new.size
        if stop > self.tokens.size:
            grown = np.empty(max(stop, 2 * self.tokens.size), np.int32)
            grown[: self.num_tokens] = self.tokens[: self.num_tokens]
            self.tokens = grown
        self.tokens[self.num_tokens : stop] = new
        self.num_tokens = stop
        last = new[-WINDOW:].tolist() if ids is None else ids
        self.recent = [*self.recent, *last][-WINDOW:]
