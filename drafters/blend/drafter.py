"""The blend: several drafters' trees merged under one budget, by probabilities kept honest.

It is a cascade. The cheap sources are asked for every request and merged: retrieval where the text
repeats, recycled successors where it does not. Fallbacks, which cost time of the model or of
another one, are asked only for the requests for which the others promise little, and only while
what they add outweighs their time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy.typing as npt

from ..base import (
    DEFAULT_NAMESPACE,
    Drafter,
    ExtendsInBatches,
    Feedback,
    FloatArray64,
    RequestId,
    SendsProbes,
    TakesPrediction,
    TakesVocabSize,
    UsesTarget,
    WantsTopIds,
    as_token_ids,
    check_budget,
    check_texts,
)
from ..tree import CandidateTree, IntArray
from ..tree_batch import DraftsInBatches, TreeBatch
from . import _merge_kernels as kernels
from .drawn import join_chosen
from .price import Price
from .step import Record, Step

if TYPE_CHECKING:
    from ..model_drafting.runner import TreeRunner


@dataclass(frozen=True, slots=True)
class BlendConfig:
    """Settings of :class:`BlendDrafter`.

    Attributes:
        memory: expected accepted tokens over which a source's record with a request is averaged.
        prior: expected accepted tokens that a source is trusted for before it has a record.
        idle_after: steps in a row that a source adds nothing before it is asked more rarely.
        idle_period: a source that adds nothing is asked once in so many steps.
        abstain_below: expected accepted tokens of a request's tree below which its fallbacks are
            asked.
        retry_period: a fallback that does not pay is asked on one of so many occasions.
    """

    memory: float = 40.0
    prior: float = 4.0
    idle_after: int = 16
    idle_period: int = 4
    abstain_below: float = 1.0
    retry_period: int = 64

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if self.memory <= 0 or self.prior <= 0:
            raise ValueError(
                f"expected memory > 0 and prior > 0, got {self.memory} and {self.prior}"
            )
        if self.idle_after < 1 or self.idle_period < 1:
            raise ValueError(
                f"expected idle_after >= 1 and idle_period >= 1, got {self.idle_after} and "
                f"{self.idle_period}"
            )
        if self.abstain_below < 0 or self.retry_period < 1:
            raise ValueError(
                f"expected abstain_below >= 0 and retry_period >= 1, got {self.abstain_below} and "
                f"{self.retry_period}"
            )


class BlendDrafter:
    """Merges the trees of several drafters.

    Each source's probabilities are corrected by how its promises to this request have come true, so
    a source that is right for the text at hand gets the nodes. A source that adds nothing is asked
    more rarely; it goes on learning and comes back when it is right again.
    """

    def __init__(
        self,
        sources: Sequence[Drafter],
        config: BlendConfig | None = None,
        *,
        fallbacks: Sequence[Drafter] = (),
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Take the sources over; they must not be used elsewhere.

        Args:
            sources: at least one drafter.
            config: the settings; the defaults when absent.
            fallbacks: drafters that cost much, such as the model's own layers or a second model.
            clock: seconds, by which the fallbacks' time is weighed.

        Raises:
            ValueError: no sources.
        """
        if not sources:
            raise ValueError("expected at least one source, got none")
        self._kernels = kernels.compile_kernels()
        self.config = BlendConfig() if config is None else config
        self.sources = (*sources, *fallbacks)
        # A check against a protocol takes 10 us and more: too much for what is asked every step.
        self._wanting_top_ids = [s for s in self.sources if isinstance(s, WantsTopIds)]
        self._sending_probes = [s for s in self.sources if isinstance(s, SendsProbes)]
        self._in_batches = [s if isinstance(s, DraftsInBatches) else None for s in self.sources]
        self._extending = [s if isinstance(s, ExtendsInBatches) else None for s in self.sources]
        self._num_cheap = len(sources)
        self._prices = [Price(self.config.memory, self.config.retry_period) for _ in fallbacks]
        self._clock = clock
        self._last_begin: float | None = None  # of the step that runs
        self._committed = 0  # tokens of all requests in it
        self._draft_seconds = [0.0] * len(fallbacks)  # in it
        self._records: dict[RequestId, Record] = {}

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "blend"

    @property
    def num_top_ids(self) -> int:
        """How many of the target's most likely tokens the sources want to hear of."""
        return max((source.num_top_ids for source in self._wanting_top_ids), default=0)

    @property
    def num_probes(self) -> int:
        """The most probes that the sources send together for one request."""
        return sum(source.num_probes for source in self._sending_probes)

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request; one of the same id that still runs is stopped first.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        prompt = as_token_ids(prompt_ids)
        num_sources = len(self.sources)
        self._records[request_id] = Record(
            [0.0] * num_sources, [0.0] * num_sources, [0] * num_sources, [1.0] * num_sources
        )
        for source in self.sources:
            source.start(request_id, prompt, namespace)

    def set_prediction(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Tell the sources that take one what the request's output will probably be.

        Args:
            request_id: a started request.
            token_ids: ``(length,)`` integers.
        """
        for source in self.sources:
            if isinstance(source, TakesPrediction):
                source.set_prediction(request_id, token_ids)

    def set_vocab_size(self, vocab_size: int) -> None:
        """Tell the sources that ask for it how many tokens the target tells apart."""
        for source in self.sources:
            if isinstance(source, TakesVocabSize):
                source.set_vocab_size(vocab_size)

    def lend_target(self, request_ids: Sequence[RequestId], target: TreeRunner) -> None:
        """Lend the target to the sources that draft with it."""
        for source in self.sources:
            if isinstance(source, UsesTarget):
                source.lend_target(request_ids, target)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens and compare them with what each source had promised."""
        tokens = as_token_ids(token_ids)
        self._settle(request_id, tokens)
        for source in self.sources:
            source.extend(request_id, tokens)

    def extend_batch(
        self, request_ids: Sequence[RequestId], token_ids: Sequence[npt.ArrayLike]
    ) -> None:
        """Append committed tokens of several requests; see :class:`ExtendsInBatches`.

        Raises:
            ValueError: not as many texts as requests, or one that :meth:`extend` would refuse.
        """
        check_texts(request_ids, token_ids)
        texts = list(map(as_token_ids, token_ids))
        for request_id, tokens in zip(request_ids, texts, strict=True):
            self._settle(request_id, tokens)
        for source, in_batches in zip(self.sources, self._extending, strict=True):
            if in_batches is not None:
                in_batches.extend_batch(request_ids, texts)
                continue
            for request_id, tokens in zip(request_ids, texts, strict=True):
                source.extend(request_id, tokens)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        self._time_step()
        if not request_ids or max_nodes == 0 or max_depth == 0:
            return [CandidateTree.empty()] * len(request_ids)
        records = [self._records.get(request_id) for request_id in request_ids]
        step = Step(request_ids, records, self._kernels, len(self.sources), max_nodes, max_depth)
        for row, record in zip(step.rows, step.known, strict=True):
            record.num_steps += 1
            record.step, record.row = step, row
            if record.drawn:
                record.drawn.clear()
            if record.asked:
                record.asked.clear()
        for index in range(self._num_cheap):
            self._ask(step, index, step.rows)
        merged = step.merge()
        if self._prices and self._ask_fallbacks(step, merged):
            merged = step.merge()
        return [
            tree if drawn is None else join_chosen(drawn, tree, max_nodes)
            for tree, drawn in zip(merged, step.drawn, strict=True)
        ]

    def add_probes(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: FloatArray64 | None,
    ) -> list[CandidateTree]:
        """Return the trees with the sources' probes; see :class:`SendsProbes`."""
        added = list(trees)
        for source in self._sending_probes:
            added = source.add_probes(request_ids, added, max_nodes, max_depths, costs)
        return added

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Pass on what the target said about the verified tree."""
        for source in self.sources:
            source.observe(request_id, tree, feedback)

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on."""
        for source in self.sources:
            source.truncate(request_id, length)
        record = self._records.get(request_id)
        if record is not None:
            record.step = None

    def stop(self, request_id: RequestId) -> None:
        """End the request and release what it held."""
        self._records.pop(request_id, None)
        for source in self.sources:
            source.stop(request_id)

    def _ask(self, step: Step, index: int, rows: Sequence[int]) -> int:
        """Ask a source for those of the given rows for which it is not idle; return how many."""
        all_records = step.known if rows is step.rows else [step.record(row) for row in rows]
        idle_after, period = self.config.idle_after, self.config.idle_period
        asked: list[int] = []
        records: list[Record] = []
        for row, record in zip(rows, all_records, strict=True):
            # One that adds nothing is asked once in a while.
            if record.idle_steps[index] < idle_after or record.num_steps % period == 0:
                asked.append(row)
                records.append(record)
        if not asked:
            return 0
        request_ids = [step.request_ids[row] for row in asked]
        trusts = [record.trusts[index] for record in records]
        step.set_trusts(asked, index, trusts)
        if index >= self._num_cheap:
            for record in records:
                record.asked.add(index)
        source, room = self._in_batches[index], step.room_of(index)
        if source is None:
            trees = self.sources[index].propose(request_ids, step.max_nodes, step.max_depth)
            for row, trust, tree in zip(asked, trusts, trees, strict=True):
                if tree.num_nodes and tree.draft_probs is not None:
                    step.add_drawn(row, index, tree, trust)
                elif tree.num_nodes:
                    step.add(row, index, tree)
        elif len(asked) == len(step.request_ids):
            source.draft_batch(request_ids, step.max_depth, room)
        else:
            batch = TreeBatch.with_room(len(asked), step.max_nodes)
            source.draft_batch(request_ids, step.max_depth, batch)
            room.nodes[asked], room.probs[asked] = batch.nodes, batch.probs
        return len(asked)

    def _ask_fallbacks(self, step: Step, merged: Sequence[CandidateTree]) -> bool:
        """Ask each fallback where the others promise little, if it pays; return whether any was."""
        poor = [row for row in step.rows if step.promise(row, merged) < self.config.abstain_below]
        asked = False
        for number, price in enumerate(self._prices):
            if not poor or not price.is_due():
                continue
            begin = self._clock()
            num_asked = self._ask(step, self._num_cheap + number, poor)
            seconds = self._clock() - begin
            if num_asked:
                asked = True
                self._draft_seconds[number] += seconds
                price.record_draft(seconds, num_asked)
        return asked

    def _time_step(self) -> None:
        """Close the books of the step that has ended: its tokens, its time without a fallback's."""
        if not self._prices:
            return
        now = self._clock()
        if self._last_begin is not None and self._committed:
            for price, own in zip(self._prices, self._draft_seconds, strict=True):
                price.record_step(self._committed, now - self._last_begin - own)
        self._last_begin, self._committed = now, 0
        self._draft_seconds = [0.0] * len(self._prices)

    def _settle(self, request_id: RequestId, tokens: IntArray) -> None:
        """Compare a request's committed tokens with what each source last proposed."""
        record = self._records.get(request_id)
        if record is None or not tokens.size:
            return
        self._committed += tokens.size
        if record.step is None:
            return
        memory, prior = self.config.memory, self.config.prior
        expected, accepted = record.expected, record.accepted
        outcomes = record.step.outcomes(record.row, tokens)
        for index, (promised, came_true) in enumerate(outcomes):
            if promised >= 0:
                fade = max(0.0, 1.0 - promised / memory)
                expected[index] = expected[index] * fade + promised
                accepted[index] = accepted[index] * fade + came_true
                # At most 1: a source is never trusted beyond what it says.
                ratio = (accepted[index] + prior) / (expected[index] + prior)
                record.trusts[index] = min(ratio, 1.0)
                record.idle_steps[index] = 0 if came_true else record.idle_steps[index] + 1
        reached = [int(came_true) for _, came_true in outcomes] if self._prices else []
        for number, price in enumerate(self._prices):
            index = self._num_cheap + number
            if index in record.asked:
                others = max(reached[:index] + reached[index + 1 :])
                price.record_gain(max(0, reached[index] - others))
        record.step = None
