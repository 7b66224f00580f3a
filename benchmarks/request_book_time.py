"""What does a step cost an engine's worker, with many long requests at once?

The adapter's part without the engine: `RequestBook` with the drafter and the budget that an engine
gets by default, 64 requests of 32,768 tokens that all begin in one step, as prefix caching lets
them. The text is this repository's, a token a word; the output copies it with some words replaced.
Three figures, in milliseconds of the thread's CPU time, which other work on the machine disturbs
less than the clock: the step that takes the prompts in, the steps while their slices are indexed,
and the steps once all is indexed.

    python benchmarks/request_book_time.py --json benchmarks/results/request_book_time.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from freedraft.integrations.engine_config import (
    EngineConfig,
    create_engine_budget,
    create_engine_drafter,
)
from freedraft.integrations.request_book import RequestBook

ROOT = Path(__file__).parents[1]
VOCAB_SIZE = 49152
REPLACED = 0.08  # share of the output's tokens that the text does not hold
MAX_TOKENS = 16
OUTPUT = 4096
SLICE = 2048  # tokens of prompts that a step indexes
PLAIN_SECONDS, SECONDS_A_TOKEN = 0.05, 0.0025  # of the engine's step, for the budget


def read_words(num_tokens: int) -> npt.NDArray[np.int32]:
    """Return that many words of this repository's Python files as ids, over again if need be."""
    ids: dict[str, int] = {}
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        for path in sorted(ROOT.glob("*/*.py")):
            words = re.findall(r"\w+|\s+|.", path.read_text(encoding="utf-8"))
            tokens += [ids.setdefault(word, len(ids)) % VOCAB_SIZE for word in words]
    return np.array(tokens[:num_tokens], np.int32)


def make_texts(batch: int, context: int) -> npt.NDArray[np.int32]:
    """Return ``(batch, context + OUTPUT)`` int32: a shared prompt, its own end, its own output."""
    words = read_words(context + OUTPUT + 64 * batch)
    random = np.random.default_rng(0)
    texts = np.empty((batch, context + OUTPUT), np.int32)
    for row, text in enumerate(texts):
        text[: context - 64] = words[: context - 64]
        text[context - 64 :] = words[64 * row : 64 * row + 64 + OUTPUT]
        replaced = context + np.flatnonzero(random.random(OUTPUT) < REPLACED)
        text[replaced] = random.integers(0, VOCAB_SIZE, replaced.size)
    return texts


class Engine:
    """Plays the engine: commits what the texts say, as far as the drafts came true."""

    def __init__(self, config: EngineConfig, batch: int, context: int) -> None:
        """Begin with nothing but the prompts and one token of each request."""
        self._budget = create_engine_budget(config)
        self.book = RequestBook(create_engine_drafter(config), VOCAB_SIZE, budget=self._budget)
        self._context = context
        self._texts = make_texts(batch, context)
        self._sizes = [context + 1] * batch

    def take_in(self, row: int) -> None:
        """Have one request's prompt indexed to its end, as if the others came later."""
        self.book.sync(row, self._texts[row, : self._sizes[row]], "", self._context)
        for _ in range(2 + self._context // SLICE):
            self.book.propose_chains([row], [1])

    def step(self) -> float:
        """Return the milliseconds of one step's bookkeeping and drafting."""
        rows = range(len(self._sizes))
        started_at = time.thread_time()
        for row in rows:
            self.book.sync(row, self._texts[row, : self._sizes[row]], "", self._context)
        chains = self.book.propose_chains(list(rows), [MAX_TOKENS] * len(rows))
        milliseconds = 1000 * (time.thread_time() - started_at)
        for row, chain in enumerate(chains):
            following = self._texts[row, self._sizes[row] :].tolist()
            agrees = [a == b for a, b in zip(chain, following, strict=False)]
            self._sizes[row] += 1 + (agrees.index(False) if False in agrees else len(agrees))
        if self._budget is not None:
            num_drafted = sum(map(len, chains))
            seconds = PLAIN_SECONDS + SECONDS_A_TOKEN * num_drafted / len(rows)
            self._budget.record_step(len(rows), num_drafted, seconds)
        return milliseconds


def summarize(steps: list[float]) -> dict[str, float]:
    """Return median, 90th percentile and maximum."""
    ordered = sorted(steps)
    return {
        "median_ms": round(statistics.median(ordered), 2),
        "p90_ms": round(ordered[int(0.9 * len(ordered))], 2),
        "max_ms": round(ordered[-1], 2),
    }


def measure(config: EngineConfig, batch: int, context: int, num_steps: int) -> dict[str, Any]:
    """Return the times of one configuration."""
    warm = Engine(config, 1, context)  # kernels are loaded, and pages of the pool touched
    warm.step()
    waiting = Engine(config, batch, context)
    first = waiting.step()
    indexing = [waiting.step() for _ in range(num_steps)]
    del waiting
    settled = Engine(config, batch, context)
    for row in range(batch):
        settled.take_in(row)
    settled_steps = [settled.step() for _ in range(num_steps)]
    counts = settled.book.statistics
    return {
        "first_ms": round(first, 2),
        "indexing": summarize(indexing),
        "settled": summarize(settled_steps),
        "settled_tokens_per_step": round(counts.emitted / counts.steps, 2),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sizes = (arguments.batch, arguments.context, arguments.steps)
    report: dict[str, Any] = {"batch": sizes[0], "context": sizes[1], "cases": {}}
    for budget in ("measured", "full"):
        report["cases"][budget] = measure(EngineConfig(budget=budget), *sizes)
        print(budget, report["cases"][budget], flush=True)
    report["versions"] = {name: version(name) for name in ("numpy", "numba")}
    report["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    report["date"] = time.strftime("%Y-%m-%d")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
