"""Takes the candidates of a drafter that lives in the engine, so that they can be blended.

An engine's own heads need its hidden states and run on its schedule, so they are not asked: they
hand over what they have, and :class:`ExternalDrafter` proposes it when its time comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt

from ..base import (
    DEFAULT_NAMESPACE,
    Feedback,
    RequestId,
    as_token_ids,
    check_budget,
    check_length,
)
from ..tree import CandidateTree


@dataclass(slots=True)
class _Request:
    """A request's length, and what was offered for which length."""

    length: int
    offered_for: int = -1
    tree: CandidateTree | None = None


class ExternalDrafter:
    """Proposes what was offered for the text as it stands.

    An offer names the length of the text that it continues, so an engine may make it before or
    after the drafter has heard of the step's tokens; an offer for another length is never proposed.
    """

    def __init__(self, name: str = "external") -> None:
        """Begin without offers.

        Args:
            name: for statistics, such as ``"eagle"``.
        """
        self._name = name
        self._requests: dict[RequestId, _Request] = {}

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return self._name

    def offer(self, request_id: RequestId, length: int, tree: CandidateTree) -> None:
        """Hand over candidates; an unknown request's are dropped, an earlier offer is replaced.

        Args:
            request_id: a started request.
            length: tokens of the text, prompt included, that the candidates continue.
            tree: the candidates, with path probabilities. Candidates that were sampled carry their
                q in ``draft_probs``.

        Raises:
            ValueError: a negative length, or what :meth:`CandidateTree.validate` names.
        """
        check_length(length)
        tree.validate()
        request = self._requests.get(request_id)
        if request is not None:
            request.offered_for, request.tree = length, tree

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
        self._requests[request_id] = _Request(int(as_token_ids(prompt_ids).size))

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Count committed tokens."""
        tokens = as_token_ids(token_ids)
        request = self._requests.get(request_id)
        if request is not None:
            request.length += int(tokens.size)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request: what was offered, or nothing.

        A tree with q that exceeds ``max_nodes`` is proposed without it: which of its nodes are kept
        then depends on what was drawn, and the plain walk down a tree is exact for any tree.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        return [self._tree(self._requests.get(r), max_nodes, max_depth) for r in request_ids]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the engine tells its own drafter."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: a negative length.
        """
        check_length(length)
        request = self._requests.get(request_id)
        if request is not None and length < request.length:
            request.length = length
            request.tree = None

    def stop(self, request_id: RequestId) -> None:
        """End the request and release what it held."""
        self._requests.pop(request_id, None)

    def _tree(self, request: _Request | None, max_nodes: int, max_depth: int) -> CandidateTree:
        if request is None or request.tree is None or request.offered_for != request.length:
            return CandidateTree.empty()
        tree = request.tree
        if tree.draft_probs is not None and tree.num_nodes > max_nodes:
            tree = _distinct(tree)
        return tree.cut(max_nodes, max_depth)


def _distinct(tree: CandidateTree) -> CandidateTree:
    """Return the tree without q; siblings that were drawn twice become one."""
    return CandidateTree.merge([CandidateTree(tree.token_ids, tree.parents, tree.probs)])
