"""What a replay found: the numbers of one drafter on one log with one node budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...drafters.base import Drafter
from ..traces import TokenTrace
from .match_lengths import BUCKET_LABELS
from .requests import ListSource, TokenRequest
from .tally import Counts, Tally
from .walk import Walk

_KEPT_PERCENT = 95


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one drafter reached on one log with one node budget.

    Attributes:
        file: name of the log.
        workload: the workloads of the requests, sorted, joined by commas.
        drafter: the drafter's name.
        max_nodes: largest number of nodes a step.
        warm: whether what was learnt was kept from request to request.
        requests: number of requests.
        tokens: response tokens, all of them emitted by some step.
        steps: target steps, those without a draft included.
        tokens_per_step: ``tokens / steps``.
        drafted_per_step: nodes proposed a step.
        acceptance_rate: accepted nodes / proposed nodes; 0 when nothing was proposed.
        calibration_error: expected calibration error of the nodes' path probabilities.
        propose_us_p50: microseconds of a ``propose`` call, median.
        propose_us_p99: the same, 99th percentile.
        extend_us_p50: microseconds of an ``extend`` call, median.
        observe_us_p50: microseconds of an ``observe`` call, median.
        draft_us_mean: microseconds a step of all three, mean of the fastest 95 % of calls.
        concurrency: requests at a time; 0 where the log's times decided.
        prompt_tokens: of all prompts.
        expected_tokens_per_step: under sampling, from logged probabilities: the least and the most
            that they allow; None where the log has none.
        tally: the sums behind all this.
    """

    file: str
    workload: str
    drafter: str
    max_nodes: int
    warm: bool
    requests: int
    tokens: int
    steps: int
    tokens_per_step: float
    drafted_per_step: float
    acceptance_rate: float
    calibration_error: float
    propose_us_p50: float
    propose_us_p99: float
    extend_us_p50: float
    observe_us_p50: float
    draft_us_mean: float = 0.0
    concurrency: int = 1
    prompt_tokens: int = 0
    expected_tokens_per_step: tuple[float, float] | None = None
    tally: Tally = field(default_factory=lambda: Tally(0), repr=False, compare=False)

    @classmethod
    def from_tally(
        cls, tally: Tally, *, file: str, drafter: str, warm: bool, concurrency: int = 1
    ) -> ReplayResult:
        """Work the numbers out of the sums."""
        total = tally.total
        steps = max(total.steps, 1)  # every response may be empty
        return cls(
            file=file,
            workload=",".join(sorted(tally.by_workload)),
            drafter=drafter,
            max_nodes=tally.max_nodes,
            warm=warm,
            requests=total.requests,
            tokens=total.tokens,
            steps=total.steps,
            tokens_per_step=total.tokens / steps,
            drafted_per_step=total.drafted / steps,
            acceptance_rate=total.accepted / max(total.drafted, 1),
            calibration_error=tally.calibration_error(),
            propose_us_p50=tally.propose.percentile_us(50),
            propose_us_p99=tally.propose.percentile_us(99),
            extend_us_p50=tally.extend.percentile_us(50),
            observe_us_p50=tally.observe.percentile_us(50),
            draft_us_mean=sum(
                times.mean_us(_KEPT_PERCENT)
                for times in (tally.propose, tally.extend, tally.observe)
            ),
            concurrency=concurrency,
            prompt_tokens=tally.prompt_tokens,
            expected_tokens_per_step=_expected(tally),
            tally=tally,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the numbers as JSON takes them, with the tables behind the plots."""
        numbers = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "tally"
        }
        return numbers | _tables(self.tally)


def replay_traces(
    traces: Sequence[TokenTrace],
    make_drafter: Callable[[], Drafter],
    *,
    max_nodes: int,
    warm: bool = True,
    concurrency: int = 1,
    file: str = "",
    on_request: Callable[[], None] | None = None,
) -> ReplayResult:
    """Walk the responses of ``traces`` in order with one drafter.

    Args:
        traces: at least one.
        make_drafter: returns a fresh drafter; called once, or once a request when not ``warm``.
        max_nodes: the budget of every step, also its largest depth.
        warm: keep the drafter over the requests, so that it learns from earlier ones.
        concurrency: requests at a time.
        file: name to put into the result.
        on_request: called after each request, for a progress bar.

    Raises:
        ValueError: no trace, a negative budget, no place for a request, or a drafter that proposes
            more than the budget.
    """
    if not traces:
        raise ValueError("expected at least one trace to replay, got none")
    if max_nodes < 0:
        raise ValueError(f"expected max_nodes >= 0, got {max_nodes}")
    if concurrency < 1:
        raise ValueError(f"expected concurrency >= 1, got {concurrency}")
    names: list[str] = []

    def make() -> Drafter:
        drafter = make_drafter()
        names.append(drafter.name)
        return drafter

    tally = Tally(max_nodes)
    walk = Walk(
        make,
        ListSource([TokenRequest.from_trace(trace) for trace in traces]),
        tally,
        warm=warm,
        concurrency=concurrency,
        on_tokens=None if on_request is None else lambda tokens: on_request(),
    )
    walk.run(range(len(traces)), sum(trace.response_ids.size for trace in traces))
    return ReplayResult.from_tally(
        tally, file=file, drafter=names[0], warm=warm, concurrency=concurrency
    )


def _expected(tally: Tally) -> tuple[float, float] | None:
    """Return tokens a step under sampling, over the steps whose probabilities were logged."""
    sampling = tally.sampling
    if sampling.steps == 0:
        return None
    return 1 + sampling.low / sampling.steps, 1 + sampling.high / sampling.steps


def _tables(tally: Tally) -> dict[str, Any]:
    tally.settle()
    depths = range(1, len(tally.steps_by_accepted))
    reached = [sum(tally.steps_by_accepted[depth:]) for depth in depths]
    return {
        "steps_by_accepted": tally.steps_by_accepted,
        "steps_by_drafted": tally.steps_by_drafted,
        "acceptance_by_position": [
            {"position": depth, "offered": tally.offered[depth], "accepted": accepted}
            for depth, accepted in zip(depths, reached, strict=True)
        ],
        "by_match_length": _rows(zip(BUCKET_LABELS, tally.by_match, strict=True), "match"),
        "by_workload": _rows(sorted(tally.by_workload.items()), "workload"),
        "by_prompt_tokens": _rows(_by_length(tally.by_prompt), "at_least"),
        "by_response_tokens": _rows(_by_length(tally.by_response), "at_least"),
        "calibration": [
            {"nodes": nodes, "expected": expected, "accepted": accepted}
            for nodes, expected, accepted in zip(
                tally.bin_nodes, tally.bin_probs, tally.bin_hits, strict=True
            )
        ],
        "sampling": asdict(tally.sampling),
        "memory": [asdict(sample) for sample in tally.memory],
    }


def _by_length(table: dict[str, Counts]) -> list[tuple[str, Counts]]:
    return sorted(table.items(), key=lambda item: int(item[0]))


def _rows(table: Iterable[tuple[str, Counts]], key: str) -> list[dict[str, object]]:
    return [
        {key: name, **asdict(counts), "tokens_per_step": counts.tokens / max(counts.steps, 1)}
        for name, counts in table
    ]
