"""The draft-model drafter: a second, smaller language model drafts for the target.

Source: arXiv:2211.17192 and arXiv:2302.01318; trees as in arXiv:2305.09781.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, check_budget, check_length
from ..model_drafting.config import ModelDraftConfig
from ..model_drafting.expansion import Expansion, RowDraft
from ..model_drafting.pay_gate import PayGate
from ..model_drafting.requests import DraftRecord
from ..model_drafting.runner import TreeRunner
from ..tree import ROOT, CandidateTree
from .vocabulary import VocabularyMap


class DraftModelDrafter:
    """Drafts with a language model of its own, whose cache follows the committed text.

    Requests that begin together share one batch of the draft model. What of a draft the target has
    accepted stays in its cache; the rest is rolled back before the next draft.
    """

    def __init__(
        self,
        open_runner: Callable[[], TreeRunner],
        vocabulary: VocabularyMap,
        config: ModelDraftConfig | None = None,
        gate: PayGate | None = None,
    ) -> None:
        """Take over a draft model.

        Args:
            open_runner: returns the model with an empty cache; called once for each batch of
                requests that begin together.
            vocabulary: between the target's ids and the draft model's.
            config: the settings; the defaults when absent.
            gate: one with another clock than the system's.
        """
        self.config = ModelDraftConfig() if config is None else config
        self._open_runner = open_runner
        self._vocabulary = vocabulary
        self._record = DraftRecord(self.config, gate)
        self._runner_of: dict[RequestId, TreeRunner] = {}
        self._fed: dict[RequestId, RowDraft] = {}  # what the cache holds behind the context
        self._num_readable: dict[RequestId, int] = {}
        self._expansion = Expansion(
            self.config,
            self._record.calibrated,
            vocabulary.to_target_logits,
            vocabulary.to_draft_ids,
        )

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "draft_model"

    @property
    def speedup(self) -> float | None:
        """Tokens per second with drafts over those without, as measured; ``None`` at first."""
        return self._record.gate.speedup()

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request; one of the same id that still runs is stopped first.

        The prompt is run with the first draft.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        self.stop(request_id)
        self._record.start(request_id, prompt_ids)
        self._read(request_id)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens."""
        self._record.extend(request_id, token_ids)
        self._read(request_id)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        known = [request_id for request_id in request_ids if request_id in self._record.texts]
        trees = {request_id: CandidateTree.empty() for request_id in known}
        if known and max_nodes and max_depth and self._record.gate.begin_step(len(known)):
            asked = {request_id for request_id in known if self._can_read(request_id)}
            self._open([r for r in known if r in asked and r not in self._runner_of])
            # by identity: several requests have one runner
            runners = {id(runner): runner for r in asked if (runner := self._runner_of.get(r))}
            for runner in runners.values():
                trees |= self._draft(runner, asked, max_nodes, max_depth)
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
        if text is None or length >= len(text.token_ids):
            return
        del text.token_ids[length:]
        text.draft = None
        self._num_readable[request_id] = min(self._num_readable[request_id], length)
        runner = self._runner_of.get(request_id)
        if runner is not None:
            row = runner.request_ids.index(request_id)
            if runner.context_lengths[row] >= length:
                self._leave(request_id)  # its text is run anew with the next draft

    def stop(self, request_id: RequestId) -> None:
        """End the request and release what it held."""
        self._leave(request_id)
        self._record.stop(request_id)
        self._num_readable.pop(request_id, None)

    def _read(self, request_id: RequestId) -> None:
        """Count how much of the text the draft model can read, going on from the last count."""
        text = self._record.texts.get(request_id)
        if text is not None:
            done = self._num_readable.get(request_id, 0)
            new = self._vocabulary.num_readable(text.token_ids[done:])
            self._num_readable[request_id] = done + new

    def _can_read(self, request_id: RequestId) -> bool:
        length = len(self._record.texts[request_id].token_ids)
        return length >= 2 and self._num_readable[request_id] == length

    def _open(self, request_ids: Sequence[RequestId]) -> None:
        """Run the texts of requests that the draft model has not seen yet, as one batch."""
        if not request_ids:
            return
        runner = self._open_runner()
        texts = {r: self._record.texts[r].token_ids[:-1] for r in request_ids}
        fitting = [r for r, text in texts.items() if len(text) < runner.max_context]
        if not fitting:
            return
        runner.prefill([self._vocabulary.to_draft_ids(texts[r]) for r in fitting])
        runner.request_ids = list(fitting)
        self._runner_of |= dict.fromkeys(runner.request_ids, runner)

    def _draft(
        self, runner: TreeRunner, asked: set[RequestId], max_nodes: int, max_depth: int
    ) -> dict[RequestId, CandidateTree]:
        """Draft for the asked requests of one batch."""
        ids = list(runner.request_ids)
        self._roll_back(runner)
        drafts: list[RowDraft | None] = [None] * len(ids)
        for row, request_id in enumerate(ids):
            held = runner.context_lengths[row]
            room = runner.max_context - len(self._record.texts[request_id].token_ids)
            if request_id in asked and room > 0:
                drafts[row] = self._record.new_draft(
                    request_id, held, max_nodes, min(max_depth, room)
                )
        self._expansion.run(runner, drafts, self._record.confidence.threshold)
        trees: dict[RequestId, CandidateTree] = {}
        for request_id, draft in zip(ids, drafts, strict=True):
            if draft is not None:
                self._fed[request_id] = draft
                trees[request_id] = self._record.propose(request_id, draft)
        return trees

    def _roll_back(self, runner: TreeRunner) -> None:
        """Keep in the cache what has been committed since, all but the last token of the text."""
        numbers: list[list[int]] = []
        for row, request_id in enumerate(runner.request_ids):
            draft = self._fed.pop(request_id, None)
            text = self._record.texts[request_id].token_ids
            held = runner.context_lengths[row]
            numbers.append([] if draft is None else _committed(draft, text[held:-1]))
        runner.keep(numbers)

    def _leave(self, request_id: RequestId) -> None:
        """Take a request out of its batch."""
        runner = self._runner_of.pop(request_id, None)
        if runner is None:
            return
        self._roll_back(runner)
        rows = [row for row, other in enumerate(runner.request_ids) if other != request_id]
        if rows:
            runner.select(rows)


def _committed(draft: RowDraft, token_ids: Sequence[int]) -> list[int]:
    """Return the numbers of the tokens in the cache that spell the start of ``token_ids``."""
    numbers: list[int] = []
    for number, token, wanted in zip(draft.pending_numbers, draft.pending, token_ids, strict=False):
        if token != wanted:
            return numbers
        numbers.append(number)
    if len(numbers) < len(draft.pending):
        return numbers
    node_of = {
        (draft.parents[node], draft.token_ids[node]): node for node in draft.numbers if node != ROOT
    }
    node = ROOT
    for wanted in token_ids[len(numbers) :]:
        node = node_of.get((node, wanted), ROOT)
        if node == ROOT:
            break
        numbers.append(draft.numbers[node])
    return numbers
