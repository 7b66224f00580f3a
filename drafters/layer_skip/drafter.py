"""The layer-skipping drafter: the target drafts for itself, with sub-layers left out.

Source: Draft & Verify (arXiv:2309.08168), SWIFT (arXiv:2410.06916); leaving out the last layers is
the early exit of LayerSkip (arXiv:2404.16710).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, check_budget, check_length
from ..model_drafting.config import ModelDraftConfig
from ..model_drafting.expansion import Expansion, RowDraft
from ..model_drafting.pay_gate import PayGate
from ..model_drafting.requests import DraftRecord
from ..model_drafting.runner import TreeRunner
from ..tree import CandidateTree
from .objective import SubLayerCosts
from .refinement import SkipRefiner
from .sublayers import SkipSet, SubLayers

_DEFAULT_SHARE = 0.3
_TRIAL_TOKENS = 32


@dataclass(frozen=True, slots=True)
class LayerSkipConfig:
    """Settings of :class:`LayerSkipDrafter`.

    Attributes:
        skip: what is left out; ``None`` for three layers in ten, at equal distances.
        draft: how the rest drafts.
        costs: times of the sub-layers, to refine the set by.
        refine_every: drafts between two trials of a change of the set; 0 never tries any.
    """

    skip: SkipSet | None = None
    draft: ModelDraftConfig = field(default_factory=ModelDraftConfig)
    costs: SubLayerCosts | None = None
    refine_every: int = 0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: refinement without costs, or a negative number of drafts.
        """
        if self.refine_every < 0:
            raise ValueError(f"expected refine_every >= 0, got {self.refine_every}")
        if self.refine_every and self.costs is None:
            raise ValueError("expected costs beside refine_every, got none")


@dataclass(slots=True)
class _Lent:
    """A target that drafts for some of the requests it decodes."""

    runner: TreeRunner
    sublayers: SubLayers
    users: set[RequestId]


class LayerSkipDrafter:
    """Drafts with the target, which whoever decodes lends (:class:`UsesTarget`).

    The draft reads the target's cached keys and values; what it appends to the cache is dropped
    before the target verifies. Without a target (a replay, an engine that lends none) it proposes
    nothing.
    """

    def __init__(self, config: LayerSkipConfig | None = None, gate: PayGate | None = None) -> None:
        """Set up.

        Args:
            config: the settings; the defaults when absent.
            gate: one with another clock than the system's.
        """
        self.config = LayerSkipConfig() if config is None else config
        draft = self.config.draft
        self._record = DraftRecord(draft, gate)
        self._expansion = Expansion(draft, self._record.calibrated)
        self._lent: dict[RequestId, _Lent] = {}
        self._skip = self.config.skip
        self._sublayers: SubLayers | None = None  # of the last target
        self._refiner: SkipRefiner | None = None

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "layer_skip"

    @property
    def skip(self) -> SkipSet | None:
        """What is left out now, after refinement; ``None`` before the first target."""
        return self._skip if self._refiner is None else self._refiner.skip

    @property
    def speedup(self) -> float | None:
        """Tokens per second with drafts over those without, as measured; ``None`` at first."""
        return self._record.gate.speedup()

    def lend_target(self, request_ids: Sequence[RequestId], target: TreeRunner) -> None:
        """Take the target that decodes these requests, until they stop.

        Raises:
            ValueError: the model has no sub-layers to leave out, or not those of the skip set.
        """
        if not request_ids:
            return
        if self._sublayers is None or self._sublayers.model is not target.model:
            self._sublayers = SubLayers(target.model)
        sublayers = self._sublayers
        if self._skip is None:
            self._skip = SkipSet.uniform(_DEFAULT_SHARE, sublayers.num_layers)
        self._skip.check(sublayers.num_layers)
        costs = self.config.costs
        if self.config.refine_every and self._refiner is None and costs is not None:
            self._refiner = SkipRefiner(
                self._skip, costs, self.config.refine_every, self.config.draft.seed
            )
        lent = _Lent(target, sublayers, set())
        sublayers.install()
        for request_id in request_ids:
            self._give_back(request_id)
            self._lent[request_id] = lent
            lent.users.add(request_id)

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
        self.stop(request_id)
        self._record.start(request_id, prompt_ids)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens."""
        self._record.extend(request_id, token_ids)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        asked = [r for r in request_ids if r in self._record.texts and r in self._lent]
        trees: dict[RequestId, CandidateTree] = {}
        if asked and max_nodes and max_depth and self._record.gate.begin_step(len(asked)):
            targets = {id(lent := self._lent[request_id]): lent for request_id in asked}
            for lent in targets.values():
                trees |= self._draft(lent, set(asked), max_nodes, max_depth)
        return [trees.get(request_id, CandidateTree.empty()) for request_id in request_ids]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: what the target said shows in :meth:`extend`."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: a negative length.
        """
        check_length(length)
        text = self._record.texts.get(request_id)
        if text is not None:
            del text.token_ids[length:]
            text.draft = None

    def stop(self, request_id: RequestId) -> None:
        """End the request and release what it held."""
        self._give_back(request_id)
        self._record.stop(request_id)

    def _give_back(self, request_id: RequestId) -> None:
        lent = self._lent.pop(request_id, None)
        if lent is not None:
            lent.users.discard(request_id)
            if not lent.users:
                lent.sublayers.remove()

    def _draft(
        self, lent: _Lent, asked: set[RequestId], max_nodes: int, max_depth: int
    ) -> dict[RequestId, CandidateTree]:
        """Draft for the asked requests of one target, which is left as it was."""
        runner, skip = lent.runner, self.skip
        assert skip is not None
        drafts: list[RowDraft | None] = [None] * len(runner.request_ids)
        for row, request_id in enumerate(runner.request_ids):
            if request_id not in asked:
                continue
            held = runner.context_lengths[row]
            length = len(self._record.texts[request_id].token_ids)
            room = min(max_depth, runner.max_context - length)
            if held < length and room > 0:  # else the text was cut back behind our back
                drafts[row] = self._record.new_draft(request_id, held, max_nodes, room)
        try:
            with lent.sublayers.skipping(skip):
                self._expansion.run(runner, drafts, self._record.confidence.threshold)
        finally:
            runner.keep([[]] * len(drafts))
        if self._refiner is not None and self._refiner.count_draft():
            self._refine(self._refiner, lent)
        return {
            request_id: self._record.propose(request_id, draft)
            for request_id, draft in zip(runner.request_ids, drafts, strict=True)
            if draft is not None
        }

    def _refine(self, refiner: SkipRefiner, lent: _Lent) -> None:
        """Try a change of the set on what the requests have emitted lately."""
        runner = lent.runner
        recent: list[list[int]] = []
        wanted: list[list[int]] = []
        for request_id, held in zip(runner.request_ids, runner.context_lengths, strict=True):
            text = self._record.texts.get(request_id)
            tokens = [] if text is None else text.token_ids
            first = max(held - _TRIAL_TOKENS, 0)
            recent.append(tokens[first:held])
            wanted.append(tokens[first + 1 : held + 1])

        def agreement(skip: SkipSet) -> tuple[int, int]:
            with lent.sublayers.skipping(skip):
                choices = runner.rescore(recent).argmax(-1).tolist()
            right = asked = 0
            for row, tokens in zip(choices, wanted, strict=True):
                asked += len(tokens)
                right += sum(a == b for a, b in zip(row, tokens, strict=False))
            return right, asked

        refiner.run_trial(agreement)
