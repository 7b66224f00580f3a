"""What does the verifier cost beside the model's own forward on this CPU?

A step is: packing the trees and their mask, the forward, the choice of a token behind each column
and the walk, and the compaction of the cache. Each part is timed inside real steps of
``TreeForward``, on trees of 32 nodes of which a random path is accepted, at batches of 1 and 8 with
ragged contexts; parts are interleaved, as they come in every step. Overhead is the sum of all parts
but the forward, over the forward.

    OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 python benchmarks/verifier_overhead.py MODEL_FOLDER
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from freedraft import CandidateTree
from freedraft.verifier import TreeForward, walk
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path


class Clock:
    """Seconds of each part of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)


class TimedModel:
    """Wraps a model's forward, so that the rest of ``TreeForward.forward`` can be told apart."""

    def __init__(self, model: PreTrainedModel, clock: Clock) -> None:
        self.model = model
        self.clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, **inputs: Any) -> Any:
        with self.clock.part("forward"):
            return self.model(**inputs)


def random_tree(rng: random.Random, num_nodes: int, vocab_size: int) -> CandidateTree:
    """Return a tree of distinct tokens, about as deep as drafters make them."""
    parents = [rng.randint(max(-1, node - 4), node - 1) for node in range(num_nodes)]
    return CandidateTree.from_arrays(rng.sample(range(vocab_size), num_nodes), parents)


def planted(tree: CandidateTree, choices: list[int], rng: random.Random) -> list[int]:
    """Return choices that agree with a random path, so that the walk and the cache have work."""
    planted_choices = list(choices)
    for node in tree.path(rng.randrange(tree.num_nodes)):
        planted_choices[int(tree.parents[node]) + 1] = int(tree.token_ids[node])
    return planted_choices


def accept(tree: CandidateTree, choices: list[int]) -> list[int]:
    """Walk as the decode loop does for greedy rows."""
    return walk(tree, lambda node: choices[node + 1], lambda token, node: True).accepted


def measure(
    model: PreTrainedModel, batch_size: int, num_nodes: int, context: int, steps: int
) -> dict[str, Any]:
    """Return the medians of each part, in ms, and the overhead in per cent of the forward."""
    rng = random.Random(batch_size)
    vocab_size: int = model.config.vocab_size
    clock = Clock()
    timed: Any = TimedModel(model, clock)
    target = TreeForward(model, capacity=context + (steps + 2) * 12 + num_nodes + 1)
    lengths = [context - 17 * row for row in range(batch_size)]
    target.prefill([[rng.randrange(vocab_size) for _ in range(length)] for length in lengths])
    target._call = timed
    kept_lengths = []
    for step in range(steps + 1):
        trees = [random_tree(rng, num_nodes, vocab_size) for _ in range(batch_size)]
        roots = [rng.randrange(vocab_size) for _ in range(batch_size)]
        if step == 1:
            clock.seconds.clear()  # the first step warms up
        begin = time.perf_counter()
        logits: Tensor = target.forward(target.fit(trees), roots)
        whole = time.perf_counter() - begin
        clock.seconds.setdefault("pack_and_mask", []).append(whole - clock.seconds["forward"][-1])
        with clock.part("choice"):
            choices = logits.argmax(-1).tolist()
        wanted = [planted(t, c, rng) for t, c in zip(trees, choices, strict=True)]
        with clock.part("walk"):
            accepted = [accept(t, c) for t, c in zip(trees, wanted, strict=True)]
        with clock.part("compaction"):
            target.commit(accepted)
        kept_lengths += [len(path) for path in accepted]
    seconds = {name: statistics.median(values) for name, values in clock.seconds.items()}
    overhead = sum(value for name, value in seconds.items() if name != "forward")
    return {
        "batch_size": batch_size,
        "median_ms": {name: round(value * 1e3, 3) for name, value in seconds.items()},
        "p90_ms": {
            name: round(float(np.quantile(values, 0.9)) * 1e3, 3)
            for name, values in clock.seconds.items()
        },
        "mean_accepted": round(statistics.mean(kept_lengths), 2),
        "overhead_percent": round(100 * overhead / seconds["forward"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a transformers causal language model")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--fast-path", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    if arguments.fast_path:
        enable_cpu_fast_path(model, allow_extra_memory=True)
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": {"cores": os.cpu_count(), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "model": Path(arguments.model).name,
        "threads": arguments.threads,
        "fast_path": arguments.fast_path,
        "nodes": arguments.nodes,
        "context": arguments.context,
        "rows": [],
    }
    with torch.no_grad():
        for batch_size in arguments.batch_sizes:
            row = measure(model, batch_size, arguments.nodes, arguments.context, arguments.steps)
            results["rows"].append(row)
            print(json.dumps(row), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
