"""Drafters that the suite brings along: one that knows the answer, faulty ones, and a spy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...drafters import DEFAULT_NAMESPACE, CandidateTree, Drafter, Feedback, RequestId
from ...drafters.tree import IntArray


class AnswerDrafter:
    """Drafts what it was told comes next, so that every draft is accepted.

    It goes on behind the end of the text, and past any limit that is not its own.
    """

    name = "answer"

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        """Take the whole texts, prompts included, that may come."""
        self._texts = [list(text) for text in texts]
        self._so_far: dict[RequestId, list[int]] = {}

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request."""
        self._so_far[request_id] = np.asarray(prompt_ids).tolist()

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens."""
        if request_id in self._so_far:
            self._so_far[request_id].extend(np.asarray(token_ids).tolist())

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return chains of what comes next."""
        most = min(max_nodes, max_depth)
        return [CandidateTree.from_chain(self._next(request, most)) for request in request_ids]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the end of a request's text."""
        del self._so_far[request_id][length:]

    def stop(self, request_id: RequestId) -> None:
        """End a request."""
        self._so_far.pop(request_id, None)

    def _next(self, request_id: RequestId, most: int) -> list[int]:
        so_far = self._so_far.get(request_id)
        for text in self._texts:
            if so_far is not None and text[: len(so_far)] == so_far:
                return text[len(so_far) : len(so_far) + most]
        return []


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposal that a spy saw."""

    request_id: RequestId
    namespace: str
    tree: CandidateTree


class _PassingDrafter:
    """Passes everything on to another drafter, where there is one.

    Attributes:
        drafter: what proposes.
    """

    def __init__(self, drafter: Drafter | None) -> None:
        self.drafter = drafter

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request."""
        if self.drafter is not None:
            self.drafter.start(request_id, prompt_ids, namespace)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens."""
        if self.drafter is not None:
            self.drafter.extend(request_id, token_ids)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return the drafter's trees."""
        if self.drafter is None:
            return [CandidateTree.empty()] * len(request_ids)
        return self.drafter.propose(request_ids, max_nodes, max_depth)

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Pass on what the target said."""
        if self.drafter is not None:
            self.drafter.observe(request_id, tree, feedback)

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the end of a request's text."""
        if self.drafter is not None:
            self.drafter.truncate(request_id, length)

    def stop(self, request_id: RequestId) -> None:
        """End a request."""
        if self.drafter is not None:
            self.drafter.stop(request_id)


class SpyDrafter(_PassingDrafter):
    """Passes everything on to another drafter and remembers what that one proposed."""

    def __init__(self, drafter: Drafter) -> None:
        """Watch a drafter."""
        super().__init__(drafter)
        self.name = drafter.name
        self._namespaces: dict[RequestId, str] = {}
        self.proposals: list[Proposal] = []

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request."""
        self._namespaces[request_id] = namespace
        super().start(request_id, prompt_ids, namespace)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return the watched drafter's trees."""
        trees = super().propose(request_ids, max_nodes, max_depth)
        self.proposals += [
            Proposal(request, self._namespaces.get(request, ""), tree)
            for request, tree in zip(request_ids, trees, strict=True)
        ]
        return trees

    def tokens(self, namespace: str) -> set[int]:
        """Return every token that was proposed to requests of a namespace."""
        found: set[int] = set()
        for proposal in self.proposals:
            if proposal.namespace == namespace:
                found.update(proposal.tree.token_ids.tolist())
        return found


class SwitchDrafter(_PassingDrafter):
    """Stands where an engine keeps one drafter for its life, and passes on to whichever is set.

    Attributes:
        max_nodes: proposals are cut to it.
        steps: drafted and accepted nodes of each request's verified drafts, by request.
    """

    name = "switch"

    def __init__(self) -> None:
        """Begin without a drafter: nothing is proposed."""
        super().__init__(None)
        self.max_nodes = 0
        self.steps: dict[RequestId, list[tuple[int, int]]] = {}

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return what the drafter of now proposes."""
        most = min(max_nodes, self.max_nodes)
        if most == 0:
            return [CandidateTree.empty()] * len(request_ids)
        return super().propose(request_ids, most, max_depth)

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Note what was accepted, and pass it on."""
        accepted = int(feedback.accepted.size)
        self.steps.setdefault(request_id, []).append((tree.num_nodes, accepted))
        super().observe(request_id, tree, feedback)


class FaultyDrafter(AnswerDrafter):
    """Answers well for a while, then gives what no drafter may give."""

    name = "faulty"

    def __init__(
        self, texts: Sequence[Sequence[int]], fault: Callable[[int], object], after: int = 2
    ) -> None:
        """Set the fault.

        Args:
            texts: as for :class:`AnswerDrafter`.
            fault: returns what is given for one request, or raises; called with ``max_nodes``.
            after: proposals before the first fault.
        """
        super().__init__(texts)
        self._fault = fault
        self._left = after

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return good chains first and the fault later."""
        self._left -= 1
        if self._left >= 0:
            return super().propose(request_ids, max_nodes, max_depth)
        return [self._fault(max_nodes) for _ in request_ids]  # type: ignore[misc]


def faults(vocab_size: int) -> dict[str, Callable[[int], object]]:
    """Return what a drafter may do wrong, by name.

    Args:
        vocab_size: of the model.
    """

    def chain(token_ids: Sequence[int]) -> CandidateTree:
        tokens: IntArray = np.array(token_ids, np.int32)
        parents = np.arange(-1, tokens.size - 1, dtype=np.int32)
        return CandidateTree(tokens, parents, np.ones(tokens.size, np.float32))

    def raises(max_nodes: int) -> object:
        raise RuntimeError("a fault inside the drafter")

    def is_slow(max_nodes: int) -> object:
        time.sleep(0.02)
        return chain([1] * min(max_nodes, 2))

    return {
        "too long": lambda max_nodes: chain([1] * (max_nodes + 40)),
        "outside the vocabulary": lambda max_nodes: chain([vocab_size + 7]),
        "negative id": lambda max_nodes: chain([-1]),
        "wrong type": lambda max_nodes: [1, 2, 3],
        "nothing at all": lambda max_nodes: None,
        "parent behind its child": lambda max_nodes: CandidateTree(
            np.array([1, 2], np.int32), np.array([1, -1], np.int32), np.ones(2, np.float32)
        ),
        "exception": raises,
        "slow and wrong": is_slow,
    }
