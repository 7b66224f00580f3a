"""Look-ahead decoding in plain Python: no tree, no merging, one model call for each guess."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class PlainLookahead:
    """The window and the pool of one text, as the algorithm says.

    Attributes:
        levels: rows of guesses, each of the window's width.
        pool: for each token the n-grams that began with it, the newest first.
        harvested: all n-grams that came out of the window, in order.
    """

    def __init__(
        self,
        choose: Callable[[Sequence[int]], int],
        prompt: Sequence[int],
        window_size: int,
        ngram_size: int,
        guess_set_size: int,
    ) -> None:
        self._choose = choose
        self._text = list(prompt)
        self._window_size = window_size
        self._ngram_size = ngram_size
        self._guess_set_size = guess_set_size
        self._state = 0
        self._ages: list[int] = []
        self.levels: list[list[int]] = []
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        self.harvested: list[tuple[int, ...]] = []
        self._store_text(0)

    def step(self, emitted: Sequence[int], max_depth: int) -> None:
        """Correct every guess that may be asked about, and move on with the emitted tokens."""
        self._fill()
        num_asked = max(0, min(self._window_size, max_depth - len(self.levels) + 1))
        columns = []
        for column in range(num_asked):
            history = [row[column] for row in self.levels]
            path = [*self.levels[0][:column], *history]
            columns.append([*history, self._choose([*self._text, *path])])
        self._ages = [age + 1 for age in self._ages[:num_asked]] if num_asked else self._ages
        shift = len(emitted)
        if columns and len(columns[0]) == self._ngram_size:
            for column, age in zip(columns, self._ages, strict=True):
                if age >= self._ngram_size - 1:  # none of its tokens but the first is a guess
                    self.harvested.append(tuple(column))
                    self._store(tuple(column))
            columns = [column[1:] for column in columns]
            shift -= 1
        if columns:
            self.levels = [list(row) for row in zip(*columns, strict=True)]
        self.levels = [row[shift:] for row in self.levels]
        self._ages = self._ages[shift:]
        self.commit(emitted)

    def commit(self, emitted: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._text += emitted
        self._store_text(max(0, len(self._text) - len(emitted) - self._ngram_size + 1))

    def _fill(self) -> None:
        rows = self.levels or [[]]
        missing = self._window_size - len(rows[0])
        self.levels = [row + [self._guess() for _ in range(missing)] for row in rows]
        self._ages += [0] * missing

    def _guess(self) -> int:
        self._state = (self._state * 1103515245 + 12345) % 2**31
        recent = self._text[-256:]
        return recent[(self._state // 256) % len(recent)]

    def _store(self, ngram: tuple[int, ...]) -> None:
        others = [known for known in self.pool.get(ngram[0], []) if known != ngram]
        self.pool[ngram[0]] = [ngram, *others][: self._guess_set_size]

    def _store_text(self, start: int) -> None:
        for at in range(start, len(self._text) - self._ngram_size + 1):
            self._store(tuple(self._text[at : at + self._ngram_size]))
