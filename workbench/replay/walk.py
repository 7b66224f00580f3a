"""Replay of recorded responses: what a drafter would have saved had a target said exactly this.

The walk is the greedy verifier's: from the root down as long as the tree holds the next recorded
token, then one more token (the recovered or bonus token of that step).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np

from ...drafters.base import Drafter, Feedback, WantsTopIds
from ...drafters.tree import ROOT, CandidateTree, IntArray
from .expectation import expected_acceptance
from .requests import OnTokens, RequestSource, TokenRequest
from .samples import MIN_HIGHLIGHT_TOKENS, Highlight, MemorySample, every, sample_memory
from .tally import MAX_SAMPLES, Counts, Tally

AS_LOGGED = 0
"""As ``concurrency``: requests overlap as the log's times say."""


@dataclass(slots=True)
class _Running:
    """One request under way."""

    number: int
    order: int
    request: TokenRequest
    drafter: Drafter
    num_top_ids: int
    start: float
    pace: float  # seconds a response token
    position: int = 0
    counts: Counts = field(default_factory=lambda: Counts(requests=1))
    accepted: list[int] = field(default_factory=list)

    @property
    def clock(self) -> float:
        """The time at which its last token came."""
        return self.start + self.pace * self.position


class Walk:
    """Replays one lane of requests, which share a drafter when warm.

    Requests overlap as ``concurrency`` says: what a drafter learns from a finished request is there
    for those that begin after its last token. Each request's tokens come at an even pace, whatever
    was drafted, so which requests see which others' responses does not depend on the drafter.
    """

    def __init__(
        self,
        make_drafter: Callable[[], Drafter],
        source: RequestSource,
        tally: Tally,
        *,
        warm: bool = True,
        concurrency: int = 1,
        on_tokens: OnTokens | None = None,
    ) -> None:
        """Set up.

        Args:
            make_drafter: returns a fresh drafter; called once, or once a request when not ``warm``.
            source: of the requests.
            tally: what is counted, with the budget of every step.
            warm: keep the drafter over the requests, so that it learns from earlier ones.
            concurrency: requests at a time, each next one as soon as one ends; or
                :data:`AS_LOGGED`, where every request must have its times.
            on_tokens: told of the response tokens walked.
        """
        self._make_drafter = make_drafter
        self._source = source
        self._tally = tally
        self._warm = warm
        self._concurrency = concurrency
        self._on_tokens = on_tokens
        self._heap: list[tuple[float, int, _Running]] = []
        self._drafter: Drafter | None = None
        self._next: TokenRequest | None = None
        self._walked = 0

    def run(self, numbers: Sequence[int], num_tokens: int) -> None:
        """Replay requests.

        Args:
            numbers: the requests in their order of arrival.
            num_tokens: response tokens of them all, about.

        Raises:
            ValueError: a drafter proposes more than the budget.
        """
        sample_every = every(num_tokens, MAX_SAMPLES)
        next_sample = 0
        samples: list[MemorySample] = []
        started = 0
        clock = 0.0
        while self._heap or started < len(numbers):
            while started < len(numbers):
                if self._next is None:
                    self._next = self._source.read(numbers[started])
                if not self._may_start(self._next):
                    break
                self._start(self._next, numbers[started], started, clock)
                self._next = None
                started += 1
            clock, _, running = heapq.heappop(self._heap)
            if running.position == running.request.response_ids.size:
                self._finish(running)
                continue
            before = running.position
            self._step(running)
            self._walked += running.position - before
            heapq.heappush(self._heap, (running.clock, running.order, running))
            if self._walked >= next_sample:
                samples.append(sample_memory(self._walked, running.drafter))
                next_sample += sample_every
        self._tally.keep_memory(samples)
        self._tally.settle()

    def _may_start(self, request: TokenRequest) -> bool:
        if self._concurrency != AS_LOGGED:
            return len(self._heap) < self._concurrency
        # Ties go to the running requests, so that a request that follows one has its response.
        return not self._heap or request.arrival < self._heap[0][0]

    def _start(self, request: TokenRequest, number: int, order: int, clock: float) -> None:
        if self._drafter is None or not self._warm:
            self._drafter = self._make_drafter()
        pace = 1.0
        if self._concurrency == AS_LOGGED:
            clock = request.arrival
            pace = max(request.finish - request.arrival, 0) / max(request.response_ids.size, 1)
        drafter = self._drafter
        # Asked once: a look at a protocol takes longer than a step of drafting.
        k = drafter.num_top_ids if isinstance(drafter, WantsTopIds) else 0
        running = _Running(number, order, request, drafter, k, clock, pace)
        running.drafter.start(order, request.prompt_ids)
        heapq.heappush(self._heap, (clock, order, running))

    def _step(self, running: _Running) -> None:
        drafter, request_id, tally = running.drafter, running.order, self._tally
        response = running.request.response_ids
        position = running.position
        started = perf_counter_ns()
        (tree,) = drafter.propose([request_id], tally.max_nodes, tally.max_nodes)
        tally.propose.add(perf_counter_ns() - started)
        if tree.num_nodes > tally.max_nodes:
            raise ValueError(
                f"expected at most {tally.max_nodes} nodes from the drafter {drafter.name}, "
                f"got {tree.num_nodes}"
            )
        path, has_more = follow(tree, response[position : position + tree.num_nodes].tolist())
        emitted = response[position : position + len(path) + 1]
        feedback = _feedback(running, tree, path, emitted)
        started = perf_counter_ns()
        drafter.observe(request_id, tree, feedback)
        observed = perf_counter_ns()
        drafter.extend(request_id, emitted)
        tally.extend.add(perf_counter_ns() - observed)
        tally.observe.add(observed - started)
        size = int(emitted.size)
        has_more = has_more and size > len(path)
        tally.count_step(tree, path, has_more, size, int(running.request.matches[position]))
        if running.request.alternatives is not None:
            expected_acceptance(
                tree, path, running.request.alternatives, position, size, tally.sampling
            )
        running.position += size
        running.accepted.append(len(path))
        running.counts.steps += 1
        running.counts.tokens += size
        running.counts.drafted += tree.num_nodes
        running.counts.accepted += len(path)

    def _finish(self, running: _Running) -> None:
        running.drafter.stop(running.order)
        request = running.request
        highlight = None
        if request.response_ids.size >= MIN_HIGHLIGHT_TOKENS:
            highlight = Highlight(
                running.number, request.place, running.counts.tokens, running.accepted
            )
        self._tally.count_request(
            running.counts, int(request.prompt_ids.size), request.workload, highlight
        )
        if self._on_tokens is not None:
            self._on_tokens(running.counts.tokens)


