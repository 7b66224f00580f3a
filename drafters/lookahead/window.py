"""The look-ahead window: rows of guesses about the text to come, made better in each step.

Row 0 guesses the next ``width`` tokens. Below each guess hangs, level by level, what the target
said one step after the other: the token of level r + 1 is the target's choice after the path of row
0 up to the column and then down the column to level r. So a column always spells a piece of text
as the target would write it there, and when it is ``ngram_size - 1`` levels deep, it and the next
choice are an n-gram for the pool.

The window is a tree under the last committed token, and its nodes can be verified with any others.
Where a node of the same path is there already, it serves.

Source: Fu et al., arXiv:2402.02057 (look-ahead decoding).
"""

from __future__ import annotations

import numpy as np

from ..tree import ROOT, CandidateTree, IntArray


class Window:
    """The guesses of one request.

    Attributes:
        levels: ``(num_levels, width)`` int32, row 0 first; no levels before the first guesses.
    """

    def __init__(self, ngram_size: int, seed: int) -> None:
        """Begin without guesses.

        Args:
            ngram_size: tokens of an n-gram, at least 2.
            seed: of the places in the text that the first guesses are taken from.
        """
        self.levels: IntArray = np.zeros((0, 0), np.int32)
        self._choices = np.zeros(0, np.int64)  # (width,) how many of the target's each column got
        self._max_levels = ngram_size - 1
        self._state = seed & 0x7FFFFFFF

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.levels.shape[1])

    def resize(self, width: int, text: IntArray) -> None:
        """Drop columns on the right, or add some with guesses from the text.

        Args:
            width: columns wanted.
            text: ``(length,)`` int32, at least one token; none of them negative.
        """
        if len(self.levels) == 0:
            self.levels = np.zeros((1, 0), np.int32)
        missing = width - self.width
        if missing <= 0:
            self._keep(slice(width))
            return
        # A new column has no history: all its levels are guesses, which further steps push out;
        # what comes out until then is no n-gram of the target's.
        fresh = [[self._guess(text) for _ in range(missing)] for _ in range(len(self.levels))]
        self.levels = np.hstack((self.levels, np.array(fresh, np.int32)))
        self._choices = np.concatenate((self._choices, np.zeros(missing, np.int64)))

    def columns_within(self, max_depth: int) -> int:
        """Return how many columns reach no deeper than ``max_depth``."""
        return max(0, min(self.width, max_depth - len(self.levels) + 1))

    def add_to(
        self, tree: CandidateTree, num_columns: int, max_nodes: int
    ) -> tuple[CandidateTree, IntArray]:
        """Put the first columns behind a tree's nodes, as far as there is room for whole columns.

        Args:
            tree: without ``draft_probs``.
            num_columns: how many at most.
            max_nodes: most nodes of the result.

        Returns:
            The tree, in which what was added has probability 0, and ``(num_levels, num_added)``
            int32, the node of each guess.
        """
        tokens, parents = tree.token_ids.tolist(), tree.parents.tolist()
        node_of = {edge: node for node, edge in enumerate(zip(parents, tokens, strict=True))}
        nodes: list[list[int]] = []
        tip, size = ROOT, len(tokens)
        for column in range(num_columns):
            above, path = tip, []
            for token in self.levels[:, column].tolist():
                node = node_of.get((above, token))
                if node is None:
                    node = node_of[above, token] = len(tokens)
                    tokens.append(token)
                    parents.append(above)
                path.append(node)
                above = node
            if len(tokens) > max_nodes:
                break
            nodes.append(path)
            tip, size = path[0], len(tokens)
        added = CandidateTree(
            np.array(tokens[:size], np.int32),
            np.array(parents[:size], np.int32),
            np.concatenate((tree.probs, np.zeros(size - tree.num_nodes, np.float32))),
        )
        return added, np.array(nodes, np.int32).reshape(-1, len(self.levels)).T

    def advance(self, choices: IntArray, num_emitted: int) -> IntArray:
        """Take in what the target said below the window's columns, and move on with the text.

        Columns beyond those that were asked are dropped: their paths are about to be outdated.

        Args:
            choices: ``(num_columns,)`` int32, the target's choice after each column's last level.
            num_emitted: tokens that the step committed, at least 1.

        Returns:
            ``(num_ngrams, ngram_size)`` int32, the n-grams that came out.
        """
        self._keep(slice(choices.size))
        self._choices = self._choices + 1
        self.levels = np.vstack((self.levels, choices[None]))
        harvest = np.zeros((0, self._max_levels + 1), np.int32)
        shift = num_emitted
        if len(self.levels) > self._max_levels:
            harvest = np.ascontiguousarray(self.levels.T[self._choices >= self._max_levels])
            self.levels = self.levels[1:]
            shift -= 1  # for what was level 1 of a column stands one token further
        self._keep(slice(shift, None))
        return harvest

    def skip(self, num_emitted: int) -> None:
        """Move on with a text of which nothing was asked: what it has overtaken is dropped."""
        self._keep(slice(num_emitted, None))

    def _keep(self, columns: slice) -> None:
        self.levels = np.ascontiguousarray(self.levels[:, columns])
        self._choices = self._choices[columns]

    def _guess(self, text: IntArray) -> int:
        self._state = (self._state * 1103515245 + 12345) & 0x7FFFFFFF
        return int(text[(self._state >> 8) % text.size])
