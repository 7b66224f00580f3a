"""Tells an engine's requests apart by their text, where the engine does not say their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..drafters.base import as_token_ids
from ..drafters.tree import IntArray

_HEAD = 64  # tokens at a text's start that are compared
_TAIL = 64  # tokens at its known end


@dataclass(slots=True)
class _Known:
    """What is kept of a text: its length, copies of both its ends, and when it was last seen."""

    request_id: int
    head: IntArray  # (up to 64,) int32
    tail: IntArray  # (up to 64,) int32, the last tokens before length
    length: int
    seen_at: int

    def continues_as(self, row: npt.ArrayLike) -> bool:
        """Return whether a row begins with this text, as far as both ends can tell."""
        if len(row) < self.length:  # type: ignore[arg-type]  # match() has checked the rows
            return False
        start = self.length - self.tail.size
        tail = np.asarray(row[start : self.length])  # type: ignore[index]
        head = np.asarray(row[: self.head.size])  # type: ignore[index]
        return bool((tail == self.tail).all()) and bool((head == self.head).all())


class PrefixMatcher:
    """Gives synthetic ids to rows that come without ids, by the text that they continue.

    A row that continues the text of an earlier one keeps its id; among rows of equal text, one
    that stands where it stood before does. Any other row is a new request. A wrong guess costs
    speed only: whoever follows the ids sees a text that changes.
    """

    def __init__(self, max_requests: int = 4096, max_idle: int = 256) -> None:
        """Start without requests.

        Args:
            max_requests: texts that are remembered; the one seen longest ago goes first.
            max_idle: calls that a text may be missing from before it is forgotten.

        Raises:
            ValueError: a limit is below 1.
        """
        if max_requests < 1 or max_idle < 1:
            raise ValueError(
                f"expected max_requests >= 1 and max_idle >= 1, got {max_requests} and {max_idle}"
            )
        self._max_requests = max_requests
        self._max_idle = max_idle
        self._calls = 0
        self._next_id = 0
        self._known: dict[int, _Known] = {}
        self._last_row: list[int] = []  # the id that stood in each row of the last call

    @property
    def request_ids(self) -> list[int]:
        """The ids that are remembered."""
        return list(self._known)

    def match(self, rows: Sequence[npt.ArrayLike]) -> list[int]:
        """Return the id of each row, all of them different.

        Args:
            rows: of each request its tokens so far, ``(num_tokens,)`` integers. They are copied
                where they are kept.

        Raises:
            ValueError: a row is not one-dimensional or not made of integers.
        """
        self._calls += 1
        ids: list[int | None] = [None] * len(rows)
        free = dict(self._known)
        for index, row in enumerate(rows):  # the engine seldom moves a row
            known = free.get(self._last_row[index]) if index < len(self._last_row) else None
            if known is not None and known.continues_as(row):
                ids[index] = known.request_id
                del free[known.request_id]
        for index, row in enumerate(rows):
            if ids[index] is None:
                ids[index] = self._find(row, free)
        found = [self._remember(request_id, row) for request_id, row in zip(ids, rows, strict=True)]
        self._last_row = found
        self._forget_old()
        return found

    def _find(self, row: npt.ArrayLike, free: dict[int, _Known]) -> int | None:
        """Take the longest free text that a row continues."""
        by_length = sorted(free.values(), key=lambda known: -known.length)
        for known in by_length:
            if known.continues_as(row):
                del free[known.request_id]
                return known.request_id
        return None

    def _remember(self, request_id: int | None, row: npt.ArrayLike) -> int:
        if request_id is None:
            request_id = self._next_id
            self._next_id += 1
        length = len(row)  # type: ignore[arg-type]
        head = as_token_ids(row[:_HEAD]).copy()  # type: ignore[index]
        tail = as_token_ids(row[max(0, length - _TAIL) :]).copy()  # type: ignore[index]
        self._known[request_id] = _Known(request_id, head, tail, length, self._calls)
        return request_id

    def _forget_old(self) -> None:
        oldest = self._calls - self._max_idle
        for known in [known for known in self._known.values() if known.seen_at <= oldest]:
            del self._known[known.request_id]
        surplus = len(self._known) - self._max_requests
        if surplus > 0:
            by_age = sorted(self._known.values(), key=lambda known: known.seen_at)
            for known in by_age[:surplus]:
                del self._known[known.request_id]
