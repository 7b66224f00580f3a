"""The texts of a model drafter's requests, and what their last drafts have taught."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy.typing as npt

from ..base import RequestId, as_token_ids
from ..calibration import Calibration
from ..tree import ROOT, CandidateTree, IntArray, accepted_path
from .choices import SeededDraws
from .confidence import ConfidenceStop
from .config import ModelDraftConfig
from .expansion import RowDraft
from .pay_gate import PayGate

_REFIT_EVERY = 16  # drafts


@dataclass(slots=True)
class RequestText:
    """One request.

    Attributes:
        number: how many requests began before it, for the randomness of its draws.
        token_ids: prompt and committed tokens.
        draft: the last draft, until it is settled.
        tree: what was proposed of it.
    """

    number: int
    token_ids: list[int]
    draft: RowDraft | None = None
    tree: CandidateTree = field(default_factory=CandidateTree.empty)


class DraftRecord:
    """Keeps the requests' texts and learns from their drafts: calibration, confidence, gate.

    Attributes:
        texts: the running requests.
        confidence: decides how long drafts are.
        gate: decides whether there are any.
    """

    def __init__(self, config: ModelDraftConfig, gate: PayGate | None = None) -> None:
        """Begin without requests.

        Args:
            config: the settings.
            gate: one with another clock.
        """
        self._config = config
        self._calibration = Calibration(1, prior_weight=16.0)
        self._settled = 0
        self._started = 0
        self.texts: dict[RequestId, RequestText] = {}
        self.confidence = ConfidenceStop(config.confidence, config.target_acceptance)
        self.gate = PayGate(config.gate) if gate is None else gate

    def start(self, request_id: RequestId, prompt_ids: npt.ArrayLike) -> None:
        """Begin a request.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        prompt = as_token_ids(prompt_ids)
        self.gate.interrupt()
        self.texts[request_id] = RequestText(self._started, prompt.tolist())
        self._started += 1

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens and compare them with the last draft."""
        text = self.texts.get(request_id)
        tokens = as_token_ids(token_ids)
        if text is None or tokens.size == 0:
            return
        text.token_ids.extend(tokens.tolist())
        self.gate.add_tokens(int(tokens.size))
        if text.draft is not None:
            self._settle(text.draft, text.tree, tokens)
            text.draft = None

    def stop(self, request_id: RequestId) -> None:
        """End a request."""
        if self.texts.pop(request_id, None) is not None:
            self.gate.interrupt()

    def new_draft(
        self, request_id: RequestId, num_held: int, max_nodes: int, max_depth: int
    ) -> RowDraft:
        """Return an empty draft behind the request's text.

        Args:
            request_id: a running request whose text is longer than ``num_held``.
            num_held: tokens of the text that the model's cache holds.
            max_nodes: most nodes.
            max_depth: deepest node.
        """
        text = self.texts[request_id]
        length = len(text.token_ids)
        # Keyed by the place, so that no later step sees the same draws again.
        draws = SeededDraws(self._config.seed, text.number, length)
        return RowDraft(text.token_ids[num_held:], max_nodes, max_depth, draws)

    def propose(self, request_id: RequestId, draft: RowDraft) -> CandidateTree:
        """Return the candidates of a finished draft, and remember it until it is settled."""
        text = self.texts[request_id]
        text.draft = draft
        # The limit holds for drawn nodes already; only chosen ones may be dropped by probability.
        text.tree = draft.tree()
        if text.tree.draft_probs is None:
            text.tree = text.tree.cut(draft.max_nodes)
        return text.tree

    def calibrated(self, chance: float) -> float:
        """Return the probability that a token comes true which the model gives ``chance``."""
        knots = self._calibration.knots[0]
        place = chance * (knots.size - 1)
        low = min(int(place), knots.size - 2)
        return float(knots[low] + (place - low) * (knots[low + 1] - knots[low]))

    def _settle(self, draft: RowDraft, tree: CandidateTree, tokens: IntArray) -> None:
        """Learn from the nodes whose parent was emitted, also where they were not verified."""
        whole = draft.tree()
        if whole.num_nodes == 0:
            return
        path = accepted_path(whole, tokens).tolist()
        reached = {ROOT, *path} if len(path) < tokens.size else {ROOT, *path[:-1]}
        true = set(path)
        seen = [node for node, parent in enumerate(draft.parents) if parent in reached]
        self._calibration.add(
            0, [draft.chances[node] for node in seen], [node in true for node in seen]
        )
        self._settled += 1
        if self._settled % _REFIT_EVERY == 0:
            self._calibration.refit()
        if tree.num_nodes:
            depth = min(int(tree.depths().max()), tokens.size)
            self.confidence.record(accepted_path(tree, tokens).size, depth)
