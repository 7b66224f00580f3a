"""Keeps a drafter's faults away from the text: a faulty request decodes on without drafts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..drafters import (
    DEFAULT_NAMESPACE,
    CandidateTree,
    Drafter,
    ExtendsInBatches,
    Feedback,
    RequestId,
    SendsProbes,
    TakesPrediction,
    TakesVocabSize,
    UsesTarget,
    WantsTopIds,
)
from ..drafters.tree import IntArray
from .step_rows import are_valid, compile_kernels

if TYPE_CHECKING:
    from ..drafters.model_drafting.runner import TreeRunner

_MOST_DEFERRED = 64  # tokens of a request


class DraftGuard:
    """Calls a drafter for a set of requests and survives whatever it does.

    A request for which the drafter raises, or returns something that is not a valid tree within
    the budget and the vocabulary, is switched off: stopped, warned about once, and given empty
    trees from then on.

    Attributes:
        switched_off: the requests that a fault has switched off.
        num_faults: how many requests were ever switched off.
    """

    def __init__(self, drafter: Drafter | None, vocab_size: int) -> None:
        """Wrap a drafter.

        Args:
            drafter: what proposes, or ``None`` for no speculation.
            vocab_size: proposed ids must lie below it.
        """
        compile_kernels()
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._running: set[RequestId] = set()
        self._waiting: dict[RequestId, IntArray] = {}  # committed, and told in one call
        self._deferred: dict[RequestId, list[int]] = {}  # committed, and told when it must be
        self.switched_off: set[RequestId] = set()
        self.num_faults = 0
        # A check against a protocol takes 10 us and more: too much for what is asked every step.
        self._wants_top_ids = drafter if isinstance(drafter, WantsTopIds) else None
        self._sends_probes = drafter if isinstance(drafter, SendsProbes) else None
        self._in_batches = drafter if isinstance(drafter, ExtendsInBatches) else None
        if isinstance(drafter, TakesVocabSize):
            drafter.set_vocab_size(vocab_size)

    @property
    def num_top_ids(self) -> int:
        """How many of the target's most likely tokens the drafter wants to hear at every node."""
        return 0 if self._wants_top_ids is None else self._wants_top_ids.num_top_ids

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request."""
        drafter = self._drafter
        if drafter is None:
            return
        self._tell(request_id)
        self._running.add(request_id)
        self._call(request_id, lambda: drafter.start(request_id, prompt_ids, namespace))

    def set_prediction(self, request_id: RequestId, token_ids: Sequence[int]) -> None:
        """Tell the drafter, if it listens, what the output will probably be."""
        drafter = self._drafter
        if isinstance(drafter, TakesPrediction) and request_id in self._running:
            self._call(request_id, lambda: drafter.set_prediction(request_id, token_ids))

    def lend_target(self, request_ids: Sequence[RequestId], target: TreeRunner) -> None:
        """Lend the drafter, if it drafts with it, the target of these requests."""
        drafter = self._drafter
        if not isinstance(drafter, UsesTarget):
            return
        running = [request_id for request_id in request_ids if request_id in self._running]
        try:
            drafter.lend_target(running, target)
        except Exception as error:
            for request_id in running:
                self.switch_off(request_id, error)

    def extend(self, request_id: RequestId, token_ids: IntArray) -> None:
        """Append committed tokens.

        A drafter that takes those of several requests in one call has them before it hears of the
        request again or is asked for anything.
        """
        drafter = self._drafter
        if drafter is None or request_id not in self._running:
            return
        self._tell(request_id)
        if self._in_batches is None:
            self._call(request_id, lambda: drafter.extend(request_id, token_ids))
        else:
            self._waiting[request_id] = token_ids.copy()

    def defer(self, request_id: RequestId, token_ids: Sequence[int]) -> None:
        """Append committed tokens in some later call: several at once cost hardly more than one.

        The drafter has them before it hears of the request again, and before long in any case.
        """
        if self._drafter is None or request_id not in self._running:
            return
        deferred = self._deferred.setdefault(request_id, [])
        deferred.extend(token_ids)
        if len(deferred) >= _MOST_DEFERRED:
            self._tell(request_id)

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Pass on what the target said."""
        drafter = self._drafter
        if drafter is not None and request_id in self._running:
            self._tell(request_id)
            self._call(request_id, lambda: drafter.observe(request_id, tree, feedback))

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the tokens from position ``length`` on."""
        drafter = self._drafter
        if drafter is not None and request_id in self._running:
            self._tell(request_id)
            self._call(request_id, lambda: drafter.truncate(request_id, length))

    def stop(self, request_id: RequestId) -> None:
        """End a request."""
        drafter = self._drafter
        if drafter is not None and request_id in self._running:
            self._tell(request_id)
            self._call(request_id, lambda: drafter.stop(request_id))
            self._running.discard(request_id)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depths: Sequence[int]
    ) -> list[CandidateTree]:
        """Return one valid tree a request, empty for those that are switched off.

        Args:
            request_ids: the requests of the step.
            max_nodes: most nodes of a tree.
            max_depths: of each request, the deepest node it has room for.
        """
        trees = [CandidateTree.empty()] * len(request_ids)
        if not max_nodes or not any(max_depths):
            return trees
        self._tell_waiting()
        for request_id in request_ids if self._deferred else ():
            self._tell(request_id)
        asked = [
            index
            for index, (request_id, depth) in enumerate(zip(request_ids, max_depths, strict=True))
            if request_id in self._running and depth > 0
        ]
        if not asked:
            return trees
        deepest = max(max_depths[index] for index in asked)
        proposed = self._propose_all([request_ids[index] for index in asked], max_nodes, deepest)
        for index, tree in zip(asked, proposed, strict=True):
            depth = max_depths[index]
            trees[index] = tree if depth == deepest else tree.cut(max_nodes, depth)
        return trees

    @property
    def sends_probes(self) -> bool:
        """Whether :meth:`add_probes` may add anything."""
        return self._sends_probes is not None and self._sends_probes.num_probes > 0

    def add_probes(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: npt.NDArray[np.float64] | None,
    ) -> list[CandidateTree]:
        """Return the trees with the drafter's probes, if it sends any.

        Args:
            request_ids: the requests of the step.
            trees: what is verified of each one's proposal.
            max_nodes: most nodes of a tree, probes included.
            max_depths: of each request, the deepest node it has room for.
            costs: ``(max_nodes + 1,)`` relative time of the step by the nodes of each request.
        """
        drafter, added = self._sends_probes, list(trees)
        if drafter is None:
            return added
        for index, (request_id, depth) in enumerate(zip(request_ids, max_depths, strict=True)):
            if request_id not in self._running:
                continue
            self._tell(request_id)
            try:
                one = drafter.add_probes([request_id], [trees[index]], max_nodes, [depth], costs)[0]
                self._check(one, max_nodes, depth)
                kept = slice(trees[index].num_nodes)
                if not np.array_equal(one.token_ids[kept], trees[index].token_ids):
                    raise ValueError("expected probes behind the tree's nodes, got other nodes")
                added[index] = one
            except Exception as error:
                self.switch_off(request_id, error)
        return added

    def _propose_all(
        self, request_ids: list[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        drafter = self._drafter
        assert drafter is not None
        try:
            trees = drafter.propose(request_ids, max_nodes, max_depth)
            if len(trees) != len(request_ids):
                raise ValueError(f"expected {len(request_ids)} trees, got {len(trees)}")
            if not are_valid(trees, self._vocab_size, max_nodes, max_depth):
                for tree in trees:
                    self._check(tree, max_nodes, max_depth)
            return list(trees)
        except Exception as error:
            if len(request_ids) == 1:
                self.switch_off(request_ids[0], error)
                return [CandidateTree.empty()]
        # Somebody in the batch is at fault: ask one by one to find out who.
        return [
            self._propose_all([request_id], max_nodes, max_depth)[0] for request_id in request_ids
        ]

    def _check(self, tree: CandidateTree, max_nodes: int, max_depth: int) -> None:
        if not isinstance(tree, CandidateTree):
            raise TypeError(f"expected a CandidateTree, got {type(tree).__name__}")
        tree.validate(self._vocab_size)
        if tree.num_nodes > max_nodes:
            raise ValueError(f"expected at most {max_nodes} nodes, got {tree.num_nodes}")
        if tree.num_nodes and int(tree.depths().max()) > max_depth:
            raise ValueError(f"expected depth at most {max_depth}, got {int(tree.depths().max())}")
        if tree.draft_probs is not None:
            if tree.draft_probs.shape[1:] != (self._vocab_size,):
                raise ValueError(
                    f"expected draft_probs rows of {self._vocab_size} entries, got shape "
                    f"{tree.draft_probs.shape}"
                )
            # Only sampled drafts need torch: the adapters of engines without it come here too.
            from ..verifier.rejection import TreeDraft

            draft = TreeDraft(tree)
            for node in range(tree.num_nodes):
                draft.probs(node)  # raises where verification would

    def _tell_waiting(self) -> None:
        """Append what waits of all requests in one call."""
        in_batches, waiting = self._in_batches, self._waiting
        if in_batches is not None and len(waiting) > 1:
            try:
                in_batches.extend_batch(list(waiting), list(waiting.values()))
            except Exception:
                pass  # somebody in the batch is at fault: one by one we see who
            else:
                waiting.clear()
        for request_id in list(waiting):
            self._tell(request_id)

    def _tell(self, request_id: RequestId) -> None:
        """Append what a request has emitted and the drafter was not told yet."""
        drafter = self._drafter
        assert drafter is not None
        for tokens in (self._waiting.pop(request_id, None), self._deferred.pop(request_id, None)):
            if tokens is not None and request_id in self._running:
                new = np.asarray(tokens, np.int32)
                self._call(request_id, partial(drafter.extend, request_id, new))

    def _call(self, request_id: RequestId, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.switch_off(request_id, error)

    def switch_off(self, request_id: RequestId, error: Exception) -> None:
        """Stop a request because of a fault, and warn."""
        assert self._drafter is not None
        self._running.discard(request_id)
        self._waiting.pop(request_id, None)
        self._deferred.pop(request_id, None)
        self.switched_off.add(request_id)
        self.num_faults += 1
        name = getattr(self._drafter, "name", type(self._drafter).__name__)
        warnings.warn(
            f"drafter {name!r} is switched off for one request, which decodes on without it: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        try:
            self._drafter.stop(request_id)
        except Exception:  # already reported; the request is gone for us either way
            return
