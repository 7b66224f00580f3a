"""The node budget for engines that verify one chain a step, with kernels that like round sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..drafters import CandidateTree, RequestId
from .budget import BudgetConfig, PooledBudget, StepCosts
from .budget.step_costs import WIDTHS
from .chain_forecast import ChainForecast, FloatArray64

_LENGTHS = [int(width) - 1 for width in WIDTHS[1:]]
_MOST_PATIENCE = 8  # times ``test_after``
_LEAST_GAIN = 1.1  # over the next shorter length: a long chain that fails costs many steps


class RoundChainBudget(PooledBudget):
    """Drafts lengths that make a step 2, 4, 8, ... tokens wide, the pending token included.

    Matrix kernels of CPUs work on blocks of rows: a step of 8 tokens can be faster than one of 5.
    Only the widths at which :class:`StepCosts` tells times apart are used, so that each is measured
    and none is guessed. Where a wide step costs several plain ones, only long and sure chains pay,
    so what chains promise is corrected by how far such chains have come (:class:`ChainForecast`).
    """

    def __init__(self, costs: StepCosts, config: BudgetConfig | None = None) -> None:
        """Start without measurements.

        Args:
            costs: step times.
            config: the settings; the defaults when absent.
        """
        super().__init__(costs, config)
        self._forecast = ChainForecast(_LENGTHS)
        self._idle_steps = 0  # in a row with candidates of which none was verified
        self._patience = 1

    def cut(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        num_emitted: Sequence[int] | None = None,
    ) -> list[CandidateTree]:
        """Return each tree's best chain, cut to the round length that pays best, or to nothing.

        Args:
            request_ids: all requests of the step.
            trees: one a request.
            num_emitted: not used: a chain's worth does not depend on it.
        """
        chains = [tree.best_chain() for tree in trees]
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

    def forget(self, request_id: RequestId) -> None:
        """Drop what is known of a request that has ended."""
        super().forget(request_id)
        self._forecast.forget(request_id)

    def _with_tests(self, lengths: list[int]) -> list[int]:
        """Return the lengths, or a few tokens where nothing was verified for long."""
        if any(lengths):
            self._idle_steps, self._patience = 0, 1
            return lengths
        self._idle_steps += 1
        if self._idle_steps < self.config.test_after * self._patience:
            return lengths
        self._idle_steps = 0
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        return [self.config.test_nodes] * len(lengths)

    def _best_length(self, expected: FloatArray64, num_requests: int) -> int:
        if not expected.size:
            return 0
        lengths = _LENGTHS[: expected.size]
        rates = (1 + expected) / self.costs.relative(num_requests, np.array(lengths) + 1)
        best, best_rate = 0, 1.0
        for length, rate in zip(lengths, rates.tolist(), strict=True):
            if rate > _LEAST_GAIN * best_rate:
                best, best_rate = length, rate
        return best
