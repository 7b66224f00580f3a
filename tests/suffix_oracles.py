"""Plain versions of the suffix pool: contexts are tuples, counts come from scanning the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

BARRIER = -1
FRACTION = 0.125
Context = tuple[int, ...]


def endings(text: Sequence[int], context: Context) -> list[int]:
    """Positions behind each occurrence of ``context``; none of the empty one."""
    size = len(context)
    if size == 0 or BARRIER in context:
        return []
    return [i for i in range(size, len(text) + 1) if tuple(text[i - size : i]) == context]


def continuations(text: Sequence[int], context: Context) -> Counter[int]:
    """How often each token followed ``context``."""
    after = (text[i] for i in endings(text, context) if i < len(text))
    return Counter(token for token in after if token != BARRIER)


def longest_match(
    text: Sequence[int], tail: Sequence[int], max_context: int, least: int
) -> Context:
    """The longest suffix of ``tail`` that occurs at least ``least`` times in ``text``."""
    for size in range(min(max_context, len(tail)), 0, -1):
        context = tuple(tail[len(tail) - size :])
        if len(endings(text, context)) >= least:
            return context
    return ()


def shape_of(count: int, degree: int) -> int:
    """How a context's counts look: went one way 1, 2, 3-4, more times; several ways, by ratio."""
    if degree <= 1:
        return [0, 1, 2, 2, 3][min(count, 5) - 1]
    return 4 + sum(count > limit * degree for limit in (1.5, 3, 8))


class NaiveMixer:
    """The estimate of the tree kernels over plain texts.

    Args:
        texts: the own text, then one a segment.
        trust: the trust table.
        groups: the group of each length.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], trust: np.ndarray, groups: np.ndarray
    ) -> None:
        self.texts = texts
        self.trust = trust
        self.groups = groups
        self.max_context = len(groups) - 1

    def root(self, tail: Sequence[int]) -> list[Context]:
        """The longest match of ``tail`` in each source; the own text holds it once already."""
        return [
            longest_match(text, tail, self.max_context, 2 if source == 0 else 1)
            for source, text in enumerate(self.texts)
        ]

    def ask(self, source: int, context: Context) -> tuple[int, list[tuple[int, float]]]:
        """The shape of a context's counts and its votes, of sum 1 at most; shape -1 where none."""
        text = self.texts[source]
        counts = continuations(text, context)
        places = endings(text, context)
        once = len(places) == 1
        if places[-1:] == [len(text)]:  # nothing followed yet
            places = places[:-1]
        if not counts or not places:
            return -1, []
        if once:
            return 0, [(token, 1.0) for token in counts]
        total = float(len(places))
        votes = [(token, float(count)) for token, count in counts.items()]
        latest = text[places[-1]]
        if latest != BARRIER:
            votes.insert(0, (latest, 1.0))
            total += 1.0
        return shape_of(len(places), len(counts)), [(token, vote / total) for token, vote in votes]

    def shorter(self, source: int, context: Context) -> Context:
        """The longest suffix that occurs in more places."""
        number = len(endings(self.texts[source], context))
        for start in range(1, len(context)):
            if len(endings(self.texts[source], context[start:])) > number:
                return context[start:]
        return ()

    def expand(
        self, contexts: list[Context], floor: float
    ) -> list[tuple[int, float, list[Context]]]:
        """Tokens that may follow, in order of their first vote: token, probability, contexts."""
        contexts = [context[-self.max_context :] for context in contexts]
        probs: dict[int, float] = {}
        places: dict[int, list[Context]] = {}
        mass, later = 1.0, 0
        while mass > floor:
            source = max(range(len(contexts)), key=lambda s: (len(contexts[s]), -s))
            context = contexts[source]
            if not context:
                break
            shape, votes = self.ask(source, context)
            if shape >= 0:
                weight = self.trust[min(source, 1), later, self.groups[len(context)], shape]
                for token, share in votes:
                    if share < 1 and mass * weight * share < floor * FRACTION:
                        continue
                    probs[token] = probs.get(token, 0.0) + mass * weight * share
                    at = places.setdefault(token, [()] * len(contexts))
                    at[source] = at[source] or (*context, token)
                mass *= 1 - weight
                later = 1
            contexts[source] = self.shorter(source, context)
        return [(token, prob, places[token]) for token, prob in probs.items()]

    def tree(
        self, tail: Sequence[int], max_nodes: int, max_depth: int, min_prob: float
    ) -> dict[Context, float]:
        """The path probability of each node of the best tree, by the path's tokens."""
        nodes: dict[Context, float] = {}
        waiting: list[tuple[float, Context, list[Context]]] = []
        path: Context = ()
        prob, contexts, cut = 1.0, self.root(tail), min_prob
        while len(nodes) < max_nodes:
            room = max_nodes - len(nodes)
            if len(path) < max_depth and prob > cut:
                for token, share, below in self.expand(contexts, cut / prob):
                    if prob * share >= cut:
                        waiting.append((prob * share, (*path, token), below))
                        cut = self.raised(cut, waiting, room)
            if not waiting:
                break
            best = max(range(len(waiting)), key=lambda i: waiting[i][0])
            prob, path, contexts = waiting.pop(best)
            nodes[path] = prob
            cut = self.raised(cut, waiting, room - 1)
        return nodes

    def raised(
        self, cut: float, waiting: list[tuple[float, Context, list[Context]]], room: int
    ) -> float:
        """The least probability that still matters where only ``room`` more nodes are taken."""
        if not 0 < room <= len(waiting):
            return cut
        return max(cut, sorted((prob for prob, _, _ in waiting), reverse=True)[room - 1])
