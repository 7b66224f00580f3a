"""Times of work on a device: replays of a captured graph on a GPU, calls on a CPU."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import torch


def device_seconds(
    work: Callable[[], object], device: torch.device, seconds: float = 0.15
) -> float:
    """Return the median time of ``work`` on the device, without the host's launches.

    Args:
        work: launches the work; must not wait for the device.
        device: where it runs.
        seconds: about how long to measure, warm-up not counted.
    """
    if device.type != "cuda":
        return wall_seconds(work, device, seconds)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()  # compiles kernels and takes memory outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    graph.replay()
    torch.cuda.synchronize()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def wall_seconds(work: Callable[[], object], device: torch.device, seconds: float = 0.15) -> float:
    """Return the median wall time of ``work`` and a wait for the device."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    work()
    wait()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        begin = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def machine(device: torch.device) -> dict[str, str]:
    """Return what the numbers were taken on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    try:
        import triton

        triton_version = str(triton.__version__)
    except ImportError:
        triton_version = "none"
    return {
        "device": name,
        "torch": torch.__version__,
        "triton": triton_version,
        "python": platform.python_version(),
    }
