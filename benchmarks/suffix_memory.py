"""What does the suffix pool cost: bytes a token, ingest a token, the longest pauses?

    python benchmarks/suffix_memory.py TRACES.jsonl... --tokenizer FOLDER --out RESULT.json

- Memory: rows that the responses of each file really take in one automaton, and what the tables of
  a segment laid out for as many tokens reserve, both in bytes a token.
- Ingest: median over repeats of the time to append all responses of a file to one automaton.
- Pauses: a 128k-token prompt (the files' text, repeated with changes) is started; then steps of
  propose and extend run until it is indexed. And a namespace with small segments turns over under
  responses of 2,000 tokens, so that the oldest segment is dropped again and again.

Processor time of the calling thread is reported beside wall time: on a shared machine the longest
wall times are other programs' turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
from transformers import AutoTokenizer

from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter
from freedraft.drafters.suffix import _automaton_kernels as kernels
from freedraft.drafters.suffix.segments import extent_size, table_caps
from freedraft.workbench.traces import read_traces

MAX_CONTEXT = SuffixConfig().max_context
REPEATS = 5


def percentiles(nanoseconds: list[int]) -> dict[str, float]:
    """Return median, 99th percentile and maximum in microseconds."""
    values = np.array(nanoseconds) / 1e3
    return {
        "p50": round(float(np.percentile(values, 50)), 2),
        "p99": round(float(np.percentile(values, 99)), 2),
        "max": round(float(values.max()), 2),
    }


class Clock:
    """Wall and processor times of many calls."""

    def __init__(self) -> None:
        self.wall: list[int] = []
        self.processor: list[int] = []

    def time(self, call: Callable[[], object]) -> None:
        """Run ``call`` and keep how long it took."""
        wall, processor = time.perf_counter_ns(), time.thread_time_ns()
        call()
        self.processor.append(time.thread_time_ns() - processor)
        self.wall.append(time.perf_counter_ns() - wall)

    def report(self) -> dict[str, object]:
        """Return the microseconds of both."""
        return {
            "calls": len(self.wall),
            "wall_us": percentiles(self.wall),
            "processor_us": percentiles(self.processor),
        }


def memory_and_ingest(responses: list[np.ndarray]) -> dict[str, float]:
    """Append all responses to one automaton, several times."""
    barrier = np.array([kernels.BARRIER], np.int32)
    text = np.concatenate([part for response in responses for part in (response, barrier)])
    caps = table_caps(2 * text.size, MAX_CONTEXT)
    arena = np.zeros(extent_size(caps), np.int32)
    clock = Clock()
    for _ in range(REPEATS):
        kernels.open_automaton(arena, 0, caps)
        clock.time(lambda: kernels.append(arena, 0, text, 0, text.size))
    rows = {
        "prefix": int(arena[kernels.NUM_PREFIX]),
        "branch": int(arena[kernels.NUM_BRANCH]),
        "edge": int(arena[kernels.NUM_EDGE]),
    }
    used = 4 * (
        kernels.PREFIX_ROW * rows["prefix"]
        + kernels.BRANCH_ROW * rows["branch"]
        + (kernels.EDGE_ROW + 1) * rows["edge"]
    )
    per_token = 1 / text.size
    return {
        "tokens": int(text.size),
        "branches_per_token": round(rows["branch"] * per_token, 3),
        "edges_per_token": round(rows["edge"] * per_token, 3),
        "bytes_per_token_used": round(used * per_token, 1),
        "ingest_us_per_token_wall": round(float(np.median(clock.wall)) / 1e3 * per_token, 3),
        "ingest_us_per_token_processor": round(
            float(np.median(clock.processor)) / 1e3 * per_token, 3
        ),
    }


def reserved_bytes_per_token() -> dict[str, float]:
    """Return what the tables of an automaton reserve, by the tokens that they are laid out for."""
    sizes = (1_000, 8_000, 32_000, 128_000, 1_000_000)
    return {
        str(size): round(4 * extent_size(table_caps(size, MAX_CONTEXT)) / size, 1) for size in sizes
    }


def long_prompt(text: np.ndarray) -> dict[str, object]:
    """Start a 128k prompt and step until it is indexed."""
    draw = np.random.default_rng(0)
    prompt = np.resize(text, 131_072)
    changed = draw.integers(0, prompt.size, prompt.size // 20)
    prompt[changed] = text[draw.integers(0, text.size, changed.size)]
    drafter = SuffixDrafter()
    start, propose, extend, stop = Clock(), Clock(), Clock(), Clock()
    for request in range(REPEATS):
        before = drafter.num_bytes
        start.time(lambda: drafter.start(request, prompt))  # noqa: B023
        for step in range(100):
            propose.time(lambda: drafter.propose([request], 16, 16))  # noqa: B023
            tokens = text[3 * step : 3 * step + 3]
            extend.time(lambda: drafter.extend(request, tokens))  # noqa: B023
        held = drafter.num_bytes - before
        stop.time(lambda: drafter.stop(request))  # noqa: B023
    return {
        "prompt_tokens": int(prompt.size),
        "bytes_per_token_held": round(held / (prompt.size + 300), 1),
        "start": start.report(),
        "propose_while_indexing": propose.report(),
        "extend_while_indexing": extend.report(),
        "stop": stop.report(),
    }


def turnover(text: np.ndarray) -> dict[str, object]:
    """Fill a namespace of 4 MiB again and again with responses of 2,000 tokens."""
    drafter = SuffixDrafter(SuffixConfig(max_bytes=1 << 26, max_namespace_bytes=1 << 22))
    start, extend, stop = Clock(), Clock(), Clock()
    responses = 300
    for number in range(responses):
        response = np.roll(text, -1_999 * number)[:2_000]
        start.time(lambda: drafter.start(0, response[:10]))  # noqa: B023
        for place in range(0, 2_000, 20):
            tokens = response[place : place + 20]
            extend.time(lambda: drafter.extend(0, tokens))  # noqa: B023
        stop.time(lambda: drafter.stop(0))
    return {
        "responses": responses,
        "tokens": 2_000 * responses,
        "bytes_at_the_end": drafter.num_bytes,
        "start": start.report(),
        "extend_20_tokens": extend.report(),
        "stop": stop.report(),
        "total_us_per_token_processor": round(
            sum(sum(clock.processor) for clock in (start, extend, stop)) / 1e3 / 2_000 / responses,
            3,
        ),
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    SuffixDrafter()
    files: dict[str, object] = {}
    largest = np.zeros(0, np.int32)
    for path in options.traces:
        responses = [
            np.array(tokenizer.encode(trace.response, add_special_tokens=False), np.int32)
            for trace in read_traces(path)
        ]
        files[path.name] = memory_and_ingest(responses)
        print(path.name, files[path.name], flush=True)
        text = np.concatenate(responses)
        largest = text if text.size > largest.size else largest
    result = {
        "question": "bytes and time a token of the suffix pool, and its longest pauses",
        "files": files,
        "bytes_per_token_reserved_by_tokens": reserved_bytes_per_token(),
        "long_prompt": long_prompt(largest),
        "turnover": turnover(largest),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.machine()}, shared: other programs ran beside",
    }
    text_out = json.dumps(result, indent=2)
    print(text_out)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text_out + "\n")


if __name__ == "__main__":
    main()
