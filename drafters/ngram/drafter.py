"""The n-gram drafter: what followed at the earlier places where the last tokens stood.

It needs no training and no model: it keeps the text of running and finished requests, looks up
where the last 24, 4, 2 and 1 tokens stood before, and merges what followed there into a tree.
How much a place counts depends on how long it matched, whether the match goes on behind a changed
token, where it lies (own prompt, own output, another request's), how old it is, and how far it is
from where the text was expected to go on. The weights are fitted once; what the target accepts
calibrates the probabilities all the time.

A proposal for a batch is one kernel call without the interpreter's lock; its cost does not depend
on how much text is kept, except by cache misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget, check_length
from ..calibration import Calibration
from ..prompt_backlog import PromptBacklog
from ..tree import CandidateTree, IntArray
from ..tree_batch import TreeBatch, new_tree, set_source
from ..untouched import untouched_zeros
from . import _after_kernels as after
from . import _draft_kernels as drafting
from . import _ingest_kernels as ingester
from . import _pool_kernels as pool
from . import _search_kernels as finder
from . import _tree_kernels as grower
from . import _weights as tables

_DRAFTS_A_REFIT = 64
_MIN_SPACES = 1024
"""Namespaces known at which those without text are forgotten."""


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Settings of :class:`NgramDrafter`.

    Attributes:
        levels: lengths k of the k-grams that are looked up, longest first.
        max_visits: earlier places looked at in each level, the most recent first.
        max_skip_visits: places looked at, in each level of two to four tokens, for the text before
            the last token; 0 to propose nothing behind a changed token.
        max_match: how many tokens of the tail are compared, to weigh the places.
        max_places: places whose continuations are merged.
        capacity: tokens kept, those of running and of finished requests together.
        page_size: tokens in a page, a power of two. A request holds whole pages.
        max_requests: how many requests may run at once; one more goes without drafts.
        search_earlier: whether a request also looks at others of its namespace.
        slice_tokens: tokens of prompts that one step indexes at most, for all requests together;
            until its prompt is in, a request has no drafts. Without it all are indexed at once.
    """

    levels: tuple[int, ...] = (24, 4, 2, 1)
    max_visits: tuple[int, ...] = (8, 16, 48, 16)
    max_skip_visits: int = 6
    max_match: int = 64
    max_places: int = 64
    capacity: int = 1 << 22
    page_size: int = 128
    max_requests: int = 1024
    search_earlier: bool = True
    slice_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not 1 <= len(self.levels) <= 8 or any(a <= b for a, b in pairwise(self.levels)):
            raise ValueError(f"expected 1 to 8 falling levels, got {self.levels}")
        if self.levels[-1] < 1 or self.levels[0] > self.max_match:
            raise ValueError(
                f"expected levels within 1..max_match ({self.max_match}), got {self.levels}"
            )
        if len(self.max_visits) != len(self.levels) or min(self.max_visits) < 0:
            raise ValueError(
                f"expected max_visits >= 0 for each of the levels {self.levels}, "
                f"got {self.max_visits}"
            )
        for name, least in (("max_skip_visits", 0), ("max_places", 1), ("max_requests", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} >= {least}, got {getattr(self, name)}")
        if self.slice_tokens is not None and self.slice_tokens < 1:
            raise ValueError(f"expected slice_tokens >= 1 or None, got {self.slice_tokens}")
        if self.page_size < 1 or self.page_size & (self.page_size - 1):
            raise ValueError(f"expected page_size a power of two, got {self.page_size}")
        if not self.page_size <= self.capacity < 1 << 28:
            raise ValueError(
                f"expected capacity within page_size ({self.page_size})..2**28 - 1, "
                f"got {self.capacity}"
            )


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
        self._ingest = ingester.compile_kernels()
        self._draft = drafting.compile_kernels()
        self._arena, self._pages, self._rows, self._drafts = _new_arena(self.config)
        self._floats = _new_floats(self.config, len(self._rows))
        self._calibration = _calibration_within(self._floats)
        self._drafts_until_refit = _DRAFTS_A_REFIT
        self._batch = np.empty(0, np.int32)  # the rows of the requests asked for last
        self._batch_ids: list[RequestId] | None = None  # and their ids, while they still run
        self._row_of: dict[RequestId, int] = {}
        self._alone: dict[RequestId, IntArray] = {}  # (1,) the row of a request asked for alone
        self._room = TreeBatch.with_room(_DRAFTS_A_REFIT, 0)  # for such requests' trees
        self._next_tree = 0  # the first free row in it
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
        if not self._in_slices:
            self._alone[request_id] = np.array([row], np.int32)
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
            self._ingest(self._arena, self._floats, row, tokens)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        if len(request_ids) == 1 and 0 < max_nodes <= self._room_nodes and max_depth > 0:
            alone = self._alone.get(request_ids[0])
            if alone is not None:
                row = self._next_tree
                if row == _DRAFTS_A_REFIT:
                    self._renew_room(max_nodes)
                    row = 0
                self._next_tree = row + 1
                room, arena, floats = self._room, self._arena, self._floats
                self._draft(arena, floats, alone, max_nodes, max_depth, row, room.nodes, room.probs)
                tree = new_tree()
                set_source(tree, (room, row))
                return [tree]
        if not request_ids or max_nodes <= 0 or max_depth <= 0:
            check_budget(max_nodes, max_depth)
            self._backlog.begin_step()
            return [CandidateTree.empty()] * len(request_ids)
        if max_nodes > self._room_nodes:
            self._renew_room(max_nodes)
        batch = TreeBatch.with_room(len(request_ids), max_nodes)
        self.draft_batch(request_ids, max_depth, batch)
        return batch.trees()

    def _renew_room(self, max_nodes: int) -> None:
        """Make new room for the trees of requests asked for alone; it is never written twice."""
        self._room_nodes = max(max_nodes, self._room_nodes)
        self._room = TreeBatch.with_room(_DRAFTS_A_REFIT, self._room_nodes)
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
        if request_ids != self._batch_ids:
            row_of = self._row_of
            self._batch_ids = list(request_ids)
            self._batch = np.array([row_of.get(i, pool.NONE) for i in request_ids], np.int32)
        if self._in_slices:
            self._backlog.begin_step()
            self._batch_ids = None
            self._batch[[i in self._backlog for i in request_ids]] = pool.NONE
        self._drafts_until_refit -= len(request_ids)
        if self._drafts_until_refit < 0:
            self._calibration.refit()
            self._drafts_until_refit = _DRAFTS_A_REFIT
        arena, floats, rows = self._arena, self._floats, self._batch
        room = batch.probs.shape[1]
        self._draft(arena, floats, rows, room, max_depth, 0, batch.nodes, batch.probs)

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
        trees = []
        for token in next_ids:
            batch = TreeBatch.with_room(1, max_nodes)
            self._rows[row, pool.FOUND] = 0
            if token >= 0:
                after.search_after(self._arena, self._floats, row, token)
            grower.grow_tree(
                self._arena, self._floats, row, max_nodes, max_depth, 0, batch.nodes, batch.probs
            )
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
            self._alone.pop(request_id, None)
            pool.release(self._arena, row)
            self._free_rows.append(row)

    def _append(self, request_id: RequestId, tokens: IntArray, is_output: bool) -> None:
        """Index tokens of a request; its row knows where the prompt ends."""
        row = self._row_of[request_id]
        self._ingest(self._arena, self._floats, row, tokens)

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


def _new_arena(config: NgramConfig) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the arena of a config, and the views of its pages, its requests' rows and drafts."""
    num_pages = config.capacity // config.page_size
    num_slots = num_pages * config.page_size
    num_levels = len(config.levels)
    num_rows = min(config.max_requests, num_pages)
    bucket_bits = num_slots.bit_length() - 1  # a bucket for one or two tokens
    pages_start = pool.HEADER_SIZE + num_slots * (1 + num_levels) + (num_levels << bucket_bits)
    rows_start = pages_start + num_pages * pool.PAGE_FIELDS
    rows_stop = rows_start + num_rows * pool.ROW_FIELDS
    drafts_stop = rows_stop + num_rows * pool.DRAFT_ROOM
    num_places = num_rows * config.max_places
    num_visits = sum(config.max_visits) + config.max_skip_visits * num_levels
    room = max(
        ingester.BLOCK * num_levels,
        finder.CHAINS_ROOM + config.max_match + num_visits,
        _max_groups(config) * grower.GROUP_FIELDS,
    )
    size = drafts_stop + num_places * pool.PLACE_FIELDS + room
    arena = untouched_zeros(size, huge_pages=True)  # every region fills from its beginning on
    page_bits = config.page_size.bit_length() - 1
    header = {
        pool.NUM_PAGES: num_pages,
        pool.PAGE_BITS: page_bits,
        pool.SLOT_BITS: page_bits + (num_pages - 1).bit_length(),
        pool.BUCKET_BITS: bucket_bits,
        pool.NUM_LEVELS: num_levels,
        pool.NUM_ROWS: num_rows,
        pool.QUEUE_HEAD: pool.NONE,
        pool.QUEUE_TAIL: pool.NONE,
        pool.MAX_MATCH: config.max_match,
        pool.MAX_SKIP_VISITS: config.max_skip_visits,
        pool.MAX_PLACES: config.max_places,
    }
    for field, value in header.items():
        arena[field] = value
    arena[[pool.NUM_BUCKETS, pool.HALF]] = min(pool.MIN_BUCKETS, 1 << bucket_bits)
    for first, values in (
        (pool.FIRST_LEVEL, config.levels),
        (pool.FIRST_VISITS, config.max_visits),
        (pool.FIRST_WEIGHT, [pow(pool.HASH_BASE, k, pool.PRIME) for k in config.levels]),
    ):
        arena[first : first + num_levels] = values
    pages = arena[pages_start:rows_start].reshape(num_pages, pool.PAGE_FIELDS)
    rows = arena[rows_start:rows_stop].reshape(num_rows, pool.ROW_FIELDS)
    return arena, pages, rows, arena[rows_stop:drafts_stop].reshape(num_rows, -1)


def _max_groups(config: NgramConfig) -> int:
    """Return how many groups of places a tree may need that is grown in the arena's room."""
    return config.max_places + grower.MAX_NODES + 1


def _new_floats(config: NgramConfig, num_rows: int) -> npt.NDArray[np.float64]:
    """Return the weights, with room behind them, as the kernels take them."""
    size = num_rows * config.max_places + _max_groups(config) * grower.SCORE_FIELDS
    floats = np.zeros(tables.PLACES + size)
    floats[: tables.NUM_WEIGHTS] = tables.make_model()
    return floats


def _calibration_within(floats: npt.NDArray[np.float64]) -> Calibration:
    """Return a calibration whose maps and counts lie where the kernels look for them."""
    calibration = Calibration(tables.NUM_CLASSES, tables.KNOTS + 1)
    shape = (tables.NUM_CLASSES, tables.KNOTS + 1)
    calibration.knots = floats[tables.MAPS : tables.COUNTS].reshape(shape)
    calibration.counts = floats[tables.COUNTS : tables.PLACES].reshape(*shape, 2)
    calibration.refit()
    return calibration
