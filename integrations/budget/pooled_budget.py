"""The node budget of a running engine: what to ask for, what to verify, what was learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...drafters import CandidateTree, RequestId
from .batch_end import FloatArray64, step_values
from .choice import compile_kernels, most_probable_first, pooled_choice
from .config import PADDED, BudgetConfig
from .regret import RegretAccount
from .request_record import RequestRecord
from .row_weights import Arrivals, row_weights
from .step_costs import StepCosts
from .token_costs import TokenCosts

FloatArray = npt.NDArray[np.float32]
_LONGEST_WAIT = 8  # times ``test_after``
_DROWSY_AFTER = 12  # steps without an accepted token in any row of a batch
_PLAIN_AFTER = 64  # steps with drafts in a row after which one without shows what they save
_MOST_UNTIMED = 16  # steps with candidates in a row for which first plain times are waited for
_SAME_CHANCES = 8  # steps: asking costs more than what changes in fewer is worth
_EVEN_ODDS = 2 - 0.5 ** np.arange(8)  # tokens of a step with 0 to 7 nodes of even odds in a chain


class PooledBudget:
    """Cuts the trees of a step to what pays for all its requests together.

    Each step: :meth:`allowances` says how many nodes to ask the drafter for, :meth:`cut` what of
    its trees to verify, :meth:`record_outcome` and :meth:`record_step` take in what came of it.
    Nothing profitable means nothing to verify; where that goes on, drafts are asked for only now
    and then. Everything learned fades, and a test phase after a long time without drafts measures
    again, so nothing is switched off for good.

    An unknown request is a new one. Nothing here raises in mid-flight.

    Attributes:
        config: the settings.
        costs: the step times.
    """

    def __init__(
        self, costs: StepCosts | TokenCosts | None = None, config: BudgetConfig | None = None
    ) -> None:
        """Start without measurements.

        Args:
            costs: step times; those of a small model on a CPU, to be corrected, when absent.
            config: the settings; the defaults when absent.
        """
        compile_kernels()
        self.config = BudgetConfig() if config is None else config
        self.costs: StepCosts | TokenCosts = StepCosts() if costs is None else costs
        self._records: dict[RequestId, RequestRecord] = {}
        self._off_steps = 0
        self._wait = self.config.test_after
        # Of the last cut, for what sampled trees cost:
        self._num_requests = 1
        self._width = 1.0  # tokens a request
        self._num_steps = 0
        self._arrivals = Arrivals()
        self._unseen_plain = 0  # steps with drafts in a row
        self._untimed_steps = 0  # in a row, while nobody knows what one without drafts takes
        self._chances: dict[int, tuple[bool, int]] = {}  # by requests, and the step it holds until
        bound = self.config.max_loss
        self._account = None if bound is None else RegretAccount(bound)
        # Of the step that runs, for that account:
        self._num_left: Sequence[int] | None = None
        self._change_rates: list[float] = []
        self._emitted: list[int] = []

    def allowances(self, request_ids: Sequence[RequestId], max_nodes: int) -> list[int]:
        """Return how many nodes to ask for each request: 0 for one that is off or asleep.

        Args:
            request_ids: all requests of the step.
            max_nodes: most nodes of a request.
        """
        scheduled = self.config.scheduled_nodes(len(request_ids))
        most = max_nodes if scheduled is None else min(max_nodes, scheduled)
        records = [self._record(request_id) for request_id in request_ids]
        limits = [most if r.limit is None else min(most, r.limit) for r in records]
        asked = self._are_asked(records)
        return [limit if is_asked else 0 for limit, is_asked in zip(limits, asked, strict=True)]

    def sleepers(self, request_ids: Sequence[RequestId]) -> list[bool]:
        """Return of each request whether it will not be asked for drafts in the next step.

        Args:
            request_ids: all requests of the step, their outcomes recorded.
        """
        records = [self._record(request_id) for request_id in request_ids]
        asked = self._are_asked(records)
        return [r.limit == 0 or not is_asked for r, is_asked in zip(records, asked, strict=True)]

    def takes_chances(self, num_requests: int) -> bool:
        """Return whether drafts of even odds would be verified at the step times as they seem now.

        Where they would not, a drafter need not learn what only ever leads to such drafts.

        Args:
            num_requests: requests in the step.
        """
        scheduled = self.config.scheduled_nodes(num_requests)
        if scheduled is not None:
            return scheduled > 0
        answer, until = self._chances.get(num_requests, (False, -1))
        if self._num_steps > until:
            costs = self._costs(num_requests, 1 + np.arange(_EVEN_ODDS.size))
            answer = bool((costs < _EVEN_ODDS).any())
            self._chances[num_requests] = (answer, self._num_steps + _SAME_CHANCES)
        return answer

    def cut(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        num_left: Sequence[int] | None = None,
    ) -> list[CandidateTree]:
        """Return the trees, each cut to what pays for all requests of the step together.

        Args:
            request_ids: all requests of the step, those without a draft included.
            trees: one a request.
            num_left: tokens that each request may still emit, if known: a batch ends with its last
                row; see :func:`.batch_end.step_values` and, where tokens are computed once,
                :func:`.row_weights.row_weights`.
        """
        num_requests = len(trees)
        records = [self._record(request_id) for request_id in request_ids]
        self._num_left = num_left
        is_padded = self.config.layout == PADDED
        self._change_rates = [record.change_rate for record in records] if is_padded else []
        if not is_padded and num_left is not None:
            self._arrivals.step(request_ids)
        self._emitted.clear()
        scheduled = self.config.scheduled_nodes(num_requests)
        limited = [
            _limited(tree, record.limit, scheduled)
            for tree, record in zip(trees, records, strict=True)
        ]
        if not any(tree.num_nodes for tree in limited):
            return limited
        kept = limited if scheduled is not None else self._choose(records, limited)
        for tree, offered, record in zip(kept, limited, records, strict=True):
            record.dropped = offered if offered.num_nodes and not tree.num_nodes else None
        sizes = [tree.num_nodes for tree in kept]
        widest = max(sizes) if self.config.layout == PADDED else sum(sizes) / num_requests
        self._num_requests, self._width = num_requests, 1 + widest
        return kept

    def record_step(self, num_requests: int, num_nodes: int, seconds: float) -> None:
        """Take in one step's time.

        Args:
            num_requests: requests in the step.
            num_nodes: drafted tokens that the step computed in all, padding included.
            seconds: its wall time, drafting included.
        """
        if num_requests <= 0:
            return
        self._num_steps += 1
        self._untimed_steps = 0
        self._unseen_plain = self._unseen_plain + 1 if num_nodes > 0 else 0
        self.costs.record(num_requests, max(num_nodes, 0), seconds)
        if self._account is None:
            return
        value = cost = 1.0
        if num_nodes > 0 and self._emitted:
            # As it is known by now: a step's own time may be that of others on the machine.
            cost = float(self.costs.relative(num_requests, 1 + num_nodes / num_requests))
            value = float(self._values(np.array(self._emitted, np.float64)))
        self._account.record(value, cost)

    def record_outcome(
        self,
        request_id: RequestId,
        tree: CandidateTree,
        num_accepted: int,
        token_ids: Sequence[int] = (),
    ) -> None:
        """Compare what a request's tree promised with what the target accepted.

        Args:
            request_id: a request of the step.
            tree: what was verified of it, possibly nothing.
            num_accepted: accepted nodes.
            token_ids: the tokens that the step emitted, if they are at hand: then drafts that were
                not verified are judged by them too.
        """
        record = self._record(request_id)
        if self._account is not None:
            self._emitted.append(1 + num_accepted)
        excess = 0.0
        if tree.draft_probs is not None:
            excess = float(self.costs.relative(self._num_requests, self._width)) - 1
        record.record(tree, num_accepted, excess, self.config.memory)
        if not tree.num_nodes:
            record.look_back(token_ids, self.config.memory)

    def set_limit(self, request_id: RequestId, max_nodes: int | None) -> None:
        """Limit a request's nodes; 0 switches drafting off for it, ``None`` lifts the limit.

        Raises:
            ValueError: the limit is negative.
        """
        if max_nodes is not None and max_nodes < 0:
            raise ValueError(f"expected max_nodes >= 0 or None, got {max_nodes}")
        self._record(request_id).limit = max_nodes

    def forget(self, request_id: RequestId) -> None:
        """Drop what is known of a request that has ended."""
        self._records.pop(request_id, None)
        self._arrivals.end(request_id)

    def correction(self, request_id: RequestId) -> float:
        """Return the factor on a request's path probabilities: how honest they have been."""
        return self._records.get(request_id, RequestRecord()).correction

    def _record(self, request_id: RequestId) -> RequestRecord:
        record = self._records.get(request_id)
        if record is None:
            record = self._records[request_id] = RequestRecord()
        return record

    def _are_asked(self, records: Sequence[RequestRecord]) -> list[bool]:
        """Return whether to ask for each request; rows of a padded batch are asked together."""
        after, period = self.config.sleep_after, self.config.sleep_period
        if self.config.layout != PADDED or len(records) < 2:
            return [record.is_asked(after, period) for record in records]
        latest = min(records, key=lambda record: record.idle_steps)
        if latest.idle_steps >= after:
            return [latest.is_asked(after, period)] * len(records)
        period = min(1 << latest.idle_steps // _DROWSY_AFTER, period)  # more and more rarely
        return [latest.idle_steps % period == 0] * len(records)

    def _choose(
        self, records: Sequence[RequestRecord], trees: Sequence[CandidateTree]
    ) -> list[CandidateTree]:
        sizes = [tree.num_nodes for tree in trees]
        probs = np.concatenate([tree.probs for tree in trees])
        falling = most_probable_first(probs, sizes).tolist()
        probs *= np.repeat(np.array([r.correction for r in records], np.float32), sizes)
        if self.config.layout == PADDED:
            counts = self._padded_counts(records, np.split(probs, np.cumsum(sizes)[:-1]))
        else:
            counts = self._pooled_counts(probs, sizes)
        counts = self._tested(counts)
        return [
            _cut(tree, count, bool(first))
            for tree, count, first in zip(trees, counts, falling, strict=True)
        ]

    def _pooled_counts(self, probs: FloatArray, sizes: Sequence[int]) -> list[int]:
        costs = self._costs(len(sizes), 1 + np.arange(probs.size + 1) / len(sizes))
        closed = self._arrivals.closed
        if self._num_left is not None and closed > 0:
            row_costs = self.costs.plain_by_requests(len(sizes))
            weights = row_weights(self._num_left, row_costs, closed)
            probs = probs * np.repeat(weights, sizes).astype(np.float32)
        counts: list[int] = pooled_choice(probs, sizes, costs).tolist()
        return counts

    def _padded_counts(
        self, records: Sequence[RequestRecord], rows: Sequence[FloatArray]
    ) -> list[int]:
        widest = max(row.size for row in rows)
        gains = np.zeros((len(rows), widest + 1))
        for record, gain, row in zip(records, gains, rows, strict=True):
            record.offer(float(row.sum()))
            gain[1 : row.size + 1] = np.sort(row)[::-1]
        costs = self._costs(len(rows), np.arange(1, widest + 2))
        values = self._values(1 + gains.cumsum(1))
        return [int(np.argmax(values / costs))] * len(rows)

    def _values(self, grown: FloatArray64) -> FloatArray64:
        """Return what steps that emit ``(num_rows, ...)`` tokens save, in plain steps."""
        if self._num_left is None or len(grown) < 2 or self.config.layout != PADDED:
            return np.asarray(grown.mean(0))
        row_costs = self.costs.plain_by_requests(len(grown))
        return step_values(grown, self._num_left, row_costs, self._change_rates)

    def _costs(self, num_requests: int, widths: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the relative times of the widths, those with drafts dearer by what is prudent."""
        costs = self.costs.relative(num_requests, widths)
        if self._account is None:
            costs[1:] *= 1 + self.config.margin
        else:
            costs[1:] = 1 + self._account.caution * (costs[1:] - 1)
        return costs

    def _tested(self, counts: list[int]) -> list[int]:
        """Return the counts, or others where the time of such steps has not been seen for long."""
        if not self.costs.knows_plain:
            # The first steps of an engine are what others are held against, unless it has none
            # that can be timed.
            self._untimed_steps += 1
            if self._untimed_steps <= _MOST_UNTIMED:
                return [0] * len(counts)
        if any(counts):
            if self._account is not None and self._unseen_plain >= _PLAIN_AFTER:
                return [0] * len(counts)
            self._off_steps, self._wait = 0, self.config.test_after
            return counts
        self._off_steps += 1
        if self._off_steps < self._wait:
            return counts
        self._off_steps = 0
        self._wait = min(2 * self._wait, _LONGEST_WAIT * self.config.test_after)
        return [self.config.test_nodes] * len(counts)


def _cut(tree: CandidateTree, num_nodes: int, most_probable_first: bool) -> CandidateTree:
    """Return the tree's most probable nodes; much cheaper where they stand first."""
    if tree.draft_probs is not None:
        return tree  # dropping sampled nodes because of what was sampled would bias the output
    if not most_probable_first or num_nodes in (0, tree.num_nodes):
        return tree.cut(num_nodes)
    return CandidateTree(
        tree.token_ids[:num_nodes], tree.parents[:num_nodes], tree.probs[:num_nodes]
    )


def _limited(tree: CandidateTree, limit: int | None, scheduled: int | None) -> CandidateTree:
    limits = [number for number in (limit, scheduled) if number is not None]
    if not limits or tree.num_nodes <= min(limits):
        return tree
    # A sampled tree is kept whole or not at all.
    return CandidateTree.empty() if tree.draft_probs is not None else tree.cut(min(limits))
