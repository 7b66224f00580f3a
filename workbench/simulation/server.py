"""An engine with continuous batching, one step after another.

Each step takes running requests first, in order of arrival, then admits waiting ones while their
tokens, the requests and the key-value blocks fit; prompts are read in chunks. A running request
that finds no block takes those of the latest one, which then starts over (its emitted tokens join
its prompt). This is how vLLM's scheduler works in its main lines (``v1/core/sched/scheduler.py``),
without prefix caching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..request_times import RequestTimes
from .policy import Policy
from .result import SimulationTotals
from .step_times import StepLoad, StepTimes
from .workload import SimulatedRequest


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits of the engine.

    Attributes:
        max_requests: running at once.
        max_step_tokens: of one step, prompts and drafts included.
        kv_tokens: tokens whose keys and values fit into memory.
        block_size: tokens of a block of them.
    """

    max_requests: int = 256
    max_step_tokens: int = 8192
    kv_tokens: int = 400_000
    block_size: int = 16

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: one is out of its range.
        """
        counts = (self.max_requests, self.max_step_tokens, self.block_size)
        if min(counts) < 1 or self.kv_tokens < self.block_size:
            raise ValueError(
                "expected max_requests, max_step_tokens and block_size >= 1 and kv_tokens of a "
                f"block at least, got {self}"
            )


@dataclass(slots=True, eq=False)
class _Running:
    """A request in the engine.

    Attributes:
        request: what it is.
        computed: tokens in the cache.
        emitted: tokens of the response that are out.
        first_token: when the first one was.
        blocks: that it holds.
        chunk: prompt tokens of the running step; 0 when it decodes.
        nodes: drafted tokens of the running step.
    """

    request: SimulatedRequest
    computed: int = 0
    emitted: int = 0
    first_token: float = 0.0
    blocks: int = 0
    chunk: int = 0
    nodes: int = 0

    @property
    def to_read(self) -> int:
        """Tokens that have to be in the cache before the next one is emitted."""
        return self.request.table.prompt_length + self.emitted

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token is not in the cache."""
        return self.emitted > 0 and self.to_read - self.computed == 1


