"""The edit drafter: follows the original that the output edits, also behind each change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget, check_length
from ..prompt_backlog import PromptBacklog
from ..tree import CandidateTree, IntArray
from ..tree_batch import TreeBatch
from . import _align_kernels as align
from . import _tree_kernels as tree_kernels

_MIN_CAPACITY = 256

# Seen on the first two thirds of six kinds of traffic (whole-file edits, edit blocks, agent
# sessions, answers from documents, revisions, chat), each of the same weight; smoothed by hand
# where a cell was rare. A row for each kind of source, a column for each bucket of agreeing tokens.
_PRIOR_SHARES = (
    (0.40, 0.45, 0.54, 0.72, 0.79, 0.84, 0.89, 0.92, 0.96, 0.995),  # COPY_MAIN
    (0.40, 0.45, 0.55, 0.71, 0.79, 0.80, 0.83, 0.87, 0.93, 0.98),  # COPY_SIDE
    (0.01, 0.23, 0.71, 0.76, 0.84, 0.85, 0.88, 0.90, 0.92, 0.95),  # INSERTED_MAIN
    (0.01, 0.20, 0.64, 0.71, 0.78, 0.78, 0.84, 0.87, 0.90, 0.95),  # INSERTED_SIDE
    (0.01, 0.13, 0.65, 0.72, 0.76, 0.80, 0.84, 0.87, 0.90, 0.95),  # INSERTED_LONG
    (0.05, 0.50, 0.79, 0.86, 0.88, 0.88, 0.92, 0.93, 0.94, 0.96),  # REPLACED_MAIN
    (0.06, 0.49, 0.69, 0.78, 0.83, 0.84, 0.88, 0.89, 0.93, 0.95),  # REPLACED_SIDE
    (0.10, 0.25, 0.53, 0.68, 0.75, 0.78, 0.84, 0.89, 0.93, 0.95),  # DELETED
    (0.05, 0.16, 0.42, 0.53, 0.64, 0.70, 0.79, 0.87, 0.92, 0.95),  # DELETED_FURTHER
    (0.05, 0.13, 0.35, 0.51, 0.57, 0.69, 0.80, 0.87, 0.91, 0.95),  # IN_PROMPT
    (0.05, 0.18, 0.40, 0.52, 0.57, 0.65, 0.76, 0.80, 0.83, 0.93),  # IN_OUTPUT
    (0.02, 0.05, 0.11, 0.19, 0.25, 0.32, 0.36, 0.42, 0.45, 0.46),  # BUT_LAST
    (0.01, 0.16, 0.40, 0.54, 0.60, 0.65, 0.75, 0.80, 0.85, 0.90),  # RECENT
    (0.10, 0.10, 0.15, 0.21, 0.27, 0.28, 0.33, 0.37, 0.38, 0.40),  # SUBSTITUTE
    (0.05, 0.05, 0.08, 0.13, 0.15, 0.25, 0.25, 0.26, 0.28, 0.30),  # SURE_SUBSTITUTE
    (0.35, 0.35, 0.33, 0.32, 0.30, 0.30, 0.31, 0.29, 0.28, 0.27),  # CONTESTED
    (0.95, 0.95, 0.94, 0.94, 0.92, 0.87, 0.86, 0.78, 0.68, 0.65),  # SURE_CONTESTED
)
_PRIOR_TRIALS = 16.0


@dataclass(frozen=True, slots=True)
class EditConfig:
    """Settings of :class:`EditDrafter`.

    Attributes:
        min_prob: path probability below which a node is not proposed.
        capacity: tokens for which room is reserved at first (28 bytes each, untouched until used);
            it doubles whenever the running requests need more.
        slice_tokens: tokens of prompts that one step indexes at most, for all requests together;
            until its prompt is in, a request has no drafts. Without it all are indexed at once.
    """

    min_prob: float = 0.008
    capacity: int = 1 << 16
    slice_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not 0 < self.min_prob <= 1:
            raise ValueError(f"expected min_prob in (0, 1], got {self.min_prob}")
        if not _MIN_CAPACITY <= self.capacity <= 1 << 27:
            raise ValueError(
                f"expected capacity in {_MIN_CAPACITY}..{1 << 27}, got {self.capacity}"
            )
        if self.slice_tokens is not None and self.slice_tokens < 1:
            raise ValueError(f"expected slice_tokens >= 1 or None, got {self.slice_tokens}")


class EditDrafter:
    """Drafts from the stretch of the prompt that the output copies and changes.

    The stretch is found by the copying itself: no file has to be marked. Where the output leaves
    it, the tree's branches are the places where the copy may resume: at the same place (text was
    inserted), as far behind it as the output has gone (replaced), behind a later place of the last
    token (deleted), after the same replacement as earlier in this request. With nothing to follow
    and nothing that repeats, the tree is empty.

    State is per request: nothing is kept when one stops but how often each kind of branch was
    right. Namespaces therefore have no effect.
    """

    def __init__(self, config: EditConfig | None = None) -> None:
        """Reserve room and compile the kernels.

        Args:
            config: the settings; the defaults when absent.
        """
        self.config = EditConfig() if config is None else config
        self._append_tokens = align.compile_kernels()
        self._grow_trees = tree_kernels.compile_kernels()
        self._store = np.empty(self.config.capacity * align.NUM_FIELDS, np.int32)
        self._used = 0  # of the store, in int32
        self._free_extents: dict[int, list[int]] = {}  # capacity in tokens: where they begin
        self._slots = np.zeros((8, align.SLOT_SIZE), np.int32)
        self._table = self._slots.reshape(-1)  # the same, as kernels take it
        self._free_slots = list(range(len(self._slots)))[::-1]
        self._slot_of: dict[RequestId, int] = {}
        self._backlog = PromptBacklog(self.config.slice_tokens, self._append)
        self._batch = np.empty(0, np.int32)  # the slots of the requests asked for last
        self._batch_ids: list[RequestId] | None = None  # and their ids, while they still run
        self._counts = _prior_counts()
        self._work = np.zeros(tree_kernels.WORK_SIZE, np.int32)
        self._most_nodes = 16
        self._weights = _room_for_weights(self._most_nodes)

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "edit"

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request; one of the same id that still runs is stopped first.

        Args:
            request_id: any hashable, unique among the running requests.
            prompt_ids: ``(prompt_length,)`` integers.
            namespace: without effect, since requests never see each other.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        prompt = as_token_ids(prompt_ids)
        self.stop(request_id)
        if not self._free_slots:
            self._add_slots()
        slot = self._free_slots.pop()
        row = self._slots[slot]
        row[:] = 0
        row[align.ALIGNMENTS_AT : align.EDITS_AT] = align.NONE
        row[align.PROMPT_LENGTH] = prompt.size
        self._slot_of[request_id] = slot
        self._batch_ids = None
        self._backlog.start(request_id, prompt)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        if request_id not in self._slot_of:
            return
        if self.config.slice_tokens is None:
            self._append(request_id, as_token_ids(token_ids), True)
        else:
            self._backlog.extend(request_id, as_token_ids(token_ids))

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        if not request_ids or max_nodes <= 0 or max_depth <= 0:
            check_budget(max_nodes, max_depth)
            self._backlog.begin_step()
            return [CandidateTree.empty()] * len(request_ids)
        batch = TreeBatch.with_room(len(request_ids), max_nodes)
        self.draft_batch(request_ids, max_depth, batch)
        return batch.trees()

    def draft_batch(
        self, request_ids: Sequence[RequestId], max_depth: int, batch: TreeBatch
    ) -> None:
        """Write one tree a request into ``batch``, as :meth:`propose` returns them.

        Args:
            request_ids: at least one.
            max_depth: the deepest level, at least 1.
            batch: overwritten; its room, at least one node a tree, is the most that a tree takes.
        """
        if request_ids != self._batch_ids or self.config.slice_tokens is not None:
            self._backlog.begin_step()
            slot_of, backlog = self._slot_of, self._backlog
            slots = [
                align.NONE if request_id in backlog else slot_of.get(request_id, align.NONE)
                for request_id in request_ids
            ]
            self._batch, self._batch_ids = np.array(slots, np.int32), list(request_ids)
        rows, max_nodes = self._batch, batch.probs.shape[1]
        if max_nodes > self._most_nodes:
            self._most_nodes, self._weights = max_nodes, _room_for_weights(max_nodes)
        self._grow_trees(
            self._store, self._table, rows, self._counts, max_depth, self.config.min_prob,
            self._work, self._weights, batch.nodes, batch.probs,
        )  # fmt: skip

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the committed tokens, which ``extend`` brings, say all that is used."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: ``length`` is negative.
        """
        check_length(length)
        slot = self._slot_of.get(request_id)
        if slot is not None:
            self._backlog.finish(request_id)
            align.truncate(self._store, self._table, slot, length)

    def stop(self, request_id: RequestId) -> None:
        """End the request and give its room back."""
        self._backlog.drop(request_id)
        slot = self._slot_of.pop(request_id, None)
        if slot is not None:
            self._batch_ids = None
            self._release(slot)
            self._free_slots.append(slot)

    def _append(self, request_id: RequestId, tokens: IntArray, is_output: bool) -> None:
        """Index tokens of a request, in a larger extent where they need one."""
        slot = self._slot_of[request_id]
        header = self._slots[slot]
        length, capacity = header.item(align.LENGTH), header.item(align.CAPACITY)
        if capacity == 0:
            # twice the prompt: an edited file comes out about as long as it went in
            self._allocate(slot, max(2 * header.item(align.PROMPT_LENGTH), _MIN_CAPACITY))
        elif length + tokens.size > capacity:
            self._move(slot, length + tokens.size)
        self._append_tokens(self._store, self._table, slot, tokens, is_output)

    def _add_slots(self) -> None:
        number = len(self._slots)
        self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
        self._table = self._slots.reshape(-1)
        self._free_slots = list(range(number, 2 * number))[::-1]

    def _allocate(self, slot: int, tokens: int) -> None:
        """Give a request an empty extent of a power of two of tokens."""
        capacity = 1 << (tokens - 1).bit_length()
        size = capacity * align.NUM_FIELDS
        free = self._free_extents.get(capacity)
        if free:
            base = free.pop()
        else:
            base = self._used
            self._used += size
            if self._used > self._store.size:
                grown = np.empty(max(2 * self._store.size, self._used), np.int32)
                grown[:base] = self._store[:base]
                self._store = grown
        buckets = base + capacity * (1 + align.NUM_LEVELS)
        self._store[buckets : base + size] = align.NONE
        self._slots[slot, align.BASE] = base
        self._slots[slot, align.CAPACITY] = capacity
        self._slots[slot, align.LENGTH] = 0

    def _release(self, slot: int) -> None:
        base, capacity = self._slots[slot, [align.BASE, align.CAPACITY]].tolist()
        if capacity:  # none as long as the request's prompt waits for its turn
            self._free_extents.setdefault(capacity, []).append(base)

    def _move(self, slot: int, tokens: int) -> None:
        """Give a request a larger extent, with its text indexed anew."""
        base, length = self._slots[slot, [align.BASE, align.LENGTH]].tolist()
        text = self._store[base : base + length].copy()
        self._release(slot)
        self._allocate(slot, tokens)
        self._append_tokens(self._store, self._table, slot, text, False)


def _room_for_weights(max_nodes: int) -> npt.NDArray[np.float64]:
    """Return room for the weights of groups and the depths of ``max_nodes``."""
    size = tree_kernels.WEIGHT_FIELDS * align.MAX_SOURCES + max_nodes
    return np.zeros(size)


def _prior_counts() -> npt.NDArray[np.float64]:
    """Return hits and trials of each kind of source before anything was seen.

    Returns:
        ``(NUM_KINDS, NUM_BUCKETS, 2)`` float64.
    """
    shares = np.array(_PRIOR_SHARES)
    trials = np.full_like(shares, _PRIOR_TRIALS)
    return np.stack([shares * trials, trials], axis=2)
