"""The blend: several drafters' trees merged under one budget, by probabilities kept honest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..base import (
    DEFAULT_NAMESPACE,
    Drafter,
    Feedback,
    RequestId,
    TakesPrediction,
    as_token_ids,
    check_budget,
)
from ..tree import CandidateTree, IntArray, accepted_path
from . import _merge_kernels as kernels


@dataclass(frozen=True, slots=True)
class BlendConfig:
    """Settings of :class:`BlendDrafter`.

    Attributes:
        memory: expected accepted tokens over which a source's record with a request is averaged.
        prior: expected accepted tokens that a source is trusted for before it has a record.
        idle_after: steps in a row that a source adds nothing before it is asked more rarely.
        idle_period: a source that adds nothing is asked once in so many steps.
    """

    memory: float = 40.0
    prior: float = 4.0
    idle_after: int = 16
    idle_period: int = 4

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


@dataclass(slots=True)
class _Record:
    """How one request has fared with each source."""

    expected: npt.NDArray[np.float64]  # (num_sources,) promised tokens, fading
    accepted: npt.NDArray[np.float64]  # (num_sources,) tokens that came true, fading
    idle_steps: npt.NDArray[np.int64]  # (num_sources,) steps since it last proposed what came true
    step: int = 0
    trees: list[CandidateTree | None] = field(default_factory=list)  # what each last proposed


class BlendDrafter:
    """Merges the trees of several drafters.

    Each source's probabilities are corrected by how its promises to this request have come true, so
    a source that is right for the text at hand gets the nodes. A source that adds nothing is asked
    more rarely; it goes on learning and comes back when it is right again.
    """

    def __init__(self, sources: Sequence[Drafter], config: BlendConfig | None = None) -> None:
        """Take the sources over; they must not be used elsewhere.

        Args:
            sources: at least one drafter.
            config: the settings; the defaults when absent.

        Raises:
            ValueError: no sources.
        """
        if not sources:
            raise ValueError("expected at least one source, got none")
        kernels.compile_kernels()
        self.config = BlendConfig() if config is None else config
        self.sources = tuple(sources)
        self._records: dict[RequestId, _Record] = {}

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "blend"

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
        self._records[request_id] = _Record(
            np.zeros(num_sources), np.zeros(num_sources), np.zeros(num_sources, np.int64)
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

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens and compare them with what each source had promised."""
        tokens = as_token_ids(token_ids)
        record = self._records.get(request_id)
        if record is not None and tokens.size:
            self._settle(record, tokens)
        for source in self.sources:
            source.extend(request_id, tokens)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        num_requests, num_sources = len(request_ids), len(self.sources)
        if num_requests == 0 or max_nodes == 0 or max_depth == 0:
            return [CandidateTree.empty()] * num_requests
        nodes = np.empty((num_requests, num_sources, 2, max_nodes), np.int32)
        probs = np.empty((num_requests, num_sources, max_nodes), np.float32)
        counts = np.zeros((num_requests, num_sources), np.int32)
        for index, source in enumerate(self.sources):
            rows = [
                row
                for row, request_id in enumerate(request_ids)
                if self._is_asked(self._records.get(request_id), index)
            ]
            trees = source.propose([request_ids[row] for row in rows], max_nodes, max_depth)
            for row, tree in zip(rows, trees, strict=True):
                record = self._records[request_ids[row]]
                record.trees[index] = tree
                size = tree.num_nodes
                counts[row, index] = size
                nodes[row, index, kernels.TOKEN, :size] = tree.token_ids
                nodes[row, index, kernels.PARENT, :size] = tree.parents
                probs[row, index, :size] = tree.probs * self._trust(record, index)
        kept_nodes = np.empty((num_requests, 2, max_nodes), np.int32)
        kept_probs = np.empty((num_requests, max_nodes), np.float32)
        kept = np.empty(num_requests, np.int32)
        kernels.merge_trees(nodes, probs, counts, kept_nodes, kept_probs, kept)
        return [
            CandidateTree(
                kept_nodes[row, 0, :size], kept_nodes[row, 1, :size], kept_probs[row, :size]
            )
            for row, size in enumerate(kept.tolist())
        ]

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
            record.trees.clear()

    def stop(self, request_id: RequestId) -> None:
        """End the request and release what it held."""
        self._records.pop(request_id, None)
        for source in self.sources:
            source.stop(request_id)

    def _is_asked(self, record: _Record | None, index: int) -> bool:
        if record is None:
            return False
        if index == 0:  # a new round begins
            record.step += 1
            record.trees = [None] * len(self.sources)
        idle = record.idle_steps[index] >= self.config.idle_after
        return not idle or record.step % self.config.idle_period == 0

    def _trust(self, record: _Record, index: int) -> np.float32:
        """Return the factor on a source's probabilities, at most 1."""
        prior = self.config.prior
        ratio = (record.accepted[index] + prior) / (record.expected[index] + prior)
        return np.float32(min(ratio, 1.0))

    def _settle(self, record: _Record, tokens: IntArray) -> None:
        """Compare the committed tokens with what each source last proposed."""
        for index, tree in enumerate(record.trees):
            if tree is None or tree.num_nodes == 0:
                continue
            promised, came_true = _outcome(tree, tokens)
            fade = max(0.0, 1.0 - promised / self.config.memory)
            record.expected[index] = record.expected[index] * fade + promised
            record.accepted[index] = record.accepted[index] * fade + came_true
            record.idle_steps[index] = 0 if came_true else record.idle_steps[index] + 1
        record.trees.clear()


def _outcome(tree: CandidateTree, tokens: IntArray) -> tuple[float, int]:
    """Return how many tokens a tree promised and how many came true.

    Nodes deeper than the committed tokens are left out: what they said is not known yet.
    """
    promised = float(tree.probs[tree.depths() <= tokens.size].sum())
    return promised, accepted_path(tree, tokens).size
