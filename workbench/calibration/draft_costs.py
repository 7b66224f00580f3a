"""What drafting costs a step, by batch: a drafter on texts that half repeat themselves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...drafters import Drafter, create_drafter
from ...drafters.tree import IntArray

FloatArray64 = npt.NDArray[np.float64]

_STEPS = 24
_MAX_NODES = 16


def measure_drafting(
    name: str, batches: Sequence[int], context: int, vocab_size: int
) -> FloatArray64:
    """Return ``(num_batches,)``: median seconds a step of one propose and an extend a request.

    Args:
        name: of the drafter, as ``create_drafter`` takes it.
        batches: numbers of requests.
        context: tokens of each prompt.
        vocab_size: ids are drawn below it.
    """
    drafter = create_drafter(name)
    return np.array([_step_seconds(drafter, batch, context, vocab_size) for batch in batches])


def _step_seconds(drafter: Drafter, batch: int, context: int, vocab_size: int) -> float:
    generator = np.random.default_rng(batch)
    texts = [_text(generator, context + _STEPS, vocab_size) for _ in range(batch)]
    requests = list(range(batch))
    for request in requests:
        drafter.start(request, texts[request][:context])
    times = []
    for step in range(_STEPS):
        begin = time.perf_counter()
        drafter.propose(requests, _MAX_NODES, _MAX_NODES)
        for request in requests:
            drafter.extend(request, texts[request][context + step : context + step + 1])
        times.append(time.perf_counter() - begin)
    for request in requests:
        drafter.stop(request)
    return statistics.median(times)


def _text(generator: np.random.Generator, length: int, vocab_size: int) -> IntArray:
    """Return random ids with a phrase of eight tokens in every second place for one."""
    phrase = generator.integers(0, vocab_size, 8)
    pieces = [
        phrase if number % 2 else generator.integers(0, vocab_size, 8)
        for number in range(length // 8 + 1)
    ]
    return np.concatenate(pieces)[:length].astype(np.int32)
