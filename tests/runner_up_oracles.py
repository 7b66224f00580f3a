"""Plain versions of looking up a text with one more token behind it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ngram_oracles import PLAIN, Place, PlainNgram, Text, common_prefix
from suffix_oracles import Context, NaiveMixer, longest_match

from freedraft.drafters.ngram import NgramConfig


class PlainNgramAfter(PlainNgram):
    """Finds the places of the tail with ``next_id`` behind it by looking everywhere."""

    def __init__(self, config: NgramConfig) -> None:
        super().__init__(config)
        self.next_id = 0

    def places(self, text: Text) -> list[Place]:
        """All plain places; a weight says where a place lies, and nothing of the text's way."""
        tail = [self.next_id, *self.tail(text)][: self.config.max_match]
        found, longer_k = [], len(tail) + 1
        for k in self.config.levels:
            if k > len(tail):
                continue
            ends = []
            for other in self.texts:
                if other.namespace == text.namespace:
                    for end in range(len(other.tokens) - 1):
                        match = common_prefix(other.tokens[end::-1], tail)
                        if k <= match < longer_k and other.tokens[end + 1] >= 0:
                            ends.append((other.times[end], other, end + 1, match))
            for rank, (_, other, start, match) in enumerate(sorted(ends, reverse=True)):
                weight = self._weight_after(text, other, start, rank)
                found.append(Place(other, start, PLAIN, match, weight, self.vote[PLAIN, 0]))
            longer_k = k
        return found

    def _weight_after(self, text: Text, other: Text, start: int, rank: int) -> float:
        page_start = start - start % self.config.page_size
        age = self.clock + 1 - other.times[page_start] - start % self.config.page_size
        if other is text:
            age = len(text.tokens) + 1 - start
        age_class = next(c for c in range(12) if age >> c <= 8 or c == 11)
        region = 2 * (other is text) + (start >= other.prompt_length)
        rank_class = bisect_right((1, 2, 4, 8, 16), rank)
        return float(self.rank[region, rank_class, PLAIN] * self.age[region, age_class])


class NaiveMixerAfter(NaiveMixer):
    """The suffix drafter's estimate behind a tail that the own text does not end with."""

    def root(self, tail: Sequence[int]) -> list[Context]:
        """The longest match of ``tail`` in each source."""
        return [longest_match(text, tail, self.max_context, 1) for text in self.texts]
