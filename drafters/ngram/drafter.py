"""The n-gram drafter: what followed at the earlier places where the last tokens stood.

It needs no training and no model: it keeps the text of running and finished requests, looks up
where the last 24, 3, 2 and 1 tokens stood before, and merges what followed there into a tree.
How much a place counts depends on how long it matched, whether the match goes on behind a changed
token, where it lies (own prompt, own output, another request's), how old it is, and how far it is
from where the text was expected to go on. The weights are fitted once; what the target accepts
calibrates the probabilities all the time.

A proposal for a batch is one kernel call without the interpreter's lock; its cost does not depend
on how much text is kept, except by cache misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base import (
    DEFAULT_NAMESPACE,
    Feedback,
    RequestId,
    as_token_ids,
    check_budget,
    check_length,
    check_texts,
)
from ..prompt_backlog import PromptBacklog
from ..tree import CandidateTree, IntArray
from ..tree_batch import TreeBatch, new_tree, set_batch, set_row
from . import _after_kernels as after
from . import _draft_kernels as drafting
from . import _ingest_kernels as ingester
from . import _pool_kernels as pool
from . import _tree_kernels as grower
from .arena import calibration_within, new_arena
from .config import NgramConfig

_DRAFTS_A_REFIT = drafting.TREES_ALONE  # so that new room and a refit come together
_MIN_SPACES = 1024
"""Namespaces known at which those without text are forgotten."""


class NgramDrafter:
    """Drafts a tree of what followed at earlier places of the tail.

    The text of finished requests stays searchable in its namespace until the room is needed: the
    oldest goes first, page by page. When running requests fill the pool, each forgets its own
    oldest page to go on.
    """

    def __init__(self, config: NgramConfig | None = None) -> None:
        """Reserve the pool and compile the kernels.

        Args:
            config: the settings; the defaults when absent.
        """
        self.config = NgramConfig() if config is None else config
        after.compile_kernels()
        pool.compile_kernels()
        self._ingest, self._ingest_all = ingester.compile_kernels()
        self._draft, self._draft_alone = drafting.compile_kernels()
        memory = new_arena(self.config)
        self._arena, self._floats = memory.ints, memory.floats
        self._pages, self._rows, self._drafts = memory.pages, memory.rows, memory.drafts
        self._calibration = calibration_within(self._floats)
        self._drafts_until_refit = _DRAFTS_A_REFIT
        self._batch = np.empty(0, np.int32)  # the rows of the last batch
        self._batch_ids: list[RequestId] | None = None  # and its ids, while they still run
        self._row_of: dict[RequestId, int] = {}
        # Room for the trees of requests that are asked for alone, and its next row. None is made
        # where prompts are indexed in slices.
        self._cells = np.empty(drafting.TREES_ALONE, np.int32)
        self._room = TreeBatch.within(self._cells, drafting.TREES_ALONE)
        self._next_tree = 0
        self._room_nodes = 0
        self._backlog = PromptBacklog(self.config.slice_tokens, self._append)
        self._in_slices = self.config.slice_tokens is not None
        self._free_rows = list(range(len(self._rows)))[::-1]
        self._spaces: dict[str, int] = {}
        self._max_spaces = _MIN_SPACES
        self._last_space = 0
        self._serial = 0

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "ngram"

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
        self.stop(request_id)
        if not self._free_rows:
            return  # one more than may run: it goes without drafts
        row = self._free_rows.pop()
        self._batch_ids = None
        self._serial = self._serial % 0x7FFFFFFF + 1
        space = self._space_of(namespace) if self.config.search_earlier else self._serial
        fields = np.zeros(pool.ROW_FIELDS, np.int32)
        fields[pool.NAMESPACE] = space
        fields[pool.SERIAL] = self._serial
        fields[pool.FIRST_PAGE] = pool.NONE
        fields[pool.LAST_PAGE] = pool.NONE
        fields[pool.PROMPT_LENGTH] = prompt.size
        self._rows[row] = fields
        self._row_of[request_id] = row
        self._backlog.start(request_id, prompt)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        row = self._row_of.get(request_id)
        if row is None:
            return
        tokens = as_token_ids(token_ids)
        if self._in_slices:
            self._backlog.extend(request_id, tokens)
        else:
            self._ingest(self._arena, row, tokens)

    def extend_batch(
        self, request_ids: Sequence[RequestId], token_ids: Sequence[npt.ArrayLike]
    ) -> None:
        """Append committed tokens of several requests, as :meth:`extend` does, in one call.

        Args:
            request_ids: the requests, each once.
            token_ids: of each, ``(num_new,)`` integers.

        Raises:
            ValueError: not as many texts as requests, or one that :meth:`extend` would refuse; then
                nothing is appended.
        """
        check_texts(request_ids, token_ids)
        if self._in_slices and self._backlog:
            arrays = list(map(as_token_ids, token_ids))
            for request_id, tokens in zip(request_ids, arrays, strict=True):
                self.extend(request_id, tokens)
            return
        rows = self._rows_of(request_ids)
        try:
            packed = _joined(rows, token_ids)
        except (TypeError, ValueError):  # not all of them are one-dimensional int32 arrays
            packed = _joined(rows, list(map(as_token_ids, token_ids)))
        self._ingest_all(self._arena, packed, rows.size)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        if len(request_ids) == 1 and 0 < max_nodes <= self._room_nodes and max_depth > 0:
            row = self._row_of.get(request_ids[0])
            if row is not None:
                out = self._next_tree
                if out == drafting.TREES_ALONE:
                    self._renew_room(max_nodes)
                    out = 0
                self._next_tree = out + 1
                self._draft_alone(self._arena, row, max_nodes, max_depth, out, self._cells)
                tree = new_tree()
                set_batch(tree, self._room)
                set_row(tree, out)
                return [tree]
        if not request_ids or max_nodes <= 0 or max_depth <= 0:
            check_budget(max_nodes, max_depth)
            self._backlog.begin_step()
            return [CandidateTree.empty()] * len(request_ids)
        if max_nodes > self._room_nodes and not self._in_slices:
            self._renew_room(max_nodes)
        batch = TreeBatch.with_room(len(request_ids), max_nodes)
        self.draft_batch(request_ids, max_depth, batch)
        return batch.trees()

    def _renew_room(self, max_nodes: int) -> None:
        """Make new room for the trees of requests asked for alone; it is never written twice."""
        self._room_nodes = max(max_nodes, self._room_nodes)
        self._cells = np.empty(drafting.TREES_ALONE * (1 + 3 * self._room_nodes), np.int32)
        self._room = TreeBatch.within(self._cells, drafting.TREES_ALONE)
        self._next_tree = 0
        self._calibration.refit()

    def draft_batch(
        self, request_ids: Sequence[RequestId], max_depth: int, batch: TreeBatch
    ) -> None:
        """Write one tree a request into ``batch``, as :meth:`propose` returns them.

        Args:
            request_ids: at least one.
            max_depth: the deepest level, at least 1.
            batch: overwritten; its room, at least one node a tree, is the most that a tree takes.
        """
        rows = self._rows_of(request_ids)
        if self._in_slices:
            self._backlog.begin_step()
            if self._backlog:
                rows = rows.copy()
                rows[[i in self._backlog for i in request_ids]] = pool.NONE
        self._drafts_until_refit -= len(request_ids)
        if self._drafts_until_refit < 0:
            self._calibration.refit()
            self._drafts_until_refit = _DRAFTS_A_REFIT
        room = batch.probs.shape[1]
        self._draft(self._arena, self._floats, rows, room, max_depth, batch.nodes, batch.probs)

    def propose_after(
        self, request_id: RequestId, next_ids: Sequence[int], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return what would follow each of some tokens, were it the next; nothing else changes.

        Args:
            request_id: a started request; an unknown one has empty trees.
            next_ids: tokens that may follow the committed ones, each on its own.
            max_nodes: most nodes of a tree, the given token not counted.
            max_depth: deepest node, counted from the given token.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        row = self._row_of.get(request_id)
        if row is None or request_id in self._backlog or max_nodes == 0 or max_depth == 0:
            return [CandidateTree.empty()] * len(next_ids)
        fields, draft = self._rows[row].copy(), self._drafts[row].copy()
        room = int(self._arena[pool.ROOM_AT]) << pool.LINE_BITS
        trees = []
        for token in next_ids:
            batch = TreeBatch.with_room(1, max_nodes)
            self._arena[pool.FOUND] = 0
            if token >= 0:
                after.search_after(self._arena, self._floats, row, token)
            grower.grow_tree(
                self._arena, self._floats, row, room, max_nodes, max_depth, 0, batch.nodes,
                batch.probs,
            )  # fmt: skip
            trees += batch.trees()
        # The draft that waits to be settled is the one that was proposed.
        self._rows[row], self._drafts[row] = fields, draft
        return trees

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the committed tokens, which ``extend`` brings, say all that is used."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: ``length`` is negative.
        """
        check_length(length)
        row = self._row_of.get(request_id)
        if row is not None:
            self._backlog.finish(request_id)
            pool.truncate(self._arena, row, length)

    def stop(self, request_id: RequestId) -> None:
        """End the request; its text stays searchable in its namespace until reclaimed."""
        self._backlog.drop(request_id)
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self._batch_ids = None
            pool.release(self._arena, row)
            self._free_rows.append(row)

    def _append(self, request_id: RequestId, tokens: IntArray, is_output: bool) -> None:
        """Index tokens of a request; its row knows where the prompt ends."""
        self._ingest(self._arena, self._row_of[request_id], tokens)

    def _rows_of(self, request_ids: Sequence[RequestId]) -> IntArray:
        """Return the rows of a batch, -1 for unknown requests; not to be written to."""
        if request_ids != self._batch_ids:
            self._batch_ids = list(request_ids)
            self._batch = np.array([self._row_of.get(i, pool.NONE) for i in request_ids], np.int32)
        return self._batch

    def _space_of(self, namespace: str) -> int:
        """Return the number of a namespace; one without any text left may get a new one."""
        space = self._spaces.get(namespace)
        if space is None:
            if len(self._spaces) >= self._max_spaces:
                alive = set(self._pages[:, pool.PAGE_NAMESPACE].tolist())
                alive.update(self._rows[list(self._row_of.values()), pool.NAMESPACE].tolist())
                self._spaces = {n: s for n, s in self._spaces.items() if s in alive}
                self._max_spaces = max(_MIN_SPACES, 2 * len(self._spaces))
            self._last_space += 1
            space = self._spaces[namespace] = self._last_space
        return space


def _joined(rows: IntArray, texts: Sequence[Any]) -> IntArray:
    """Return rows, sizes of their texts and texts in one array; all must be int32 already."""
    sizes = np.fromiter(map(len, texts), np.int32, rows.size)
    return np.concatenate((rows, sizes, *texts), dtype=np.int32, casting="no")
