"""Servers under open-loop load: requests come at random times, whether or not a server keeps up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..request_times import Objective, RequestTimes, ServiceLevel, service_level
from ..simulation.workload import poisson_arrivals
from .streaming_client import Answer, ServerError


class Client(Protocol):
    """Something that answers prompts, from several threads at once."""

    def ask(self, prompt: str, max_new_tokens: int) -> Answer:
        """Return the answer, or raise :class:`~.streaming_client.ServerError`."""
        ...


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Settings of a benchmark under load.

    Attributes:
        rates: requests a second.
        num_requests: at each rate.
        max_new_tokens: of each answer.
        seed: of the arrivals.
        objective: what counts as good.
    """

    rates: tuple[float, ...]
    num_requests: int = 100
    max_new_tokens: int = 128
    seed: int = 0
    objective: Objective = field(default_factory=Objective)

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: one is out of its range.
        """
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"expected rates above 0 requests a second, got {self.rates}")
        if self.num_requests < 1 or self.max_new_tokens < 1:
            raise ValueError(
                "expected num_requests and max_new_tokens >= 1, got "
                f"{self.num_requests} and {self.max_new_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Served:
    """What one server answered at one rate.

    Attributes:
        times: of the requests that were answered.
        texts: of each request; ``None`` where it failed.
        errors: what became of the others.
    """

    times: tuple[RequestTimes, ...]
    texts: tuple[str | None, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One server at one rate.

    Attributes:
        server: its name.
        rate: requests a second that were offered.
        level: how the answered requests fared; ``None`` where none was. Failed ones lower the
            goodput by not being there.
        failed: requests without an answer.
        same_text: requests whose text is the first server's at that rate.
    """

    server: str
    rate: float
    level: ServiceLevel | None
    failed: int
    same_text: int

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return asdict(self)


def serve_open_loop(
    client: Client,
    prompts: Sequence[str],
    arrivals: Sequence[float],
    max_new_tokens: int,
    after_request: Callable[[], None] = lambda: None,
) -> Served:
    """Send requests at their times, each from a thread of its own, and wait for all answers.

    Times to the first token count from when a request was due, also where it was sent late.

    Args:
        client: the server.
        prompts: taken over and over.
        arrivals: seconds from now, in order.
        max_new_tokens: of each answer.
        after_request: called after each answer or failure.
    """
    answers: list[Answer | ServerError | None] = [None] * len(arrivals)

    def ask(index: int) -> None:
        try:
            answers[index] = client.ask(prompts[index % len(prompts)], max_new_tokens)
        except ServerError as error:
            answers[index] = error
        after_request()

    begin = time.perf_counter()
    threads = []
    for index, arrival in enumerate(arrivals):
        time.sleep(max(0.0, begin + arrival - time.perf_counter()))
        threads.append(threading.Thread(target=ask, args=(index,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    times = [
        RequestTimes(arrival, answer.first_token - begin, answer.end - begin, answer.num_tokens)
        for arrival, answer in zip(arrivals, answers, strict=True)
        if isinstance(answer, Answer)
    ]
    return Served(
        tuple(times),
        tuple(answer.text if isinstance(answer, Answer) else None for answer in answers),
        tuple(str(answer) for answer in answers if not isinstance(answer, Answer)),
    )


def load_benchmark(
    clients: Mapping[str, Client],
    prompts: Sequence[str],
    settings: LoadSettings,
    after_request: Callable[[], None] = lambda: None,
) -> list[LoadResult]:
    """Put servers under the same load, one after another, rate by rate.

    Args:
        clients: by name; the first one's texts are what the others' are compared with.
        prompts: at least one.
        settings: of the load.
        after_request: called after each request.
    """
    results = []
    for rate in settings.rates:
        arrivals = poisson_arrivals(rate, settings.num_requests, settings.seed)
        expected: tuple[str | None, ...] | None = None
        for name, client in clients.items():
            served = serve_open_loop(
                client, prompts, arrivals, settings.max_new_tokens, after_request
            )
            expected = served.texts if expected is None else expected
            same = sum(
                own is not None and own == other
                for own, other in zip(served.texts, expected, strict=True)
            )
            level = service_level(served.times, settings.objective) if served.times else None
            results.append(LoadResult(name, rate, level, len(served.errors), same))
    return results


def draw_load(results: Sequence[LoadResult], settings: LoadSettings, path: Path) -> None:
    """Draw goodput and the pace of tokens over the offered rate, one line a server.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the picture cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    goodput, pace = figure.subplots(1, 2)
    for name in dict.fromkeys(result.server for result in results):
        rows = [(r.rate, r.level) for r in results if r.server == name and r.level is not None]
        rates = [rate for rate, _ in rows]
        (line,) = goodput.plot(rates, [level.goodput for _, level in rows], "o-", label=name)
        style: dict[str, Any] = {"color": line.get_color()}
        pace.plot(rates, [level.tpot_p50 * 1e3 for _, level in rows], "o-", label=name, **style)
        pace.plot(rates, [level.tpot_p99 * 1e3 for _, level in rows], ":", **style)
    limits = settings.objective
    goodput.plot(settings.rates, settings.rates, color="0.7", linewidth=1, label="all good")
    goodput.set(
        xlabel="requests a second that arrive",
        ylabel="good requests a second",
        title=f"good: TTFT <= {limits.ttft_seconds:g} s and TPOT <= "
        f"{limits.tpot_seconds * 1e3:g} ms",
    )
    pace.set(
        xlabel="requests a second that arrive",
        ylabel="ms a token after the first",
        title="TPOT: median (solid), p99 (dotted)",
    )
    for axes in (goodput, pace):
        axes.set_ylim(bottom=0)
        axes.title.set_fontsize(9)
    goodput.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=140)
