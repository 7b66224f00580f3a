"""Replay of recorded responses: what a drafter would have saved had a target said exactly this.

The walk is the greedy verifier's: from the root down as long as the tree holds the next recorded
token, then one more token (the recovered or bonus token of that step).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns

import numpy as np

from ..drafters.base import Drafter, Feedback
from ..drafters.calibration import expected_calibration_error
from ..drafters.tree import CandidateTree, IntArray, accepted_path
from .traces import TokenTrace

NUM_BINS = 10
"""Equal-width bins of path probability in the expected calibration error."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one drafter reached on one file with one node budget.

    Attributes:
        file: name of the trace file.
        workload: the workloads of the traces, sorted, joined by commas.
        drafter: the drafter's name.
        max_nodes: largest number of nodes a step.
        warm: whether what was learnt was kept from request to request.
        requests: number of traces.
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

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(slots=True)
class _Tally:
    """Running sums of one replay; the times are nanoseconds, one entry a call."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    propose_ns: list[int] = field(default_factory=list)
    extend_ns: list[int] = field(default_factory=list)
    observe_ns: list[int] = field(default_factory=list)
    node_probs: list[np.ndarray] = field(default_factory=list)
    node_hits: list[np.ndarray] = field(default_factory=list)


def replay_traces(
    traces: Sequence[TokenTrace],
    make_drafter: Callable[[], Drafter],
    *,
    max_nodes: int,
    warm: bool = True,
    file: str = "",
    on_request: Callable[[], None] | None = None,
) -> ReplayResult:
    """Walk the responses of ``traces`` in order with one drafter.

    Args:
        traces: at least one.
        make_drafter: returns a fresh drafter; called once, or once a request when not ``warm``.
        max_nodes: the budget of every step, also its largest depth.
        warm: keep the drafter over the requests, so that it learns from earlier ones.
        file: name to put into the result.
        on_request: called after each request, for a progress bar.

    Raises:
        ValueError: no trace, a negative budget, or a drafter that proposes more than the budget.
    """
    if not traces:
        raise ValueError("expected at least one trace to replay, got none")
    if max_nodes < 0:
        raise ValueError(f"expected max_nodes >= 0, got {max_nodes}")
    drafter = make_drafter()
    name = drafter.name
    tally = _Tally()
    for index, trace in enumerate(traces):
        if index and not warm:
            drafter = make_drafter()
        _replay_request(drafter, index, trace, max_nodes, tally)
        if on_request is not None:
            on_request()
    return _summarize(tally, traces, name, max_nodes, warm, file)


def _replay_request(
    drafter: Drafter, request_id: int, trace: TokenTrace, max_nodes: int, tally: _Tally
) -> None:
    response = trace.response_ids
    drafter.start(request_id, trace.prompt_ids)
    position = 0
    while position < response.size:
        started = perf_counter_ns()
        (tree,) = drafter.propose([request_id], max_nodes, max_nodes)
        tally.propose_ns.append(perf_counter_ns() - started)
        if tree.num_nodes > max_nodes:
            raise ValueError(
                f"expected at most {max_nodes} nodes from the drafter {drafter.name}, "
                f"got {tree.num_nodes}"
            )
        accepted = accepted_path(tree, response[position:])
        emitted = response[position : position + accepted.size + 1]
        feedback = Feedback(emitted, accepted, _choices(tree, accepted, emitted))
        started = perf_counter_ns()
        drafter.observe(request_id, tree, feedback)
        observed = perf_counter_ns()
        drafter.extend(request_id, emitted)
        tally.extend_ns.append(perf_counter_ns() - observed)
        tally.observe_ns.append(observed - started)
        _count(tally, tree, accepted)
        position += emitted.size
    tally.tokens += int(response.size)
    drafter.stop(request_id)


def _choices(tree: CandidateTree, accepted: IntArray, emitted: IntArray) -> IntArray:
    """Return the recorded token after the root and each accepted node; -1 elsewhere."""
    choices = np.full(tree.num_nodes + 1, -1, np.int32)
    asked = np.concatenate(([0], accepted + 1))[: emitted.size]
    choices[asked] = emitted
    return choices


def _count(tally: _Tally, tree: CandidateTree, accepted: IntArray) -> None:
    tally.steps += 1
    tally.drafted += tree.num_nodes
    tally.accepted += int(accepted.size)
    hits = np.zeros(tree.num_nodes, np.bool_)
    hits[accepted] = True
    tally.node_probs.append(tree.probs)
    tally.node_hits.append(hits)


def _summarize(
    tally: _Tally,
    traces: Sequence[TokenTrace],
    drafter: str,
    max_nodes: int,
    warm: bool,
    file: str,
) -> ReplayResult:
    steps = max(tally.steps, 1)  # every response may be empty
    probs = np.concatenate([np.zeros(0, np.float32), *tally.node_probs])
    hits = np.concatenate([np.zeros(0, np.bool_), *tally.node_hits])
    return ReplayResult(
        file=file,
        workload=",".join(sorted({trace.workload for trace in traces})),
        drafter=drafter,
        max_nodes=max_nodes,
        warm=warm,
        requests=len(traces),
        tokens=tally.tokens,
        steps=tally.steps,
        tokens_per_step=tally.tokens / steps,
        drafted_per_step=tally.drafted / steps,
        acceptance_rate=tally.accepted / max(tally.drafted, 1),
        calibration_error=expected_calibration_error(probs, hits, NUM_BINS),
        propose_us_p50=_percentile_us(tally.propose_ns, 50),
        propose_us_p99=_percentile_us(tally.propose_ns, 99),
        extend_us_p50=_percentile_us(tally.extend_ns, 50),
        observe_us_p50=_percentile_us(tally.observe_ns, 50),
    )


def _percentile_us(times_ns: list[int], percent: float) -> float:
    return float(np.percentile(times_ns, percent)) / 1000 if times_ns else 0.0
