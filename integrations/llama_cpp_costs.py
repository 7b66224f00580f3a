"""What a step of llama.cpp costs by its number of tokens, measured on the loaded model."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .budget import Calibration
from .budget.calibration_file import MEASURED

NODES = (0, 1, 3, 7, 15, 31)
"""Drafted tokens of the measured steps: with the pending token 1, 2, 4, ..., 32 rows."""

_MAX_SECONDS = 3.0  # further rounds are left out once this much time is spent
_MAX_ROUNDS = 5


def measure_costs(llama: Any, context: int = 128) -> Calibration:
    """Time steps of several widths, in turn, behind a context of arbitrary tokens.

    The model's state is reset before and after: a cached prompt is evaluated again. A model that
    runs on the CPU alone is timed by the processor's time, a share a thread, since on a machine
    with other work to do the shortest of a few wall times of a narrow step can be as long as a wide
    one's; with layers on a GPU, which that clock does not see, by the wall clock.

    Args:
        llama: a ``llama_cpp.Llama`` made with ``logits_all=True``.
        context: tokens in the cache at the measurement, shortened where ``n_ctx`` asks for it.

    Returns:
        The shortest times, made never to fall with the width.

    Raises:
        ValueError: the model's context has not room for two tokens.
    """
    room = int(llama.n_ctx())
    nodes = tuple(n for n in NODES if n + 2 <= room)
    if len(nodes) < 2:
        raise ValueError(f"expected n_ctx of at least 3 tokens, got {room}")
    context = max(1, min(context, room - nodes[-1] - 1))
    tokens = np.arange(context + nodes[-1] + 1) % int(llama.n_vocab())
    llama.reset()
    llama.eval(tokens[:context].tolist())
    clock, per_second = _clock(llama)
    times: dict[int, list[float]] = {n: [] for n in nodes}
    started_at = time.perf_counter()
    for number in range(_MAX_ROUNDS + 1):
        for n in nodes:
            llama.n_tokens = context  # the next eval drops what the cache holds behind it
            begin = clock()
            llama.eval(tokens[context : context + n + 1].tolist())
            if number:  # the first round warms up
                times[n].append((clock() - begin) / per_second)
        if number and time.perf_counter() - started_at > _MAX_SECONDS:
            break
    llama.reset()
    # The least of several: what other programs take of the machine only ever adds to a time.
    seconds = np.maximum.accumulate([min(times[n]) for n in nodes])
    return Calibration(
        model=str(getattr(llama, "model_path", "")),
        engine="llama-cpp",
        device=f"{platform.processor() or platform.machine()}, {llama.n_threads} threads",
        source=MEASURED,
        contexts=(context,),
        batches=(1,),
        nodes=nodes,
        seconds=seconds.reshape(1, 1, -1),
        about={"rounds": len(times[0]), "date": time.strftime("%Y-%m-%d")},
    )


def _clock(llama: Any) -> tuple[Callable[[], float], int]:
    """Return the clock to measure with, and how many of its seconds pass in one."""
    parameters = getattr(llama, "model_params", None)
    if getattr(parameters, "n_gpu_layers", -1) != 0:  # also where the engine does not say
        return time.perf_counter, 1
    return time.process_time, max(int(llama.n_threads), 1)
