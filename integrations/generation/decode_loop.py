"""The loop: propose, verify in one forward, walk, commit; until every row has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from ...drafters import CandidateTree, RequestId
from ...verifier import Target, WalkResult
from ...verifier.tree_growth import TreeGrowth
from ..budget import PooledBudget
from ..draft_guard import DraftGuard
from ..statistics import GenerationStatistics, StepReport
from .decode_row import DecodeRow
from .device_walk import DeviceWalk, device_row_walks
from .feedback import make_feedback
from .row_walk import RowWalk, host_walks


class DecodeLoop:
    """Decodes a batch of rows with one target and one drafter.

    Without a drafter each tree is empty and the loop is plain decoding: there is no second path.

    Attributes:
        statistics: counts and times so far.
    """

    def __init__(
        self,
        target: Target,
        guard: DraftGuard,
        budget: PooledBudget | None,
        max_nodes: int,
        on_step: Callable[[StepReport], None] | None = None,
        lent: TreeGrowth | None = None,
        device_walk: DeviceWalk | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            target: the model and its cache.
            guard: the drafter, kept from doing harm.
            budget: cuts trees to what pays; ``None`` verifies all that is proposed.
            max_nodes: most nodes of one row's tree.
            on_step: called with each row's part in each step.
            lent: the target once more, for drafters that draft with it.
            device_walk: walks all rows at once, where each of them allows it; ``None`` walks row
                by row on the host.
        """
        self._target = target
        self._lent = lent
        self._device_walk = device_walk
        self._guard = guard
        self._budget = budget
        self._max_nodes = max_nodes
        self._on_step = on_step
        self.statistics = GenerationStatistics()

    def run(
        self,
        rows: Sequence[DecodeRow],
        prompts: Sequence[Sequence[int]],
        namespace: str,
        prediction: Sequence[int] | None = None,
    ) -> None:
        """Decode all rows to their end; their results are left in them.

        Args:
            rows: fresh rows.
            prompts: token ids of each row, without padding.
            namespace: where the drafter learns.
            prediction: token ids that each row's output will probably be like.
        """
        begin = time.perf_counter()
        request = object()  # no other generation has requests of this name
        ids: dict[int, RequestId] = {row.index: (request, row.index) for row in rows}
        logits = self._target.prefill(prompts)
        self.statistics.prefill_seconds = time.perf_counter() - begin
        try:
            with self._draft_clock():
                for row, prompt in zip(rows, prompts, strict=True):
                    self._guard.start(ids[row.index], prompt, namespace)
                    if prediction is not None:
                        self._guard.set_prediction(ids[row.index], prediction)
                if self._lent is not None:
                    self._lent.request_ids = [ids[row.index] for row in rows]
                    self._guard.lend_target(self._lent.request_ids, self._lent)
            trees = [CandidateTree.empty()] * len(rows)
            self._finish_step(rows, trees, logits[:, None], ids, is_prefill=True)
            self._record_prompts(rows, prompts)
            active = self._drop_finished(rows, ids)
            while active:
                self._step(active, ids)
                active = self._drop_finished(active, ids)
        finally:
            for request_id in ids.values():
                self._guard.stop(request_id)
        self.statistics.switched_off = len(self._guard.switched_off)
        self.statistics.seconds = time.perf_counter() - begin

    def _step(self, rows: Sequence[DecodeRow], ids: dict[int, RequestId]) -> None:
        begin = time.perf_counter()
        # A step emits one token more than it accepts, so a row's last token is never drafted.
        depths = [min(row.room - 1, self._max_nodes) for row in rows]
        row_ids = [row.index for row in rows]
        if self._budget is not None:
            allowed = self._budget.allowances(row_ids, self._max_nodes)
            depths = [min(pair) for pair in zip(depths, allowed, strict=True)]
        with self._draft_clock():
            trees = self._guard.propose([ids[index] for index in row_ids], self._max_nodes, depths)
        trees = [row.legal(tree) for row, tree in zip(rows, trees, strict=True)]
        if self._budget is not None:
            trees = self._budget.cut(row_ids, trees, [row.room for row in rows])
        trees = self._target.fit(self._add_probes(rows, trees, ids))
        verify_begin = time.perf_counter()
        drafted_before = self.statistics.draft_seconds
        logits = self._target.forward(trees, [row.token_ids[-1] for row in rows])
        accepted = self._finish_step(rows, trees, logits, ids)
        self._record_hidden_states(rows, accepted)
        self._target.commit(accepted)
        end = time.perf_counter()
        learning = self.statistics.draft_seconds - drafted_before
        self.statistics.verify_seconds += end - verify_begin - learning
        if self._budget is not None:
            drafted = (logits.shape[1] - 1) * len(rows)  # rows are padded to the widest tree
            self._budget.record_step(len(rows), drafted, end - begin)

    def _add_probes(
        self,
        rows: Sequence[DecodeRow],
        trees: list[CandidateTree],
        ids: dict[int, RequestId],
    ) -> list[CandidateTree]:
        """Let the drafter add nodes that it wants to hear about; they are outside the budget."""
        if not self._guard.sends_probes:
            return trees
        costs = None
        if self._budget is not None:
            widths = 1.0 + np.arange(self._max_nodes + 1)
            costs = np.asarray(self._budget.costs.relative(len(rows), widths), np.float64)
        depths = [min(row.room - 1, self._max_nodes) for row in rows]
        with self._draft_clock():
            return self._guard.add_probes(
                [ids[row.index] for row in rows], trees, self._max_nodes, depths, costs
            )

    def _finish_step(
        self,
        rows: Sequence[DecodeRow],
        trees: Sequence[CandidateTree],
        logits: Tensor,
        ids: dict[int, RequestId],
        is_prefill: bool = False,
    ) -> list[list[int]]:
        """Walk each row's tree; return the nodes whose keys and values stay."""
        kept: list[list[int]] = []
        num_top_ids = min(self._guard.num_top_ids, logits.shape[-1])
        if num_top_ids and self._budget is not None and not self._budget.takes_chances(len(rows)):
            num_top_ids = 0  # what they lead to would not be verified
        walks = self._walks(rows, trees, logits, num_top_ids, is_prefill)
        results = [row_walk.emit() for row_walk in walks]
        reports = []
        for row, tree, result in zip(rows, trees, results, strict=True):
            report = StepReport(
                row.index, tuple(result.token_ids), len(result.accepted), tree.num_nodes
            )
            self.statistics.add(report)
            # The cache holds all tokens but the last, also where the last one had been drafted.
            kept.append(result.accepted[: len(result.token_ids) - 1])
            if self._budget is not None:
                self._budget.record_outcome(row.index, tree, len(result.accepted), result.token_ids)
            reports.append(report)
        self._tell_drafter(rows, trees, walks, results, num_top_ids, ids)
        if self._on_step is not None:
            for report in reports:
                self._on_step(report)
        return kept

    def _tell_drafter(
        self,
        rows: Sequence[DecodeRow],
        trees: Sequence[CandidateTree],
        walks: Sequence[RowWalk],
        results: Sequence[WalkResult],
        num_top_ids: int,
        ids: dict[int, RequestId],
    ) -> None:
        """Tell the drafter what came of each row's tree and how its text goes on."""
        sleepers = [False] * len(rows)
        if self._budget is not None:
            sleepers = self._budget.sleepers([row.index for row in rows])
        with self._draft_clock():
            for row, tree, row_walk, result, sleeps in zip(
                rows, trees, walks, results, sleepers, strict=True
            ):
                request_id = ids[row.index]
                if sleeps and not tree.num_nodes:
                    self._guard.defer(request_id, result.token_ids)
                    continue
                top_ids = row_walk.top_ids(num_top_ids) if num_top_ids and not sleeps else None
                feedback = make_feedback(result, row_walk.choices, top_ids)
                self._guard.observe(request_id, tree, feedback)
                self._guard.extend(request_id, feedback.token_ids)

    def _walks(
        self,
        rows: Sequence[DecodeRow],
        trees: Sequence[CandidateTree],
        logits: Tensor,
        num_top_ids: int,
        is_prefill: bool,
    ) -> Sequence[RowWalk]:
        """Return each row's part in a step, decided on the device where that is possible."""
        device_walk = self._device_walk
        if device_walk is None or not device_walk.serves(rows, trees):
            return host_walks(rows, trees, logits)
        step = device_walk.launch(rows, trees, logits, num_top_ids)
        if not is_prefill:
            self._target.move(step.walk)  # queued before the host waits for the walk
        return device_row_walks(rows, trees, step)

    def _record_prompts(self, rows: Sequence[DecodeRow], prompts: Sequence[Sequence[int]]) -> None:
        for index, layers in enumerate(zip(*self._target.hidden_states, strict=True)):
            cached = max(map(len, prompts)) - layers[0].shape[0]
            rows[index].record_hidden_states(layers, slice(len(prompts[index]) - cached))

    def _record_hidden_states(
        self, rows: Sequence[DecodeRow], accepted: Sequence[Sequence[int]]
    ) -> None:
        """Keep the hidden states behind each emitted token: the root's and the accepted nodes'."""
        for index, layers in enumerate(zip(*self._target.hidden_states, strict=True)):
            for column in (0, *(node + 1 for node in accepted[index])):
                rows[index].record_hidden_states(layers, slice(column, column + 1))

    def _drop_finished(
        self, rows: Sequence[DecodeRow], ids: dict[int, RequestId]
    ) -> list[DecodeRow]:
        running = [index for index, row in enumerate(rows) if row.finish_reason is None]
        if len(running) < len(rows):
            for row in rows:
                if row.finish_reason is not None:
                    self._guard.stop(ids[row.index])
            if running:
                self._target.select(running)
                if self._lent is not None:
                    self._lent.request_ids = [ids[rows[index].index] for index in running]
        return [rows[index] for index in running]

    @contextmanager
    def _draft_clock(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.statistics.draft_seconds += time.perf_counter() - begin
