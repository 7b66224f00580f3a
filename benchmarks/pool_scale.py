"""What does a step cost when more and more tokens are cached, and where does it bend?

    FOLDER/bin/python benchmarks/pool_scale.py TRACES.jsonl... --tokenizer MODEL --out OUT.json

FOLDER is what ``rivals.sh`` made. The cached text is cut from the first two thirds of the traces'
requests: spans of 64 tokens in random order, one token in ten replaced by another, so that it
repeats itself in part, as traffic does, up to any length. At each size the last third of the
requests is walked with 16 nodes: median and 99th percentile of propose + extend, in processor time
and wall time. ``--plot`` draws the medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numba
import numpy as np
import numpy.typing as npt
import rivals
from pool_upkeep import Clock, resident_bytes
from step_latency import ArcticSubject, Subject
from transformers import AutoTokenizer

from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.snapshot import write_snapshot
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter
from freedraft.drafters.suffix.drafter import SNAPSHOT_KIND
from freedraft.workbench.traces import TokenTrace, read_traces, tokenize_traces

IntArray = npt.NDArray[np.int32]

SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
MOST = {"ngram": 100_000_000, "suffix": 30_000_000, "arctic-64-tree": 3_000_000}
"""Where a subject's memory or its time to fill ends the series."""
SPAN = 64
TEXT = 1 << 14
"""Tokens of a cached response."""
STEPS = 600


def cached_texts(source: IntArray, num_tokens: int, done: int) -> Iterator[IntArray]:
    """Yield responses, the same ones in every run, from token ``done`` up to ``num_tokens``."""
    while done < num_tokens:
        size = min(TEXT, num_tokens - done)
        draw = np.random.default_rng(done)
        starts = draw.integers(0, source.size - SPAN, size // SPAN + 1)
        text = source[(starts[:, None] + np.arange(SPAN)).ravel()[:size]]
        changed = draw.integers(0, size, size // 10)
        text[changed] = source[draw.integers(0, source.size, changed.size)]
        yield text
        done += size


def fill(subject: Subject, source: IntArray, num_tokens: int, done: int) -> None:
    """Cache texts up to ``num_tokens``."""
    texts = cached_texts(source, num_tokens, done)
    if subject.name == "suffix":  # in one go, as a restarted server does
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pool"
            write_snapshot(path, SNAPSHOT_KIND, {"tokens": np.concatenate(list(texts))}, {})
            subject.drafter.load(path)
        return
    for number, text in enumerate(texts):
        name = ("cached", done, number)
        subject.drafter.start(name, text[:1])
        subject.drafter.extend(name, text[1:])
        subject.drafter.stop(name)


def walk(subject: Subject, traces: Sequence[TokenTrace], first: int) -> None:
    """Walk requests until ``STEPS`` steps are timed."""
    subject.propose_clock, subject.extend_clock = Clock(), Clock()
    for number, trace in enumerate(traces):
        request = first + number
        subject.start(request, trace.prompt_ids, trace.response_ids)
        subject.settle(trace.prompt_ids.size)
        while subject.runs(request) and len(subject.propose_clock.wall) < STEPS:
            subject.step()
        subject.stop(request)


def make(name: str) -> Subject:
    """Return a subject with room for its largest size and the walks."""
    if name == "ngram":
        return Subject(name, NgramDrafter(NgramConfig(capacity=(1 << 27) - (1 << 20))))
    if name == "suffix":
        config = SuffixConfig(max_bytes=(1 << 33) - 4096, max_namespace_bytes=7 << 30)
        return Subject(name, SuffixDrafter(config))
    return ArcticSubject(name)


def measure(
    name: str, source: IntArray, traces: Sequence[TokenTrace], most: int
) -> list[dict[str, Any]]:
    """Fill a subject step by step and walk at each size."""
    gc.collect()  # the subject before this one
    before = resident_bytes()
    subject = make(name)
    done, rows = 0, []
    for number, size in enumerate(size for size in SIZES if size <= min(most, MOST[name])):
        fill(subject, source, size, done)
        done = size
        for repeat in range(2):  # the first one brings the text into the caches
            walk(subject, traces, 1_000 * (2 * number + repeat))
        row = {
            "subject": name,
            "cached_tokens": size,
            "resident_bytes_per_token": round((resident_bytes() - before) / size, 1),
            **subject.report(1),
        }
        rows.append(row)
        step = row["step"]
        print(
            f"{name:15} {size:11,} tokens: processor {step['processor_us']['p50']:7.1f} p99 "
            f"{step['processor_us']['p99']:8.1f}, wall {step['wall_us']['p50']:7.1f} us a step, "
            f"{row['resident_bytes_per_token']} bytes a token",
            flush=True,
        )
    return rows


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the medians over the cached tokens."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for name in dict.fromkeys(row["subject"] for row in rows):
        own = [row for row in rows if row["subject"] == name]
        axes.plot(
            [row["cached_tokens"] for row in own],
            [row["step"]["processor_us"]["p50"] for row in own],
            marker="o",
            label=name,
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cached tokens")
    axes.set_ylabel("propose + extend, median us a step (processor)")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, write and draw the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    encode = partial(tokenizer.encode, add_special_tokens=False, verbose=False)
    first: list[IntArray] = []
    last: list[TokenTrace] = []
    for path in options.traces:
        traces = list(tokenize_traces(read_traces(path), encode))
        cut = 2 * len(traces) // 3
        first += [trace.response_ids for trace in traces[:cut]]
        last += traces[cut:]
    rows: list[dict[str, Any]] = []
    names = ["ngram", "suffix", *(name for name in MOST if name in rivals.available())]
    load_before = os.getloadavg()[0]
    for name in names:
        rows += measure(name, np.concatenate(first), last, options.most)
        result = {
            "question": "microseconds a step of drafting over the number of cached tokens",
            "max_nodes": 16,
            "python": platform.python_version(),
            "numba": numba.__version__,
            "numpy": np.__version__,
            "rivals": rivals.available(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared: other programs ran",
            "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
            "results": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
