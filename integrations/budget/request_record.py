"""What the budget knows of one request: are its drafts honest, and is it worth asking for them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...drafters import ROOT, CandidateTree

# Tokens promised that all came true: with so many a record begins, since drafters are calibrated,
# and so many stay in it whatever happens.
_FIRST_TOKENS, _LEAST_TOKENS = 6.0, 2.0
_MOST_CORRECTION = 1.5
_FORGET = 0.995  # share of the record that stays in a step without evidence
_BALANCE_RATE = 0.1
_HOPE_STEPS = 2  # steps that a sleeping request is asked on after an unverified draft was right
_COSTLY_PERIODS = 8  # sampled drafts come from a model: ask that many times more rarely
# Steps that a new record is worth, in which its request ended or got ahead once.
_PRIOR_STEPS = 256.0


@dataclass(slots=True)
class RequestRecord:
    """One request's record, with recovery: nothing here is for good.

    Attributes:
        limit: most nodes, set from outside; ``None`` without a limit.
        idle_steps: steps in a row in which drafts brought nothing.
        dropped: what the drafter proposed last and nobody verified.
    """

    limit: int | None = None
    idle_steps: int = 0
    dropped: CandidateTree | None = None
    _expected: float = _FIRST_TOKENS
    _accepted: float = _FIRST_TOKENS
    _hope: int = 0
    _balance: float = 0.0
    _is_sampled: bool = False
    _num_steps: int = 0
    _num_chances: int = 0  # times that drafts which would bring it ahead turned up
    _has_chance: bool = False

    @property
    def correction(self) -> float:
        """The factor on the request's path probabilities."""
        came_true = self._accepted + _LEAST_TOKENS
        return min(came_true / (self._expected + _LEAST_TOKENS), _MOST_CORRECTION)

    @property
    def change_rate(self) -> float:
        """How often the request ends by itself or is offered drafts that bring it ahead, a step."""
        return (1 + self._num_chances) / (_PRIOR_STEPS + self._num_steps)

    def offer(self, promise: float) -> None:
        """Take in what one step's drafts promise, as one believes it, in tokens."""
        self._num_steps += 1
        had_one, self._has_chance = self._has_chance, promise >= 1
        self._num_chances += self._has_chance and not had_one

    def is_asked(self, sleep_after: int, sleep_period: int) -> bool:
        """Return whether to ask for drafts in this step."""
        if self.idle_steps < sleep_after or self._hope > 0:
            return True
        period = sleep_period * (_COSTLY_PERIODS if self._is_sampled else 1)
        return (self.idle_steps - sleep_after) % period == 0

    def record(self, tree: CandidateTree, num_accepted: int, excess: float, memory: float) -> None:
        """Compare what a verified tree promised with what the target accepted.

        Args:
            tree: what was verified, possibly nothing.
            num_accepted: accepted nodes.
            excess: what the tree cost beyond a step without drafts, in such steps; only for
                sampled trees, which cannot be cut to what pays.
            memory: expected accepted tokens over which the correction is averaged.
        """
        self._hope = max(self._hope - 1, 0)
        paid = num_accepted > 0
        if tree.draft_probs is not None:
            self._is_sampled = True
            self._balance += _BALANCE_RATE * (num_accepted - excess - self._balance)
            paid = paid and self._balance >= 0
        self.idle_steps = 0 if paid else self.idle_steps + 1
        if tree.num_nodes:
            self._add(float(tree.probs.sum()), num_accepted, memory)

    def look_back(self, token_ids: Sequence[int], memory: float) -> None:
        """Compare what was proposed and not verified with what the target then emitted.

        Args:
            token_ids: the step's tokens; empty when they are not known.
            memory: as for :meth:`record`.
        """
        tree, self.dropped = self.dropped, None
        if tree is None or not token_ids:
            # No evidence: move back towards trust, slowly.
            self._expected *= _FORGET
            self._accepted *= _FORGET
            return
        first = tree.parents == ROOT  # what would have followed a wrong node is not known
        hit = bool((tree.token_ids[first] == token_ids[0]).any())
        self._add(float(tree.probs[first].sum()), int(hit), memory)
        if hit:
            self._hope = _HOPE_STEPS

    def _add(self, promised: float, came_true: int, memory: float) -> None:
        fade = max(0.0, 1 - promised / memory)
        self._expected = self._expected * fade + promised
        self._accepted = self._accepted * fade + came_true
