"""Bounds what drafting may ever lose against decoding without drafts."""

from __future__ import annotations

_SHARE = 0.015  # of a step, earned with each token
_MOST = 2.0  # times the first deposit, or the dearest chain so far


class DraftAccount:
    """An account of plain steps, from which chains that fail are paid.

    It begins with what one failed chain of the greatest length costs, each token adds a small share
    of a step, and a verified chain adds what it gained or takes what it lost. A chain is verified
    only if the account could pay for all of it. So whatever texts, forecasts and chance do, after n
    tokens drafting has lost at most the first deposit and 1.5 % of n steps; and since the account
    fills up by itself, it is never switched off for good.

    Attributes:
        balance: what may still be lost, in steps without drafts.
    """

    def __init__(self, deposit: float) -> None:
        """Open the account.

        Args:
            deposit: what it begins with, in steps without drafts; at least 0.
        """
        self.balance = deposit
        self._most = _MOST * deposit

    def affords(self, loss: float) -> bool:
        """Return whether that many steps may be lost at once; if not, it will save up for them."""
        self._most = max(self._most, _MOST * loss)
        return loss <= self.balance

    def earn(self, num_tokens: int) -> None:
        """Put aside a share of the time that a number of tokens takes."""
        self.settle(_SHARE * num_tokens)

    def settle(self, gain: float) -> None:
        """Take in what a verified chain gained in steps; negative what it lost."""
        self.balance = min(self.balance + gain, self._most)
