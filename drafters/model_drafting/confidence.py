"""How sure a drafting model must be of its next token for the draft to go on."""

from __future__ import annotations

_STEP = 0.01  # how far one draft moves the threshold
_MEMORY = 0.9  # weight of the earlier drafts in the running acceptance
_HIGHEST = 0.95


class ConfidenceStop:
    """A threshold that follows what comes true.

    While a larger share than wanted of the drafted paths comes true, drafts may be longer and the
    threshold falls; while a smaller one does, it rises.

    Source: the adaptive exit of Draft & Verify, arXiv:2309.08168, section 3.3.

    Attributes:
        threshold: the least highest probability with which a draft goes on.
    """

    def __init__(self, threshold: float, target_acceptance: float) -> None:
        """Set the start.

        Args:
            threshold: the first one; at 0 it stays there.
            target_acceptance: wanted share of the drafted paths.
        """
        self.threshold = threshold
        self._adapts = threshold > 0
        self._target = target_acceptance
        self._acceptance = target_acceptance

    def record(self, num_accepted: int, depth: int) -> None:
        """Take in how much of a draft came true.

        Args:
            num_accepted: tokens of it that came true.
            depth: of its deepest node, at least 1.
        """
        if not self._adapts:
            return
        self._acceptance = _MEMORY * self._acceptance + (1 - _MEMORY) * num_accepted / depth
        step = _STEP if self._acceptance < self._target else -_STEP
        self.threshold = min(max(self.threshold + step, _STEP), _HIGHEST)
