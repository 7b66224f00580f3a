"""The successor table and its tree in plain Python: dictionaries, no hashing, no heap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freedraft.drafters.recycling import _table_kernels as kernels

Path = tuple[int, ...]


class PlainTable:
    """Successors and their probabilities by context, contexts as tuples in reading order."""

    def __init__(self, num_successors: int) -> None:
        self.num_successors = num_successors
        self.rows: dict[Path, list[tuple[int, float]]] = {}

    def record(
        self,
        text: Sequence[int],
        tokens: Sequence[int],
        parents: Sequence[int],
        top_ids: Sequence[Sequence[int]],
        top_probs: Sequence[Sequence[float]],
    ) -> None:
        """Store the target's most likely tokens after the root and after each node."""
        paths: list[Path] = [tuple(text[-3:])]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*paths[parent + 1], token))
        for path, ids, probs in zip(paths, top_ids, top_probs, strict=True):
            if ids[0] >= 0:
                row = list(zip(ids, probs, strict=True))[: self.num_successors]
                for context in contexts_of(path):
                    self.rows[context] = row

    def record_text(self, text: Sequence[int], first: int) -> None:
        """Enter a text's successors behind what is known."""
        for i in range(first, len(text)):
            if text[i] < 0:
                continue
            for context in contexts_of(text[:i]):
                row = list(self.rows.get(context, []))
                if text[i] not in [token for token, _ in row]:
                    del row[self.num_successors - 1 :]
                    row.append((text[i], 0.5 ** (len(row) + 1)))
                self.rows[context] = row

    def successors(self, path: Sequence[int]) -> tuple[dict[int, float], int]:
        """Return the mixed distribution, and the longest context known."""
        known = [context for context in contexts_of(path) if context in self.rows]
        longest = max(map(len, known), default=0)
        mixed: dict[int, float] = {}
        for context in known:
            weight = float(kernels._WEIGHTS[longest - 1, len(context) - 1])
            for token, prob in self.rows[context]:
                mixed[token] = mixed.get(token, 0.0) + weight * prob
        return mixed, longest

    def paths(
        self, text: Sequence[int], runners: Sequence[tuple[int, float]], max_depth: int
    ) -> dict[Path, float]:
        """Return the probability of every path of at most that depth."""
        found: dict[Path, float] = {}
        frontier: list[Path] = [()]
        while frontier:
            path = frontier.pop()
            mixed, longest = self.successors([*text, *path])
            if not path:
                for token, prob in runners:
                    share = float(kernels._RUNNER_WEIGHTS[longest]) * prob
                    mixed[token] = mixed.get(token, 0.0) + share
            for token, chance in mixed.items():
                longer = (*path, token)
                found[longer] = found.get(path, 1.0) * min(chance, 1.0)
                if len(longer) < max_depth:
                    frontier.append(longer)
        return found


def contexts_of(path: Sequence[int]) -> list[Path]:
    """Return the last one, two and three tokens, as far as none of them is unknown."""
    contexts: list[Path] = []
    for length in range(1, 4):
        context = tuple(path[-length:]) if len(path) >= length else ()
        if not context or min(context) < 0:
            break
        contexts.append(context)
    return contexts


def random_top(
    rng: np.random.Generator, num_rows: int, num_top: int, vocab_size: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Return distinct most likely tokens of each row, and falling probabilities."""
    ids = [rng.permutation(vocab_size)[:num_top].tolist() for _ in range(num_rows)]
    probs = []
    for _ in range(num_rows):
        row = np.sort(rng.dirichlet(np.full(num_top, 0.5)))[::-1] * rng.uniform(0.5, 1)
        probs.append(row.astype(np.float32).tolist())
    return ids, probs
