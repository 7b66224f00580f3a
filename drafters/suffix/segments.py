"""The shared part of the suffix pool: a namespace's earlier texts in a ring of automata."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..tree import IntArray
from . import _automaton_kernels as kernels
from .arena import Arena

LongArray = npt.NDArray[np.int64]
_BARRIER = np.array([kernels.BARRIER], np.int32)


def table_caps(num_tokens: int, max_context: int) -> LongArray:
    """Return the rows of an automaton's tables for about ``num_tokens`` tokens of usual text.

    Text, code and their edits need 0.25 to 0.7 branch states and 1.0 to 1.14 edges a token.

    Returns:
        ``(5,)`` int64, what :func:`open_automaton` takes.
    """
    num_edges = num_tokens + num_tokens // 6 + 2 * max_context + 64
    num_buckets = 1 << max(4, (num_edges * 2 // 3).bit_length())
    num_branches = num_tokens * 3 // 5 + max_context + 16
    return np.array(
        [num_tokens + 2, num_branches, num_edges, num_buckets - 1, max_context], np.int64
    )


def extent_size(caps: LongArray) -> int:
    """Return the int32 that an automaton with these tables takes."""
    rows = caps[:3] * (kernels.PREFIX_ROW, kernels.BRANCH_ROW, kernels.EDGE_ROW)
    return int(kernels.HEADER + rows.sum() + caps[3] + 1)


@lru_cache(maxsize=64)
def tokens_within(num_bytes: int, max_context: int) -> int:
    """Return how many tokens an automaton of at most ``num_bytes`` is laid out for."""
    low, high = 0, num_bytes // 4
    while low < high:
        middle = (low + high + 1) // 2
        if 4 * extent_size(table_caps(middle, max_context)) <= num_bytes:
            low = middle
        else:
            high = middle - 1
    return low


class Segments:
    """Up to ``num_segments`` automata: texts go to the youngest; the oldest is dropped whole.

    The first segment is small and each next one four times as large until the bound in bytes is
    reached, so that a namespace of few texts takes little. Dropping costs O(1): nothing in the
    extent is cleared, and the next automaton overwrites it.

    Attributes:
        slots: the extent of each slot, -1 where there is none.
        rows: rows of the running requests, in the drafter's cursors.
        num_texts: how many texts have gone in whole.
        last_used: when a request of the namespace last started, in any increasing unit.
    """

    def __init__(
        self,
        arena: Arena,
        num_segments: int,
        max_bytes: int,
        max_context: int,
        allocate: Callable[[int], int | None],
        moved: Callable[[Segments, int], None],
    ) -> None:
        """Begin without a segment.

        Args:
            arena: where the automata live.
            num_segments: the number of slots.
            max_bytes: the most that all segments take.
            max_context: the longest context.
            allocate: reserves an extent of so many int32, or returns None.
            moved: told each slot that was opened, reopened or dropped.
        """
        self.slots = [-1] * num_segments
        self.rows: set[int] = set()
        self.last_used = 0
        self.num_texts = 0
        self._arena = arena
        self._allocate = allocate
        self._moved = moved
        self._max_context = max_context
        self._segment_bytes = max_bytes // num_segments
        self._most_waiting = tokens_within(self._segment_bytes, max_context)
        self._next_bytes = max(self._segment_bytes // 16, min(self._segment_bytes, 1 << 20))
        self._sizes = [0] * num_segments  # int32 of each slot's extent
        self._order: list[int] = []  # slots, oldest first; the last one is written
        self._backlog: deque[IntArray] = deque()
        self._offset = 0  # how much of the backlog's first text is in
        self._waiting = 0  # tokens of the backlog that are not in

    @property
    def num_segments(self) -> int:
        """Segments that hold text."""
        return len(self._order)

    @property
    def num_waiting(self) -> int:
        """Tokens that are queued."""
        return self._waiting

    def push(self, tokens: IntArray) -> None:
        """Queue a text; what waits too long behind a full queue is forgotten, oldest first."""
        if tokens.size == 0:
            return
        self._backlog.append(np.concatenate((tokens, _BARRIER)))
        self._waiting += tokens.size + 1
        while self._waiting > self._most_waiting and len(self._backlog) > 1:
            self._waiting -= self._backlog.popleft().size - self._offset
            self._offset = 0

    def ingest(self, max_tokens: int) -> None:
        """Append up to ``max_tokens`` queued tokens."""
        while self._backlog and max_tokens > 0:
            text = self._backlog[0]
            stop = min(text.size, self._offset + max_tokens)
            reached = self._offset
            if self._order:
                base = self.slots[self._order[-1]]
                reached = kernels.append(self._arena.array, base, text, self._offset, stop)
            max_tokens -= reached - self._offset
            self._waiting -= reached - self._offset
            self._offset = reached
            if reached == text.size:
                self._backlog.popleft()
                self._offset = 0
                self.num_texts += 1
            elif reached < stop and not self._open_segment():
                self._backlog.clear()
                self._offset = self._waiting = 0

    def drop_oldest(self) -> bool:
        """Release the oldest segment; return whether there was one."""
        if not self._order:
            return False
        slot = self._order.pop(0)
        self._arena.release(self.slots[slot])
        self.slots[slot] = -1
        self._moved(self, slot)
        return True

    def texts(self) -> list[IntArray]:
        """Return the tokens of each segment, oldest first, then what waits; barriers are -1."""
        parts = [own_tokens(self._arena.array, self.slots[slot], 0) for slot in self._order]
        waiting = list(self._backlog)
        if waiting:
            waiting[0] = waiting[0][self._offset :]
            parts.append(np.concatenate(waiting))
        return [part for part in parts if part.size]

    def _open_segment(self) -> bool:
        """Begin a segment in a free slot, or else in place of the oldest; return whether."""
        size = self._next_bytes // 4
        if -1 not in self.slots and self._sizes[self._order[0]] < size:
            self.drop_oldest()
        base = self._allocate(size) if -1 in self.slots else None
        if base is not None:
            slot = self.slots.index(-1)
            self.slots[slot], self._sizes[slot] = base, size
            self._next_bytes = min(4 * self._next_bytes, self._segment_bytes)
        elif self._order:
            slot = self._order.pop(0)
        else:
            return False
        num_tokens = tokens_within(4 * self._sizes[slot], self._max_context)
        caps = table_caps(num_tokens, self._max_context)
        kernels.open_automaton(self._arena.array, self.slots[slot], caps)
        self._order.append(slot)
        self._moved(self, slot)
        return True


def own_tokens(arena: IntArray, base: int, start: int) -> IntArray:
    """Return a copy of an automaton's text from position ``start`` on; barriers are -1."""
    first = base + kernels.HEADER + kernels.PREFIX_ROW * (start + 1)
    stop = base + kernels.HEADER + kernels.PREFIX_ROW * int(arena[base + kernels.NUM_PREFIX])
    return arena[first : stop : kernels.PREFIX_ROW].copy()
