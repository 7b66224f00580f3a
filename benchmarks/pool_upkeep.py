"""What pools cost beside drafting: ingest a token, bytes a token, and driving old text out.

Used by ``step_latency.py``, which says how it is run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rivals

from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter

IntArray = npt.NDArray[np.int32]


class Clock:
    """Wall and processor times of many calls, in nanoseconds."""

    def __init__(self) -> None:
        """Begin without times."""
        self.wall: list[int] = []
        self.processor: list[int] = []

    def time(self, call: Callable[[], Any]) -> Any:
        """Run ``call``, keep how long it took, and return what it returned."""
        processor, wall = time.thread_time_ns(), time.perf_counter_ns()
        result = call()
        self.wall.append(time.perf_counter_ns() - wall)
        self.processor.append(time.thread_time_ns() - processor)
        return result

    def add(self, other: Clock) -> None:
        """Take over the other's calls."""
        self.wall += other.wall
        self.processor += other.processor

    def plus(self, other: Clock) -> Clock:
        """Return the sums of both, call by call."""
        both = Clock()
        both.wall = [a + b for a, b in zip(self.wall, other.wall, strict=True)]
        both.processor = [a + b for a, b in zip(self.processor, other.processor, strict=True)]
        return both

    def report(self) -> dict[str, dict[str, float]]:
        """Return median, 99th percentile and mean of both, in microseconds."""
        return {
            name: {
                "p50": round(float(np.percentile(times, 50)) / 1e3, 2),
                "p99": round(float(np.percentile(times, 99)) / 1e3, 2),
                "mean": round(float(np.mean(times)) / 1e3, 2),
            }
            for name, times in (("wall_us", self.wall), ("processor_us", self.processor))
        }


def resident_bytes() -> int:
    """Return the process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ingest(text: IntArray) -> dict[str, Any]:
    """Fill an n-gram pool, and index one long prompt with the suffix drafter."""
    length = 131_072
    NgramDrafter(NgramConfig(capacity=1 << 12))  # compiles, which takes memory too
    before = resident_bytes()
    ngram = NgramDrafter()
    capacity = ngram.config.capacity
    clock = Clock()
    for request in range(capacity // length):
        prompt = np.resize(np.roll(text, -request * 7_919), length)
        clock.time(partial(ngram.start, request, prompt))
    result: dict[str, Any] = {
        "tokens_a_prompt": length,
        "ngram": {
            "tokens": capacity,
            "us_per_token_wall": round(float(np.median(clock.wall)) / 1e3 / length, 4),
            "us_per_token_processor": round(float(np.median(clock.processor)) / 1e3 / length, 4),
            "resident_bytes_per_token": round((resident_bytes() - before) / capacity, 1),
        },
    }
    del ngram
    suffix, clock = SuffixDrafter(), Clock()
    num_calls = length // suffix.config.slice_tokens + 1
    for request in range(8):
        prompt = np.resize(np.roll(text, -request * 7_919), length)
        suffix.start(request, prompt)
        clock.time(
            lambda request=request: [suffix.propose([request], 1, 1) for _ in range(num_calls)]
        )
    result["suffix"] = {
        "tokens": 8 * length,
        "us_per_token_wall": round(float(np.median(clock.wall)) / 1e3 / length, 4),
        "us_per_token_processor": round(float(np.median(clock.processor)) / 1e3 / length, 4),
        "bytes_per_token": round(suffix.num_bytes / (8 * length), 1),
    }
    return result


def eviction(text: IntArray) -> dict[str, Any]:
    """Turn pools over under responses of 2,000 tokens; compare with pools that have room."""
    size = 2_000

    def turn_over(drafter: Any, first: int, count: int) -> Clock:
        clock = Clock()
        for request in range(first, first + count):
            response = np.roll(text, -request * 1_999)[:size]

            def whole(request: int = request, response: IntArray = response) -> None:
                drafter.start(request, response[:1])
                for place in range(1, size, 20):
                    drafter.extend(request, response[place : place + 20])
                drafter.stop(request)

            clock.time(whole)
        return clock

    room = NgramConfig(capacity=1 << 22)
    small = NgramConfig(capacity=1 << 18)
    segments = SuffixConfig(max_namespace_bytes=1 << 22)
    pairs: dict[str, tuple[Any, Any]] = {
        "ngram": (NgramDrafter(room), NgramDrafter(small)),
        "suffix": (SuffixDrafter(), SuffixDrafter(segments)),
    }
    result: dict[str, Any] = {"tokens_a_response": size}
    for name, (roomy, full) in pairs.items():
        turn_over(roomy, 0, 200)
        turn_over(full, 0, 200)  # both have turned over by now, or never will
        # in turn, since what else runs on the machine changes
        with_room, without = Clock(), Clock()
        for first in range(200, 400, 10):
            with_room.add(turn_over(roomy, first, 10))
            without.add(turn_over(full, first, 10))
        result[name] = {
            "with_room": with_room.report(),
            "full": without.report(),
            "full_less_room_us": round(
                (float(np.median(without.processor)) - float(np.median(with_room.processor))) / 1e3,
                1,
            ),
        }
    if "arctic-64" in rivals.available():
        for depth in (64, 24):
            result[f"arctic-{depth}"] = arctic_eviction(text, size, depth)
    return result


def arctic_eviction(text: IntArray, size: int, depth: int) -> dict[str, Any]:
    """Time the start of a request that drives out the oldest of 100 cached responses."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(depth, max_cached_requests=100)
    clock = Clock()
    for request in range(140):
        response = np.ascontiguousarray(np.roll(text, -request * 1_999)[:size])
        start = partial(cache.start_request, request, response[:1])
        if request < 100:
            start()
        else:
            clock.time(start)
        cache.add_active_response(request, response)
        cache.stop_request(request)
    return {"start_that_evicts": clock.report()}