@dataclass(slots=True)
class Server:
    """Simulates one engine.

    Attributes:
        times: what steps take.
        policy: how many nodes they verify.
        config: the limits.
    """

    times: StepTimes
    policy: Policy
    config: ServerConfig = field(default_factory=ServerConfig)
    _waiting: deque[_Running] = field(default_factory=deque)
    _running: list[_Running] = field(default_factory=list)
    _free_blocks: int = 0

    def run(
        self, requests: Sequence[SimulatedRequest]
    ) -> tuple[list[RequestTimes], SimulationTotals]:
        """Serve requests until all are done.

        Args:
            requests: in order of arrival.

        Returns:
            What became of each, in the order in which they ended, and the sums over all steps.

        Raises:
            ValueError: a request does not fit into the cache, or arrives before the one before it.
        """
        self._check(requests)
        self._waiting.clear()
        self._running.clear()
        self._free_blocks = self.config.kv_tokens // self.config.block_size
        to_come = deque(requests)
        outcomes: list[RequestTimes] = []
        totals = SimulationTotals()
        now = 0.0
        while to_come or self._waiting or self._running:
            if not self._waiting and not self._running:
                now = max(now, to_come[0].arrival)
            while to_come and to_come[0].arrival <= now:
                self._waiting.append(_Running(to_come.popleft()))
            self._schedule(totals)
            draft_seconds = self._draft()
            load = self._load()
            seconds = self.times.seconds(load) + draft_seconds
            now += seconds
            totals.add_step(load, seconds, len(self._waiting))
            outcomes += self._finish(now, totals)
        totals.seconds = now
        return outcomes, totals

    def _check(self, requests: Sequence[SimulatedRequest]) -> None:
        before = 0.0
        for request in requests:
            table = request.table
            needed = table.prompt_length + table.num_tokens + table.max_nodes
            if self._blocks_of(needed) * self.config.block_size > self.config.kv_tokens:
                raise ValueError(
                    f"expected requests of at most {self.config.kv_tokens} tokens, got {needed}"
                )
            if request.arrival < before or table.num_tokens < 1:
                raise ValueError(
                    "expected requests in order of arrival with one token at least, got one at "
                    f"{request.arrival} s with {table.num_tokens}"
                )
            before = request.arrival

    def _schedule(self, totals: SimulationTotals) -> None:
        """Choose what the step computes, drafts left out; preempt and admit."""
        budget = self.config.max_step_tokens
        index = 0
        preempted = False
        while index < len(self._running):
            request = self._running[index]
            wanted = min(request.to_read - request.computed, budget)
            request.nodes = 0
            if not self._allocate(request, request.computed + wanted):
                self._preempt(totals)
                preempted = True
                continue  # the same request again, unless it was itself the latest
            request.chunk = 0 if request.is_decoding else wanted
            budget -= wanted
            index += 1
        while self._waiting and not preempted and budget > 0:
            request = self._waiting[0]
            wanted = min(request.to_read, budget)
            if len(self._running) >= self.config.max_requests:
                break
            if not self._allocate(request, wanted):
                break
            request.chunk = wanted
            budget -= wanted
            self._running.append(self._waiting.popleft())

    def _draft(self) -> float:
        """Give each decoding request its nodes; return the seconds that the drafter takes."""
        decoding = [request for request in self._running if request.is_decoding]
        if not decoding or not self.policy.asks(len(decoding)):
            return 0.0
        load = self._load()
        rows = []
        for request in decoding:
            table = request.request.table
            rows.append(table.probs[request.emitted, : table.num_drafted[request.emitted]])
        room = self.config.max_step_tokens - load.num_tokens
        for request, nodes in zip(decoding, self.policy.nodes(rows, load, self.times), strict=True):
            nodes = min(nodes, room)
            if nodes and self._allocate(request, request.computed + 1 + nodes):
                request.nodes = nodes
                room -= nodes
        return sum(request.request.table.draft_seconds for request in decoding)

    def _load(self) -> StepLoad:
        decoding = [request for request in self._running if request.is_decoding]
        reading = [request for request in self._running if request.chunk]
        return StepLoad(
            num_decoding=len(decoding),
            num_nodes=sum(request.nodes for request in decoding),
            decoding_context=sum(request.computed for request in decoding),
            num_prefilling=len(reading),
            prefill_tokens=sum(request.chunk for request in reading),
            prefill_context=sum(request.computed for request in reading),
        )

    def _finish(self, now: float, totals: SimulationTotals) -> list[RequestTimes]:
        """Emit the step's tokens; return the requests that are done."""
        done: list[RequestTimes] = []
        for request in self._running:
            table = request.request.table
            if request.chunk:
                request.computed += request.chunk
                request.chunk = 0
                if request.computed < request.to_read:
                    continue
                emitted, accepted = 1, 0
            else:
                accepted = int(table.num_accepted[request.emitted, request.nodes])
                emitted = min(accepted + 1, table.num_tokens - request.emitted)
                request.computed += emitted
            if request.emitted == 0:
                request.first_token = now
            request.emitted += emitted
            totals.add_emission(emitted, request.nodes, accepted)
            if request.emitted >= table.num_tokens:
                done.append(
                    RequestTimes(request.request.arrival, request.first_token, now, request.emitted)
                )
                self._free_blocks += request.blocks
                request.blocks = 0
        self._running = [
            request
            for request in self._running
            if request.emitted < request.request.table.num_tokens
        ]
        return done

    def _allocate(self, request: _Running, num_tokens: int) -> bool:
        """Give the request blocks for so many tokens in all, if there are enough."""
        needed = self._blocks_of(num_tokens) - request.blocks
        if needed > self._free_blocks:
            return False
        if needed > 0:
            self._free_blocks -= needed
            request.blocks += needed
        return True

    def _blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)

    def _preempt(self, totals: SimulationTotals) -> None:
        """Send the latest request back to the head of the queue, its cache forgotten."""
        request = self._running.pop()
        self._free_blocks += request.blocks
        request.blocks = request.computed = request.chunk = request.nodes = 0
        self._waiting.appendleft(request)
        totals.preemptions += 1
