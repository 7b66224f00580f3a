"""Settings of the n-gram drafter."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """Settings of the n-gram drafter.

    Attributes:
        levels: lengths k of the k-grams that are looked up, longest first.
        max_visits: earlier places looked at in each level, the most recent first; where a level
            has as many, the shorter ones look at no more than that either.
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

    levels: tuple[int, ...] = (24, 2, 1)
    max_visits: tuple[int, ...] = (12, 22, 16)
    max_skip_visits: int = 2
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