def follow(tree: CandidateTree, target_ids: list[int]) -> tuple[list[int], bool]:
    """Return the nodes of the longest path that spells the start of ``target_ids``.

    Args:
        tree: distinct siblings, parent before child.
        target_ids: what the target emits next, as far as the tree may reach.

    Returns:
        The nodes from the root's child down, and whether any node hangs below the last of them.
    """
    path: list[int] = []
    tip, has_more = ROOT, False
    edges = zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)
    # One pass is enough: a child stands after its parent.
    for node, (parent, token) in enumerate(edges):
        if parent == tip:
            has_more = True
            if len(path) < len(target_ids) and token == target_ids[len(path)]:
                path.append(node)
                tip, has_more = node, False
    return path, has_more


def _feedback(
    running: _Running, tree: CandidateTree, path: list[int], emitted: IntArray
) -> Feedback:
    """Return what is known of the target: the recorded token after the root and the accepted nodes.

    Where the log has log-probabilities and the drafter asks for the most likely tokens, those too.
    """
    num_rows = tree.num_nodes + 1
    choices = np.full(num_rows, -1, np.int32)
    asked = [0, *(node + 1 for node in path)][: emitted.size]
    choices[asked] = emitted
    accepted = np.array(path, np.int32)
    logged, k = running.request.alternatives, running.num_top_ids
    if logged is None or k == 0:
        return Feedback(emitted, accepted, choices)
    top_ids = np.full((num_rows, k), -1, np.int32)
    top_logprobs = np.full((num_rows, k), -np.inf, np.float32)
    for depth, row in enumerate(asked):
        best = sorted(logged.row(running.position + depth).items(), key=lambda pair: -pair[1])[:k]
        top_ids[row, : len(best)] = [token for token, _ in best]
        top_logprobs[row, : len(best)] = np.log([max(prob, 1e-30) for _, prob in best])
    return Feedback(emitted, accepted, choices, top_ids, top_logprobs)


def has_times(request: TokenRequest) -> bool:
    """Return whether a request can be replayed as logged."""
    return math.isfinite(request.arrival) and math.isfinite(request.finish)
