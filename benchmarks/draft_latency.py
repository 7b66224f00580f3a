"""What does drafting cost a step, by context length, batch and trace file, beside Arctic?

    python benchmarks/draft_latency.py TOKENIZER TRACE.jsonl... --out RESULT.json [--rival FOLDER]

Propose + extend, microseconds a step, each drafter walking its own accepted path at 16 nodes:

- on every trace file, requests in order, caches kept;
- at contexts of 1k to 128k tokens (the first file's texts one behind the other), batch 1;
- for batches of 1, 8 and 64 requests, a request's share.

The drafters take turns, request by request, each in its own process: Arctic Inference 0.3.0 lives
in an environment that the script makes in FOLDER (kept between runs).
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

MAX_NODES = 16
CONTEXTS = (1_000, 8_000, 32_000, 128_000)
BATCHES = (1, 8, 64)
STEPS_A_CONTEXT = 400
RIVAL = "arctic-inference==0.3.0"
DRAFTERS = ("ngram", "arctic tree d64 f4", "arctic path d24")
Chains = dict[int, dict[int, int]]


class Timed(Protocol):
    """A drafter as the benchmark calls it."""

    def start(self, request_id: int, prompt: np.ndarray) -> None: ...
    def propose(self, request_ids: list[int]) -> list[Any]: ...
    def parents_and_tokens(self, draft: Any) -> tuple[list[int], list[int]]: ...
    def extend(self, request_id: int, tokens: np.ndarray) -> None: ...
    def stop(self, request_id: int) -> None: ...


class Ngram:
    """freedraft's n-gram drafter."""

    def __init__(self) -> None:
        """Make the drafter."""
        from freedraft.drafters.ngram import NgramDrafter

        self.drafter = NgramDrafter()
        self.start, self.extend, self.stop = (
            self.drafter.start,
            self.drafter.extend,
            self.drafter.stop,
        )

    def propose(self, request_ids: list[int]) -> list[Any]:
        """Draft for the whole batch in one call."""
        return self.drafter.propose(request_ids, MAX_NODES, MAX_NODES)

    def parents_and_tokens(self, draft: Any) -> tuple[list[int], list[int]]:
        """Return the draft as lists."""
        return draft.parents.tolist(), draft.token_ids.tolist()


class Arctic:
    """Arctic Inference, called as its vLLM plug-in calls it: the context is the caller's array."""

    def __init__(self, depth: int, factor: float, tree: bool) -> None:
        """Make the cache."""
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=depth)
        self.factor, self.tree = factor, tree
        self.texts: dict[int, np.ndarray] = {}
        self.sizes: dict[int, int] = {}
        self.names: dict[int, int] = {}
        self.num_started = 0

    def start(self, request_id: int, prompt: np.ndarray) -> None:
        """Start under a name of its own, since names are kept with the cached text."""
        text = np.zeros(prompt.size + 65_536, np.int32)
        text[: prompt.size] = prompt
        self.texts[request_id], self.sizes[request_id] = text, prompt.size
        self.names[request_id] = self.num_started
        self.num_started += 1
        self.cache.start_request(self.names[request_id], prompt)

    def propose(self, request_ids: list[int]) -> list[Any]:
        """Draft request by request: there is no call for a batch."""
        return [
            self.cache.speculate(
                self.names[i],
                self.texts[i][: self.sizes[i]],
                max_spec_tokens=MAX_NODES,
                max_spec_factor=self.factor,
                use_tree_spec=self.tree,
            )
            for i in request_ids
        ]

    def parents_and_tokens(self, draft: Any) -> tuple[list[int], list[int]]:
        """Return the draft as lists."""
        return draft.parents, draft.token_ids

    def extend(self, request_id: int, tokens: np.ndarray) -> None:
        """Append to the caller's array and to the cache."""
        size = self.sizes[request_id]
        self.texts[request_id][size : size + tokens.size] = tokens
        self.sizes[request_id] = size + tokens.size
        self.cache.add_active_response(self.names[request_id], tokens)

    def stop(self, request_id: int) -> None:
        """Stop; the response stays cached."""
        self.cache.stop_request(self.names.pop(request_id))


def make(name: str) -> Timed:
    """Return a new drafter."""
    if name == "ngram":
        return Ngram()
    return Arctic(64, 4.0, True) if "tree" in name else Arctic(24, 1.0, False)


def walk(drafter: Timed, draft: Any, response: np.ndarray, position: int) -> int:
    """Return how many tokens the step emits: the longest drafted path that came, and one more."""
    parents, tokens = drafter.parents_and_tokens(draft)
    children: Chains = {}
    for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        children.setdefault(parent, {})[token] = node
    node, emitted = -1, 0
    while position + emitted < response.size:
        node = children.get(node, {}).get(int(response[position + emitted]), -1)
        emitted += 1
        if node < 0:
            break
    return emitted


