"""The n-gram drafter: what followed at the earlier places where the last tokens stood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from . import _ngram_kernels as pool
from . import _ngram_tree_kernels as kernels
from .base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget
from .tree import CandidateTree, IntArray


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Settings of :class:`NgramDrafter`.

    Attributes:
        levels: lengths k of the k-grams that are looked up, longest first, at most eight.
        max_match: how many tokens of the tail are compared, to rank the places.
        max_visits: places looked at in a level, most recent first.
        max_places: places whose continuations are merged.
        capacity: tokens kept, of running and of finished requests together.
        page_size: tokens in a page, a power of two. A request holds whole pages.
        search_earlier: whether a request also looks at others of its namespace.
    """

    levels: tuple[int, ...] = (8, 4, 2, 1)
    max_match: int = 32
    max_visits: int = 16
    max_places: int = 64
    capacity: int = 1 << 22
    page_size: int = 128
    search_earlier: bool = True

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
        for name in ("max_visits", "max_places"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")
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
        pool.compile_kernels()
        kernels.compile_kernels()
        self._arena, self._rows = _new_arena(self.config)
        self._limits = np.array(
            [self.config.max_match, self.config.max_visits, self.config.max_places], np.int64
        )
        self._row_of: dict[RequestId, int] = {}
        self._free_rows = list(range(len(self._rows)))[::-1]
        self._namespaces: dict[str, int] = {}
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
            return  # more requests than pages: this one goes without drafts
        row = self._free_rows.pop()
        self._row_of[request_id] = row
        self._serial = self._serial % 0x7FFFFFFF + 1
        if self.config.search_earlier:
            space = self._namespaces.setdefault(namespace, len(self._namespaces))
        else:
            space = self._serial
        self._rows[row, : pool.LENGTH + 1] = (space, self._serial, pool.NONE, pool.NONE, 0)
        pool.append(self._arena, row, prompt)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        row = self._row_of.get(request_id)
        if row is not None:
            pool.append(self._arena, row, as_token_ids(token_ids))

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        batch = len(request_ids)
        if batch == 0 or max_nodes == 0 or max_depth == 0:
            return [CandidateTree.empty()] * batch
        rows = np.array([self._row_of.get(r, pool.NONE) for r in request_ids], np.int32)
        nodes = np.empty((batch, 2, max_nodes), np.int32)
        probs = np.empty((batch, max_nodes), np.float32)
        counts = np.empty(batch, np.int32)
        kernels.propose(self._arena, rows, self._limits, max_depth, nodes, probs, counts)
        return [
            CandidateTree(nodes[i, 0, :n], nodes[i, 1, :n], probs[i, :n])
            for i, n in enumerate(counts.tolist())
        ]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the committed tokens, which ``extend`` brings, say all that is used."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: ``length`` is negative.
        """
        if length < 0:
            raise ValueError(f"expected length >= 0, got {length}")
        row = self._row_of.get(request_id)
        if row is not None:
            pool.truncate(self._arena, row, length)

    def stop(self, request_id: RequestId) -> None:
        """End the request; its text stays searchable in its namespace until reclaimed."""
        row = self._row_of.pop(request_id, None)
        if row is not None:
            pool.release(self._arena, row)
            self._free_rows.append(row)


def _new_arena(config: NgramConfig) -> tuple[IntArray, IntArray]:
    """Return the arena of a config, and the view of its requests' rows."""
    num_pages = config.capacity // config.page_size
    num_slots = num_pages * config.page_size
    num_levels = len(config.levels)
    bucket_bits = max(4, (num_slots - 1).bit_length() - 1)  # one bucket for one to two tokens
    rows_start = (
        pool.HEADER_SIZE
        + num_slots * (1 + num_levels)
        + (num_levels << bucket_bits)
        + num_pages * pool.PAGE_FIELDS
    )
    # Zeros come from the system untouched: what is never used takes no memory.
    arena = np.zeros(rows_start + num_pages * pool.ROW_FIELDS, np.int32)
    page_bits = config.page_size.bit_length() - 1
    arena[pool.NUM_PAGES] = num_pages
    arena[pool.PAGE_BITS] = page_bits
    arena[pool.SLOT_BITS] = page_bits + (num_pages - 1).bit_length()
    arena[pool.BUCKET_BITS] = bucket_bits
    arena[pool.NUM_LEVELS] = num_levels
    arena[pool.QUEUE_HEAD] = pool.NONE
    arena[pool.QUEUE_TAIL] = pool.NONE
    arena[pool.FIRST_LEVEL : pool.FIRST_LEVEL + num_levels] = config.levels
    return arena, arena[rows_start:].reshape(num_pages, pool.ROW_FIELDS)
