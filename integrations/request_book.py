"""Keeps one drafter in step with the requests of an engine that decodes by itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..drafters import DEFAULT_NAMESPACE, CandidateTree, Drafter, Feedback, RequestId
from ..drafters.base import as_token_ids
from ..drafters.tree import IntArray, accepted_path
from .budget import PooledBudget
from .draft_guard import DraftGuard
from .request_entry import WINDOW, RequestEntry
from .request_naps import RequestNaps
from .statistics import GenerationStatistics
from .step_rows import best_chains

_NO_TOKEN = -1  # what a drafter sees in the place of an id that it must neither match nor propose
_NOTHING = np.zeros(0, np.int32)
_FEW = 32  # tokens: what a step brings is looked at one by one, which is faster


class RequestBook:
    """Follows the requests of an engine and asks one drafter about them.

    The engine tells, step by step, each request's tokens so far; the book works out what is new,
    how much of its last proposal came true, and what the drafter must be told. A request for which
    the drafter fails is switched off (see :class:`DraftGuard`) and decodes on without drafts.

    Attributes:
        statistics: counts of all requests since the book was opened. A step is one call of
            :meth:`sync` that brings new tokens; ``seconds`` and ``verify_seconds`` stay 0.
    """

    def __init__(
        self,
        drafter: Drafter,
        vocab_size: int,
        placeholder_ids: Iterable[int] = frozenset(),
        budget: PooledBudget | None = None,
        naps: bool = False,
    ) -> None:
        """Open a book without requests.

        Args:
            drafter: taken over; it must not be used elsewhere.
            vocab_size: ids from it on are never proposed.
            placeholder_ids: ids of images, padding and the like, which are never matched or
                proposed.
            budget: says whom to draft for and cuts what is proposed; without it only the limits
                of the call do.
            naps: whether requests of whose proposals the budget leaves nothing are left alone for
                some steps at a time.

        Raises:
            ValueError: ``vocab_size`` is not positive.
        """
        if vocab_size < 1:
            raise ValueError(f"expected vocab_size >= 1, got {vocab_size}")
        self._guard = DraftGuard(drafter, vocab_size)
        self._vocab_size = vocab_size
        self._placeholder_ids = frozenset(placeholder_ids)
        self._budget = budget
        self._naps = naps
        self._num_rounds = 0  # calls for proposals, by which naps are timed
        self._entries: dict[RequestId, RequestEntry] = {}
        self.statistics = GenerationStatistics()

    def __len__(self) -> int:
        """Return the number of requests that are followed."""
        return len(self._entries)

    def __contains__(self, request_id: object) -> bool:
        """Return whether a request is followed."""
        return request_id in self._entries

    def is_switched_off(self, request_id: RequestId) -> bool:
        """Return whether a fault has switched a request off."""
        return request_id in self._guard.switched_off

    def all_asleep(self, request_ids: Iterable[RequestId]) -> bool:
        """Return whether all the requests nap: none has a draft until a :meth:`sync` wakes it."""
        return all(self._is_asleep(request_id) for request_id in request_ids)

    def sync(
        self,
        request_id: RequestId,
        token_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
        num_prompt_tokens: int | None = None,
        num_verified: int | None = None,
    ) -> None:
        """Take in a request's tokens so far.

        An unknown request is started, a grown one is extended by what is new, one whose text has
        changed is cut back to what both texts share. The work is proportional to the new tokens,
        unless the text has changed.

        Args:
            request_id: any hashable, unique among the engine's running requests.
            token_ids: ``(num_tokens,)`` integers, the prompt included.
            namespace: requests learn from earlier ones of the same namespace only; a request that
                changes it begins anew.
            num_prompt_tokens: how many of the tokens are the prompt; all of the first call's by
                default.
            num_verified: how many tokens of the last proposal's chain the engine has verified,
                where it may take fewer; all by default.

        Raises:
            ValueError: ``token_ids`` is not one-dimensional or not made of integers.
        """
        entry = self._entries.get(request_id)
        size = len(token_ids)  # type: ignore[arg-type]  # scalars end in the TypeError they deserve
        started_at = time.perf_counter()
        if entry is not None and self._naps_on(entry, token_ids, size, namespace):
            pass
        elif entry is not None and self._is_continued(entry, token_ids, size, namespace):
            new = as_token_ids(token_ids[entry.num_tokens :])  # type: ignore[index]
            entry.wake()
            if new.size:
                self._advance(request_id, entry, new, num_verified)
        else:
            tokens = as_token_ids(token_ids)
            if entry is None or entry.namespace != namespace or self.is_switched_off(request_id):
                self._start(request_id, tokens, namespace, num_prompt_tokens)
            else:
                self._rewrite(request_id, entry, tokens, num_prompt_tokens)
        self.statistics.draft_seconds += time.perf_counter() - started_at

    def set_prediction(self, request_id: RequestId, token_ids: Sequence[int]) -> None:
        """Tell the drafter, if it listens, what a followed request's output will probably be."""
        self._guard.set_prediction(request_id, token_ids)
        self._count_faults()

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depths: Sequence[int]
    ) -> list[CandidateTree]:
        """Return one tree a request, empty for those that are unknown or switched off.

        Args:
            request_ids: the requests of the step.
            max_nodes: most nodes of a tree.
            max_depths: of each request, the deepest node it has room for.
        """
        return self._propose(request_ids, max_nodes, max_depths, None, chains=False)

    def propose_chains(
        self,
        request_ids: Sequence[RequestId],
        max_lengths: Sequence[int],
        num_left: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Return one chain a request as plain integers, for engines that verify no trees.

        Args:
            request_ids: the requests of the step.
            max_lengths: of each request, the most tokens that it has room for.
            num_left: of each request, the most tokens that it may still emit, if known.
        """
        max_nodes = max(max_lengths, default=0)
        chains = self._propose(request_ids, max_nodes, max_lengths, num_left, chains=True)
        return [chain.token_ids.tolist() for chain in chains]

    def switch_off(self, request_id: RequestId, error: Exception) -> None:
        """Stop drafting for a request, until it is released, because of a fault met elsewhere."""
        if self.is_switched_off(request_id):
            return
        entry = self._entries.setdefault(
            request_id, RequestEntry(DEFAULT_NAMESPACE, _NOTHING, 0, 0)
        )
        entry.propose(CandidateTree.empty())
        self._guard.switch_off(request_id, error)
        self._count_faults()

    def release(self, request_id: RequestId) -> None:
        """End a request; one that is unknown is ignored."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        if entry.missed:  # others may learn from the response
            self._guard.extend(request_id, self._show(np.array(entry.missed, np.int32)))
        self._guard.stop(request_id)
        self._count_faults()
        self._guard.switched_off.discard(request_id)
        if self._budget is not None:
            self._budget.forget(request_id)

    def retain(self, request_ids: Iterable[RequestId]) -> None:
        """End all requests but these."""
        kept = set(request_ids)
        for request_id in [known for known in self._entries if known not in kept]:
            self.release(request_id)

    def _is_asleep(self, request_id: RequestId) -> bool:
        entry = self._entries.get(request_id)
        return entry is not None and entry.is_asleep

    def _naps_on(
        self, entry: RequestEntry, token_ids: npt.ArrayLike, size: int, namespace: str
    ) -> bool:
        """Return whether a request is left alone at this step; then only its tokens are counted."""
        if entry.naps is None or size <= entry.num_counted or namespace != entry.namespace:
            return False
        new = as_token_ids(token_ids[entry.num_counted :]).tolist()  # type: ignore[index]
        entry.naps.follow(new)
        if not entry.naps.sleep(self._num_rounds):
            return False
        entry.is_asleep = True
        entry.missed += new
        self._count_step(entry, size)
        return True

    def _count_step(self, entry: RequestEntry, num_tokens: int) -> None:
        self.statistics.steps += 1
        self.statistics.emitted += max(num_tokens - entry.num_counted, 0)
        entry.num_counted = num_tokens

    def _is_continued(
        self, entry: RequestEntry, token_ids: npt.ArrayLike, size: int, namespace: str
    ) -> bool:
        """Return whether the text begins with the entry's, as far as its end can tell."""
        stop = entry.num_tokens
        if size < stop or namespace != entry.namespace:
            return False
        window = token_ids[max(0, stop - WINDOW) : stop]  # type: ignore[index]
        return bool(np.asarray(window).tolist() == entry.recent)

    def _start(
        self,
        request_id: RequestId,
        tokens: IntArray,
        namespace: str,
        num_prompt_tokens: int | None,
    ) -> None:
        """Begin a request, or begin it anew; one that is switched off stays so."""
        was_off = self.is_switched_off(request_id)
        if self._budget is not None:
            self._budget.forget(request_id)
        num_prompt = tokens.size if num_prompt_tokens is None else num_prompt_tokens
        num_prompt = min(max(num_prompt, 0), tokens.size)
        entry = RequestEntry(namespace, np.empty(tokens.size, np.int32), 0, num_prompt)
        entry.append(tokens)
        entry.num_counted = tokens.size
        if self._naps:
            entry.naps = RequestNaps(tokens)
        self._entries[request_id] = entry
        if tokens.size == num_prompt + 1:  # the prefill's own token; more were counted before
            self.statistics.steps += 1
            self.statistics.emitted += 1
        if was_off:
            return
        shown = self._show(tokens)
        self._guard.start(request_id, shown[:num_prompt], namespace)
        if tokens.size > num_prompt:
            self._guard.extend(request_id, shown[num_prompt:])
        self._count_faults()

    def _rewrite(
        self,
        request_id: RequestId,
        entry: RequestEntry,
        tokens: IntArray,
        num_prompt_tokens: int | None,
    ) -> None:
        """Follow a text that no longer begins with what was known of it."""
        size = min(entry.num_tokens, tokens.size)
        differing = np.flatnonzero(tokens[:size] != entry.tokens[:size])
        shared = int(differing[0]) if differing.size else size
        if shared < entry.num_prompt_tokens or shared == 0:  # another request of the same id
            self._start(request_id, tokens, entry.namespace, num_prompt_tokens)
            return
        entry.cut(shared)
        entry.append(tokens[shared:])
        entry.num_counted = tokens.size
        entry.wake()
        if self._naps:
            entry.naps = RequestNaps(tokens)
        entry.propose(CandidateTree.empty())
        self._guard.truncate(request_id, shared)
        if tokens.size > shared:
            self._guard.extend(request_id, self._show(tokens[shared:]))
        self._count_faults()

    def _advance(
        self, request_id: RequestId, entry: RequestEntry, new: IntArray, num_verified: int | None
    ) -> None:
        """Take in one step's tokens: count, report what was accepted, then extend."""
        tree, ids = entry.proposed, new.tolist()
        if num_verified is not None and num_verified < tree.num_nodes:
            tree = tree.keep(np.arange(max(num_verified, 0)))
        path, num_nodes = _NOTHING, tree.num_nodes
        if num_nodes:
            # The last token is the target's own, even where the tree happens to spell it.
            path = _agreeing(tree, ids) if entry.is_chain else accepted_path(tree, new[:-1])
            self.statistics.drafted += num_nodes
            self.statistics.accepted += path.size
        entry.append(new, ids)
        self._count_step(entry, entry.num_tokens)
        entry.propose(CandidateTree.empty())
        if self.is_switched_off(request_id):
            return
        shown = new if self._shows_all(ids) else self._show(new)
        if num_nodes:
            self._guard.observe(request_id, tree, _feedback(num_nodes, path, shown))
        if self._budget is not None:
            self._budget.record_outcome(request_id, tree, path.size, ids)
        self._guard.extend(request_id, shown)
        self._count_faults()

    def _propose(
        self,
        request_ids: Sequence[RequestId],
        max_nodes: int,
        max_depths: Sequence[int],
        num_left: Sequence[int] | None,
        chains: bool,
    ) -> list[CandidateTree]:
        self._num_rounds += 1
        if self.all_asleep(request_ids):
            return [CandidateTree.empty()] * len(request_ids)
        started_at = time.perf_counter()
        trees = self._guard.propose(request_ids, max_nodes, self._allowed(request_ids, max_depths))
        if chains:
            trees = best_chains(trees)
        if self._budget is not None:
            trees = self._budget.cut(request_ids, trees, num_left)
        for request_id, tree, most in zip(request_ids, trees, max_depths, strict=True):
            entry = self._entries.get(request_id)
            if entry is None:
                continue
            entry.propose(tree, is_chain=chains)
            if entry.naps is not None and most and not entry.is_asleep:
                entry.naps.wake(tree.num_nodes)
        self._count_faults()
        self.statistics.draft_seconds += time.perf_counter() - started_at
        return trees

    def _allowed(
        self, request_ids: Sequence[RequestId], max_depths: Sequence[int]
    ) -> Sequence[int]:
        """Return the depths, 0 for requests that nap or that the budget lets sleep."""
        if self._budget is None:
            return max_depths
        deepest = max(max_depths, default=0)
        allowances = self._budget.allowances(request_ids, deepest)
        return [
            0 if self._is_asleep(request_id) else min(depth, allowed)
            for request_id, depth, allowed in zip(request_ids, max_depths, allowances, strict=True)
        ]

    def _show(self, tokens: IntArray) -> IntArray:
        """Return the tokens as the drafter may see them."""
        hidden = (tokens < 0) | (tokens >= self._vocab_size)
        if self._placeholder_ids:
            hidden |= np.isin(tokens, list(self._placeholder_ids))
        return np.where(hidden, np.int32(_NO_TOKEN), tokens) if hidden.any() else tokens

    def _shows_all(self, tokens: list[int]) -> bool:
        """Return whether the drafter may see the tokens of a step; at once where they are few."""
        if len(tokens) > _FEW or min(tokens) < 0 or max(tokens) >= self._vocab_size:
            return False
        return not self._placeholder_ids or self._placeholder_ids.isdisjoint(tokens)

    def _count_faults(self) -> None:
        self.statistics.switched_off = self._guard.num_faults


def _agreeing(chain: CandidateTree, new: Sequence[int]) -> IntArray:
    """Return what ``accepted_path`` does of a tree that is a chain, for all but the last token."""
    num_agreeing, most = 0, len(new) - 1
    for token, said in zip(chain.token_ids.tolist(), new, strict=False):
        if token != said or num_agreeing == most:
            break
        num_agreeing += 1
    return np.arange(num_agreeing, dtype=np.int32)


def _feedback(num_nodes: int, path: IntArray, new: IntArray) -> Feedback:
    """Return what a step has shown of a verified tree.

    The engine tells only what it emitted: that token stands for the target's choice after the root
    and after each accepted node, and the other nodes' choices are not known.
    """
    choices = np.empty(num_nodes + 1, np.int32)
    choices.fill(_NO_TOKEN)  # np.full takes three times as long
    choices[0] = new[0]
    choices[path + 1] = new[1 : path.size + 1]
    return Feedback(new, path, choices)
