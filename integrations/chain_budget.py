"""The node budget for engines that verify one chain a step, with kernels that like round sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..drafters import CandidateTree, RequestId
from .budget import BudgetConfig, PooledBudget, StepCosts
from .budget.step_costs import WIDTHS
from .chain_forecast import ChainForecast, FloatArray64
from .draft_account import DraftAccount

_LENGTHS = [int(width) - 1 for width in WIDTHS[1:]]
_MOST_PATIENCE = 8  # times ``test_after``
_LEAST_DEPOSIT = 4.0  # steps that drafting may lose
_LONGEST_REPEAT = 64  # beyond it another token says nothing more
_LEAST_GAIN = 1.1  # over no draft: of several lengths the best is too good to be true
_LONGER_GAIN = 1.05  # over the next shorter length: a long chain that fails costs many steps


class RoundChainBudget(PooledBudget):
    """Drafts lengths that make a step 2, 4, 8, ... tokens wide, the pending token included.

    Matrix kernels of CPUs work on blocks of rows: a step of 8 tokens can be faster than one of 5.
    Only the widths at which :class:`StepCosts` tells times apart are used, so that each is measured
    and none is guessed. Where a wide step costs several plain ones, only long and sure chains pay,
    so what chains promise is corrected by how far such chains have come (:class:`ChainForecast`),
    and what they may lose in all is bounded (:class:`DraftAccount`).
    """

    def __init__(
        self,
        costs: StepCosts,
        config: BudgetConfig | None = None,
        longest: int = _LENGTHS[-1],
        end_ids: Collection[int] = frozenset(),
    ) -> None:
        """Start without measurements.

        Args:
            costs: step times.
            config: the settings; the defaults when absent.
            longest: most tokens of a chain, at least 1.
            end_ids: tokens with which a text ends: what a chain says from there on, nobody reads.
        """
        super().__init__(costs, config)
        self._lengths = [length for length in _LENGTHS if length <= longest]
        self._forecast = ChainForecast(self._lengths)
        # So that a chain of each length can be tried, even if it costs more than was thought.
        dearest = float(costs.relative(1, self._lengths[-1] + 1)) - 1
        self._chain_account = DraftAccount(max(dearest, _LEAST_DEPOSIT))
        self._end_ids = frozenset(end_ids)
        self._idle_steps = 0  # in a row with candidates of which none was verified
        self._patience = 1

    def cut(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        num_left: Sequence[int] | None = None,
    ) -> list[CandidateTree]:
        """Return each tree's best chain, cut to the round length that pays best, or to nothing.

        Args:
            request_ids: all requests of the step.
            trees: one a request.
            num_left: not used: a chain's worth does not depend on it.
        """
        self._num_requests = max(len(trees), 1)
        chains = [self._before_end(tree.best_chain()) for tree in trees]
        most = max((chain.num_nodes for chain in chains), default=0)
        chains = [
            chain.cut(limit)
            for chain, limit in zip(chains, self.allowances(request_ids, most), strict=True)
        ]
        lengths = [
            self._best_length(self._forecast.offer(request_id, chain), len(trees))
            for request_id, chain in zip(request_ids, chains, strict=True)
        ]
        if any(chain.num_nodes for chain in chains):
            lengths = self._with_tests(lengths)
        return [chain.cut(length) for chain, length in zip(chains, lengths, strict=True)]

    def record_outcome(
        self,
        request_id: RequestId,
        tree: CandidateTree,
        num_accepted: int,
        token_ids: Sequence[int] = (),
    ) -> None:
        """Compare what was promised with what the target accepted and with how the text went on."""
        super().record_outcome(request_id, tree, num_accepted, token_ids)
        self._forecast.advance(request_id, token_ids)
        self._chain_account.earn(len(token_ids))
        if tree.num_nodes:
            self._chain_account.settle(num_accepted - self._loss(tree.num_nodes))

    def forget(self, request_id: RequestId) -> None:
        """Drop what is known of a request that has ended."""
        super().forget(request_id)
        self._forecast.forget(request_id)

    def least_repeat(self) -> int:
        """Return the length of repeat from which on a chain could pay at the step times so far.

        How long repeats are follows a power law, in texts of all kinds: of those that have come to
        some length about half double it. That is optimistic where a text copies nothing, and this
        only says when to ask a drafter, who knows better.
        """
        lengths = np.array(self._lengths)
        costs = self.costs.relative(1, lengths + 1)
        places = np.arange(1.0, lengths[-1] + 1)
        for repeat in range(1, _LONGEST_REPEAT):
            came_true = (repeat / (repeat + places)).cumsum()[lengths - 1]
            if (1 + came_true > _LEAST_GAIN * costs).any():
                return repeat + 1  # the last token of a repeat may be chance
        return _LONGEST_REPEAT

    def _loss(self, length: int) -> float:
        """Return what a chain costs beyond a step without one, in such steps."""
        return float(self.costs.relative(self._num_requests, 1 + length)) - 1

    def _before_end(self, chain: CandidateTree) -> CandidateTree:
        """Return the chain up to a token that ends the text."""
        if not self._end_ids:
            return chain
        for index, token in enumerate(chain.token_ids.tolist()):
            if token in self._end_ids:
                return chain.cut(index)
        return chain

    def _with_tests(self, lengths: list[int]) -> list[int]:
        """Return the lengths, or a few tokens where nothing was verified for long."""
        if any(lengths):
            self._idle_steps, self._patience = 0, 1
            return lengths
        self._idle_steps += 1
        if self._idle_steps < self.config.test_after * self._patience:
            return lengths
        if not self._chain_account.affords(self._loss(self.config.test_nodes)):
            return lengths
        self._idle_steps = 0
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        return [self.config.test_nodes] * len(lengths)

    def _best_length(self, expected: FloatArray64, num_requests: int) -> int:
        if not expected.size:
            return 0
        lengths = self._lengths[: expected.size]
        costs = self.costs.relative(num_requests, np.array(lengths) + 1)
        rates = (1 + expected) / costs
        best, best_rate = 0, 1.0
        for length, rate, cost in zip(lengths, rates.tolist(), costs.tolist(), strict=True):
            least = _LONGER_GAIN * best_rate if best else _LEAST_GAIN
            if rate > least and self._chain_account.affords(cost - 1):
                best, best_rate = length, rate
        return best
