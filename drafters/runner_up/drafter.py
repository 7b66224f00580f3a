"""The runner-up drafter: looks up what followed a token that the target nearly emitted.

What the target held likely in place of the last token, it often emits right after it. So each of
these runners-up is put behind the text, and the pools of other drafters are asked what followed
there. Such a path begins with the runner-up, where the pools need not have seen it behind the last
token.

Source: Liu et al., arXiv:2507.01449 (LogitSpec).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget, check_length
from ..tree import ROOT, CandidateTree, FloatArray, IntArray

_MEMORY = 256.0
_PRIOR_MASS, _PRIOR_SHARE = 4.0, 0.1


class ProposesAfter(Protocol):
    """A drafter that can be asked what would follow if the text went on with a given token."""

    def propose_after(
        self, request_id: RequestId, next_ids: Sequence[int], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return a tree for each token, of what follows behind it; nothing of the state changes.

        Args:
            request_id: a started request; an unknown one has empty trees.
            next_ids: tokens that may follow the committed ones, each on its own.
            max_nodes: most nodes of a tree, the given token not counted.
            max_depth: deepest node, counted from the given token.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunnerUpConfig:
    """Settings of :class:`RunnerUpDrafter`.

    Attributes:
        num_runners: runners-up that are looked up.
        max_nodes: most nodes behind each of them.
        min_prob: probability of a runner-up below which it is not looked up.
    """

    num_runners: int = 4
    max_nodes: int = 8
    min_prob: float = 0.005

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not 1 <= self.num_runners <= 63:
            raise ValueError(f"expected num_runners within 1..63, got {self.num_runners}")
        if self.max_nodes < 1:
            raise ValueError(f"expected max_nodes >= 1, got {self.max_nodes}")
        if not 0 < self.min_prob < 1:
            raise ValueError(f"expected min_prob within (0, 1), got {self.min_prob}")


@dataclass(slots=True)
class _Runners:
    """What the target held likely in place of one token, most likely first."""

    ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    probs: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(slots=True)
class _Request:
    """One running request.

    Attributes:
        length: its tokens.
        runners: of the last token.
        heard: of a step whose tokens are about to be committed.
    """

    length: int
    runners: _Runners = field(default_factory=_Runners)
    heard: _Runners = field(default_factory=_Runners)


class RunnerUpDrafter:
    """Proposes the runners-up of the last token, and what the pools know to follow each.

    The pools belong to drafters that hear of the text elsewhere, such as the other sources of a
    blend; this drafter only reads them. Of several pools the first that knows an answer gives it.

    How often a runner-up comes next is learned: its share of the probability that it had.
    """

    def __init__(
        self, pools: Sequence[ProposesAfter], config: RunnerUpConfig | None = None
    ) -> None:
        """Take the pools to read.

        Args:
            pools: drafters with the same requests; somebody else starts, extends and stops them.
            config: the settings; the defaults when absent.

        Raises:
            ValueError: no pools.
        """
        if not pools:
            raise ValueError("expected at least one pool, got none")
        self.config = RunnerUpConfig() if config is None else config
        self._pools = tuple(pools)
        self._requests: dict[RequestId, _Request] = {}
        self._mass = 0.0  # of the runners-up, fading
        self._came_true = 0.0  # next tokens among them, fading

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "runner_up"

    @property
    def num_top_ids(self) -> int:
        """How many of the target's most likely tokens the feedback should name."""
        return self.config.num_runners + 1

    @property
    def share(self) -> float:
        """How likely a runner-up comes next, as a share of the probability that it had."""
        share = (self._came_true + _PRIOR_SHARE * _PRIOR_MASS) / (self._mass + _PRIOR_MASS)
        return min(share, 1.0)

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
        self._requests[request_id] = _Request(as_token_ids(prompt_ids).size)

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Note what the target held likely in place of the last token that it emitted."""
        request = self._requests.get(request_id)
        if request is None or feedback.top_ids is None or feedback.top_logprobs is None:
            return
        above = int(feedback.token_ids.size) - 1  # accepted nodes before the last token
        if not 0 <= above <= feedback.accepted.size:
            return
        row = int(feedback.accepted[above - 1]) + 1 if above else 0
        ids = np.asarray(feedback.top_ids[row], np.int32)
        others = np.flatnonzero((ids != feedback.token_ids[-1]) & (ids >= 0))
        others = others[: self.config.num_runners]
        probs = np.exp(np.asarray(feedback.top_logprobs[row], np.float32)[others])
        request.heard = _Runners(ids[others], probs)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        tokens = as_token_ids(token_ids)
        request = self._requests.get(request_id)
        if request is None or tokens.size == 0:
            return
        mass = float(request.runners.probs.sum())
        fade = max(0.0, 1.0 - mass / _MEMORY)
        self._mass = self._mass * fade + mass
        self._came_true = self._came_true * fade + float(tokens[0] in request.runners.ids)
        request.runners, request.heard = request.heard, _Runners()
        request.length += tokens.size

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        return [self._propose(request_id, max_nodes, max_depth) for request_id in request_ids]

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: ``length`` is negative.
        """
        check_length(length)
        request = self._requests.get(request_id)
        if request is not None and length < request.length:
            self._requests[request_id] = _Request(length)

    def stop(self, request_id: RequestId) -> None:
        """End the request."""
        self._requests.pop(request_id, None)

    def _propose(self, request_id: RequestId, max_nodes: int, max_depth: int) -> CandidateTree:
        request = self._requests.get(request_id)
        if request is None or max_nodes == 0 or max_depth == 0:
            return CandidateTree.empty()
        chances = self.share * request.runners.probs
        likely = np.flatnonzero(chances >= self.config.min_prob)
        if likely.size == 0:
            return CandidateTree.empty()
        runners = request.runners.ids[likely].tolist()
        below = self._ask(request_id, runners, min(self.config.max_nodes, max_nodes), max_depth - 1)
        return join(runners, chances[likely], below).cut(max_nodes)

    def _ask(
        self, request_id: RequestId, runners: list[int], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return what follows each runner-up, by the first pool that knows anything."""
        trees = [CandidateTree.empty()] * len(runners)
        for pool in self._pools:
            open_places = [i for i, tree in enumerate(trees) if tree.num_nodes == 0]
            if not open_places or max_depth == 0:
                break
            asked = [runners[i] for i in open_places]
            answers = pool.propose_after(request_id, asked, max_nodes, max_depth)
            for i, answer in zip(open_places, answers, strict=True):
                trees[i] = answer
        return trees


def join(
    tokens: Sequence[int], probs: npt.NDArray[np.floating], below: Sequence[CandidateTree]
) -> CandidateTree:
    """Hang a tree below each of some distinct tokens, and these below one root.

    Args:
        tokens: the tokens.
        probs: ``(num_tokens,)`` their probabilities.
        below: what follows each, without ``draft_probs``; its probabilities are given its token.
    """
    ids: list[IntArray] = []
    parents: list[IntArray] = []
    paths: list[npt.NDArray[np.floating]] = []
    first = 0
    for token, prob, tree in zip(tokens, probs, below, strict=True):
        ids += [np.array([token], np.int32), tree.token_ids]
        # the roots of the tree hang from the token's own node
        parents += [np.array([ROOT], np.int32), tree.parents + np.int32(first + 1)]
        paths += [np.array([prob]), prob * tree.probs]
        first += 1 + tree.num_nodes
    return CandidateTree(
        np.concatenate(ids), np.concatenate(parents), np.concatenate(paths).astype(np.float32)
    )