def run(
    drafter: Timed, requests: list[tuple[np.ndarray, np.ndarray]], max_steps: int
) -> tuple[list[int], int]:
    """Replay requests side by side; return nanoseconds of each step and the tokens emitted."""
    for i, (prompt, _) in enumerate(requests):
        drafter.start(i, prompt)
    positions = [0] * len(requests)
    times: list[int] = []
    emitted = 0
    while len(times) < max_steps:
        alive = [i for i, (_, text) in enumerate(requests) if positions[i] < text.size]
        if not alive:
            break
        began = time.perf_counter_ns()
        drafts = drafter.propose(alive)
        spent = time.perf_counter_ns() - began
        news = []
        for i, draft in zip(alive, drafts, strict=True):
            size = walk(drafter, draft, requests[i][1], positions[i])
            news.append((i, requests[i][1][positions[i] : positions[i] + size]))
            positions[i] += size
            emitted += size
        began = time.perf_counter_ns()
        for i, tokens in news:
            drafter.extend(i, tokens)
        times.append((spent + time.perf_counter_ns() - began) // len(alive))
    for i in range(len(requests)):
        drafter.stop(i)
    return times, emitted


def read(stream: BinaryIO) -> Any:
    """Read one message."""
    (size,) = struct.unpack("<q", stream.read(8))
    return pickle.loads(stream.read(size))


def write(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(struct.pack("<q", len(data)) + data)
    stream.flush()


def work(name: str) -> None:
    """Serve: a list of requests is replayed, None begins anew, an empty list ends."""
    drafter = make(name)
    while (message := read(sys.stdin.buffer)) != []:
        if message is None:
            drafter = make(name)
        else:
            write(sys.stdout.buffer, run(drafter, *message))


class Worker:
    """A drafter in its own process."""

    def __init__(self, name: str, python: str) -> None:
        """Start the process."""
        command = [python, __file__, "--worker", name]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        self.times: list[int] = []
        self.emitted = 0

    def send(self, message: Any) -> None:
        """Send a message."""
        assert self.process.stdin is not None
        write(self.process.stdin, message)

    def replay(self, requests: list[tuple[np.ndarray, np.ndarray]], max_steps: int) -> None:
        """Replay and note the times."""
        assert self.process.stdout is not None
        self.send((requests, max_steps))
        times, emitted = read(self.process.stdout)
        self.times += times
        self.emitted += emitted

    def result(self) -> dict[str, float]:
        """Return what was noted, and begin anew."""
        microseconds = np.array(self.times) / 1e3
        result = {
            "steps": len(self.times),
            "tokens": self.emitted,
            "mean_us": round(float(microseconds.mean()), 2),
            "p50_us": round(float(np.percentile(microseconds, 50)), 2),
            "p99_us": round(float(np.percentile(microseconds, 99)), 2),
        }
        self.times, self.emitted = [], 0
        self.send(None)
        return result


def rival_python(folder: Path) -> str:
    """Return the interpreter of the rival's environment, made when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--no-deps", RIVAL, "numpy"]
        subprocess.run(install, check=True)
    return str(python)


def experiments(
    files: dict[str, list[tuple[np.ndarray, np.ndarray]]],
) -> Iterator[tuple[str, list[list[tuple[np.ndarray, np.ndarray]]], int]]:
    """Yield name, turns (each a list of requests side by side) and steps a turn."""
    for name, requests in files.items():
        yield name, [[request] for request in requests], 1 << 30
    first = next(iter(files.values()))
    text = np.concatenate([np.concatenate(request) for request in first])
    for length in CONTEXTS:
        turns = [
            [(text[start : start + length], text[start + length : start + length + 4_000])]
            for start in (0, 50_000)
            if start + length + 4_000 <= text.size
        ]
        if turns:
            yield f"context {length}", turns, STEPS_A_CONTEXT
    everything = [request for requests in files.values() for request in requests]
    chosen = everything[:: max(1, len(everything) // 64)]
    for size in BATCHES:
        turns = [chosen[start : start + size] for start in range(0, min(64, 8 * size), size)]
        yield f"batch {size}", turns, 100


def main() -> None:
    """Run the workers in turns, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rival", type=Path, default=Path("build/rival"))
    parser.add_argument("--max-requests", type=int, default=1 << 30, help="of each file")
    arguments = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)

    def encode(text: str) -> np.ndarray:
        return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)

    files = {}
    for path in arguments.traces:
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines][: arguments.max_requests]
        files[path.stem] = [(encode(row["prompt"]), encode(row["response"])) for row in rows]
    rival = rival_python(arguments.rival)
    workers = {n: Worker(n, sys.executable if n == "ngram" else rival) for n in DRAFTERS}
    results = []
    for name, turns, max_steps in experiments(files):
        for requests in turns:
            for worker in workers.values():
                worker.replay(requests, max_steps)
        results.append({"what": name, **{n: w.result() for n, w in workers.items()}})
        print(json.dumps(results[-1]), flush=True)
    for worker in workers.values():
        worker.send([])
    versions = {"python": platform.python_version(), "numpy": np.__version__, "rival": RIVAL}
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        machine = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    report = {
        "machine": machine,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[2],
        "versions": versions,
        "results": results,
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main()
