"""The n-gram drafter in plain Python: no pages, no chains, no heap. Slow, and easy to believe."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from freedraft.drafters.ngram import NgramConfig
from freedraft.drafters.ngram import _weights as tables

PLAIN, REPLACED, INSERTED = range(3)
GOOD_MATCH, MOST_WEAK, MOST_FULL = 6, 1, 3
Path = tuple[int, ...]


@dataclass(eq=False)
class Text:
    """One request: its tokens, and the clock when each was appended."""

    namespace: str
    prompt_length: int
    tokens: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    expected: tuple[Text, int] | None = None
    anchor: tuple[Text, int] | None = None
    accepted: int = 0
    accepted_before: int = 0
    draft: list[Path] = field(default_factory=list)


@dataclass
class Place:
    """An earlier place: what follows it starts at ``text.tokens[start]``."""

    text: Text
    start: int
    kind: int
    match: int
    weight: float
    vote: npt.NDArray[np.float64]
    """The weight's factor for each match length."""


class PlainNgram:
    """Finds every place by looking everywhere, and gives every path its probability.

    It knows neither a limit of visits and places nor eviction nor truncation. Of the weak places
    beside a good match, and of those that agree as far as is compared, it keeps as many as the
    drafter does.
    """

    def __init__(self, config: NgramConfig) -> None:
        self.config = config
        self.texts: list[Text] = []
        self.running: dict[object, Text] = {}
        self.clock = 0
        model = tables.make_model()

        def table(start: int, *shape: int) -> npt.NDArray[np.float64]:
            return model[start : start + int(np.prod(shape))].reshape(shape)

        self.vote = table(tables.VOTE, tables.KINDS, tables.NEARS, tables.LENGTHS)
        self.rank = table(tables.RANK, tables.REGIONS, tables.RANKS, tables.KINDS)
        self.depth = table(tables.DEPTHS, tables.KINDS, tables.DEPTH_CLASSES)
        self.age = table(tables.AGE, tables.REGIONS, tables.AGES)
        self.distance = table(tables.DISTANCE, tables.DISTANCES)
        self.detour = table(tables.DETOUR, tables.DISTANCES)
        self.escape = table(tables.ESCAPE, tables.DEPTH_CLASSES, tables.LENGTHS)
        self.width = table(tables.WIDTH, tables.WIDTHS)
        self.recent = table(tables.RECENT, 5, 5)

    def start(self, request_id: object, prompt: list[int], namespace: str) -> None:
        text = Text(namespace, len(prompt))
        self.running[request_id] = text
        self.texts.append(text)
        self._append(text, prompt)

    def extend(self, request_id: object, new: list[int]) -> None:
        text = self.running[request_id]
        if text.draft and new:
            hits = [path for path in text.draft if list(path) == new[: len(path)]]
            text.accepted_before = text.accepted
            text.accepted = max(map(len, hits), default=0)
            text.draft = []
        self._append(text, new)

    def stop(self, request_id: object) -> None:
        del self.running[request_id]

    def _append(self, text: Text, new: list[int]) -> None:
        text.tokens += new
        text.times += range(self.clock, self.clock + len(new))
        self.clock += len(new)

    def tail(self, text: Text) -> list[int]:
        """The last tokens, newest first, up to a placeholder."""
        return list(takewhile(lambda t: t >= 0, text.tokens[::-1]))[: self.config.max_match]

    def places(self, text: Text) -> list[Place]:
        """All places of the text's end, in the order in which the drafter finds them."""
        tail = self.tail(text)
        found = []
        longest = weak = 0
        for skip in (0, 1):
            longer_k = len(tail) + 1
            for k in self.config.levels:
                if skip and not 2 <= k <= min(4, len(tail) - 1):
                    continue
                rank, full = -1, 0
                for other, end, match in self._level(text, tail, skip, k, longer_k):
                    full += match == self.config.max_match
                    if full > MOST_FULL:
                        continue
                    longest = longest if skip else max(longest, match)
                    if longest >= GOOD_MATCH and (skip or 2 * match < longest):
                        weak += 1
                        if weak > MOST_WEAK:
                            continue
                    rank += 1
                    for kind in (REPLACED, INSERTED) if skip else (PLAIN,):
                        start = end + 2 if kind == REPLACED else end + 1
                        if start < len(other.tokens) and other.tokens[start] >= 0:
                            near = self._near(other, end, match, tail) if kind == PLAIN else 0
                            found.append(
                                Place(
                                    other,
                                    start,
                                    kind,
                                    match,
                                    self._weight(text, other, start, rank, kind),
                                    self.vote[kind, near],
                                )
                            )
                longer_k = k
        longest = max((p.match for p in found if p.kind == PLAIN), default=0)
        if longest > 3:
            best = next(p for p in found if p.kind == PLAIN and p.match == longest)
            text.expected = (best.text, best.start)
            if longest >= 16:
                text.anchor = text.expected
        return found

    def _level(
        self, text: Text, tail: list[int], skip: int, k: int, longer_k: int
    ) -> list[tuple[Text, int, int]]:
        if len(tail) <= skip:
            return []
        own_end = len(text.tokens) - 1 - skip
        ends = []
        for other in self.texts:
            if other.namespace != text.namespace:
                continue
            for end in range(len(other.tokens)):
                if other.times[end] >= text.times[own_end]:
                    break
                following = other.tokens[end + 1 : end + 2]
                if skip and (not following or following == tail[:1]):
                    continue
                match = common_prefix(other.tokens[end::-1], tail[skip:])
                if k <= match < longer_k:
                    ends.append((other.times[end], other, end, match))
        return [(other, end, match) for _, other, end, match in sorted(ends, reverse=True)]

    def _near(self, other: Text, end: int, match: int, tail: list[int]) -> int:
        if match >= 16:
            return 0
        text_side = other.tokens[: end - match + 1][::-1]
        lengths = [
            common_prefix(text_side, tail[match + 1 :]),
            common_prefix(text_side[1:], tail[match + 1 :]),
            common_prefix(text_side[1:], tail[match:]),
        ]
        return bisect_right((1, 3, 7), max(lengths))

    def _weight(self, text: Text, other: Text, start: int, rank: int, kind: int) -> float:
        page_start = start - start % self.config.page_size
        age = self.clock - other.times[page_start] - start % self.config.page_size
        if other is text:
            age = len(text.tokens) - start
        age_class = next(c for c in range(12) if age >> c <= 8 or c == 11)
        region = 2 * (other is text) + (start >= other.prompt_length)
        return float(
            self.rank[region, bisect_right((1, 2, 4, 8, 16), rank), kind]
            * self.age[region, age_class]
            * self.distance[distance_class(text.expected, other, start)]
            * self.detour[distance_class(text.anchor, other, start)]
        )

    def paths(self, text: Text, max_depth: int) -> tuple[dict[Path, float], int]:
        """The probability of every path that a place reads, and the longest plain match."""
        probs: dict[Path, float] = {}
        recent = self.recent[recent_class(text.accepted), recent_class(text.accepted_before)]

        def visit(path: Path, prob: float, places: list[Place]) -> None:
            depth = len(path)
            if depth == max_depth:
                return
            depth_class = bisect_right((1, 2, 4, 8), depth)
            sums: dict[int, float] = {}
            readers: dict[int, list[Place]] = {}
            longest = 0
            for place in places:
                token = self._read(text, place, depth)
                if token >= 0:
                    match = min(place.match + depth, tables.LENGTHS - 1)
                    vote = place.weight * place.vote[match] * self.depth[place.kind, depth_class]
                    sums[token] = sums.get(token, 0.0) + vote
                    readers.setdefault(token, []).append(place)
                    if place.kind == PLAIN:
                        longest = max(longest, match)
            width = min(len(sums), tables.WIDTHS - 1)
            total = recent * self.escape[depth_class, longest] * self.width[width]
            total += sum(sums.values())
            for token, votes in sums.items():
                probs[(*path, token)] = prob * votes / total
                visit((*path, token), prob * votes / total, readers[token])

        places = self.places(text)
        visit((), 1.0, places)
        return probs, max((p.match for p in places if p.kind == PLAIN), default=0)

    def _read(self, text: Text, place: Place, depth: int) -> int:
        ahead = place.text.tokens[place.start :]
        if place.text is text:  # the own text goes on as its last period did
            return ahead[depth % len(ahead)]
        return ahead[depth] if depth < len(ahead) else -1


def common_prefix(left: list[int], right: list[int]) -> int:
    """How many leading tokens agree."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )


def distance_class(origin: tuple[Text, int] | None, text: Text, start: int) -> int:
    """The class of a signed distance from where the text was expected to go on."""
    if origin is None:
        return 0
    if origin[0] is not text:
        return tables.DISTANCES - 1
    distance = start - origin[1]
    if distance >= 0:
        return 1 + bisect_right((1, 2, 3, 5, 9, 17, 65, 257), distance)
    return 10 + bisect_right((3, 9, 65), -distance)


def recent_class(accepted: int) -> int:
    """The class of an accepted length."""
    return bisect_right((1, 2, 5, 16), accepted)
