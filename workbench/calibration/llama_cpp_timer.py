"""Step times of llama.cpp through llama-cpp-python: one request, a chain of draft tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np


class LlamaCppTimer:
    """Times evaluations of a loaded ``Llama`` behind several contexts.

    The contexts are beginnings of one text, so that one cache serves them all.
    """

    def __init__(self, llama: Any) -> None:
        """Take the engine.

        Args:
            llama: a ``llama_cpp.Llama`` made with ``logits_all=True``.
        """
        self._llama = llama
        self._tokens: list[int] = (
            np.random.default_rng(0).integers(0, int(llama.n_vocab()), int(llama.n_ctx())).tolist()
        )
        llama.reset()

    def prepare(self, context: int, batch: int) -> Callable[[int], float]:
        """Fill the cache up to ``context``; see :class:`~.measure.StepTimer`.

        Raises:
            ValueError: more than one request, or a context beyond the engine's.
        """
        if batch != 1:
            raise ValueError(f"expected batches of 1 with llama.cpp, got {batch}")
        if context >= len(self._tokens):
            raise ValueError(
                f"expected contexts below the engine's {len(self._tokens)} tokens, got {context}"
            )
        if self._llama.n_tokens < context:
            self._llama.eval(self._tokens[self._llama.n_tokens : context])
        return lambda nodes: self._step(context, nodes)

    def _step(self, context: int, nodes: int) -> float:
        # The engine drops what lies behind n_tokens at the next evaluation, so longer contexts
        # are filled again before they are timed.
        llama = self._llama
        if llama.n_tokens < context:
            llama.eval(self._tokens[llama.n_tokens : context])
        llama.n_tokens = context
        begin = time.perf_counter()
        llama.eval(self._tokens[context : context + nodes + 1])
        return time.perf_counter() - begin
