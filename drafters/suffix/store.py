"""What the suffix drafter keeps: running requests' automata and namespaces' segments.

Not safe to call from several threads at once; the drafter takes turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..tree import IntArray
from . import _automaton_kernels as kernels
from .arena import Arena
from .segments import Segments, extent_size, own_tokens, table_caps

LongArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """Settings of :class:`SuffixDrafter`.

    Attributes:
        max_context: the longest context that is told apart, in tokens.
        min_prob: path probability below which nothing is proposed.
        learning_rate: step, in logits a token, with which the trust in contexts learns.
        share_responses: whether a namespace's later requests search a finished response.
        share_prompts: whether they search its prompt too.
        max_bytes: the most that all requests and namespaces together take.
        max_namespace_bytes: the most that a namespace's finished texts take; oldest out.
        num_segments: in how many parts they are dropped.
        slice_tokens: tokens of long prompts that one step indexes at most, for all requests
            together.
        shared_slice_tokens: tokens of finished texts that one call indexes at most, unless it
            brings more than half as many itself.
    """

    max_context: int = 64
    min_prob: float = 0.005
    learning_rate: float = 0.05
    share_responses: bool = True
    share_prompts: bool = False
    max_bytes: int = 1 << 30
    max_namespace_bytes: int = 1 << 28
    num_segments: int = 4
    slice_tokens: int = 2048
    shared_slice_tokens: int = 128

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not 1 <= self.max_context <= 1024:
            raise ValueError(f"expected max_context within 1..1024, got {self.max_context}")
        if not 0 < self.min_prob < 1:
            raise ValueError(f"expected min_prob within (0, 1), got {self.min_prob}")
        if not 0 <= self.learning_rate <= 1:
            raise ValueError(f"expected learning_rate within [0, 1], got {self.learning_rate}")
        if not 1 <= self.num_segments <= 8:
            raise ValueError(f"expected num_segments within 1..8, got {self.num_segments}")
        for name in ("slice_tokens", "shared_slice_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")
        least = self.num_segments << 16
        if not least <= self.max_namespace_bytes <= self.max_bytes < 1 << 33:
            raise ValueError(
                f"expected {least} <= max_namespace_bytes <= max_bytes < 2**33, "
                f"got {self.max_namespace_bytes} and {self.max_bytes}"
            )


@dataclass(slots=True)
class StoredRequest:
    """One running request.

    Attributes:
        row: its row in the cursors.
        namespace: its namespace.
        segments: its namespace's shared part.
        prompt_length: tokens before the response.
        pending: tokens that its automaton does not hold yet.
        num_texts: how many texts the shared part held when it was last matched from scratch.
        later: what comes behind ``pending``, which is not empty then: a long text that waits is not
            copied at each step.
    """

    row: int
    namespace: str
    segments: Segments
    prompt_length: int
    pending: IntArray
    num_texts: int
    later: list[IntArray] = field(default_factory=list)

    def gather(self) -> None:
        """Put all that waits into ``pending``."""
        if self.later:
            self.pending = np.concatenate((self.pending, *self.later))
            self.later.clear()


class SuffixStore:
    """Requests and namespaces in one arena.

    Attributes:
        arena: the memory of all automata.
        cursors: ``(num_rows, num_sources, 3)`` int64: where each request stands in its own text
            and in each segment of its namespace: extent (-1 where there is none), state, matched
            length.
        namespaces: the shared parts by name.
    """

    def __init__(self, config: SuffixConfig) -> None:
        """Reserve the arena.

        Args:
            config: the drafter's settings.
        """
        self.arena = Arena(config.max_bytes)
        self.cursors: LongArray = np.zeros((8, 1 + config.num_segments, 3), np.int64)
        self.namespaces: dict[str, Segments] = {}
        self._config = config
        self._free_rows = list(range(len(self.cursors)))[::-1]
        self._clock = 0

    def begin(self, namespace: str, prompt: IntArray, max_tokens: int) -> tuple[StoredRequest, int]:
        """Begin a request and index up to ``max_tokens`` of its prompt; return how many, too."""
        segments = self.enter(namespace)
        row = self._new_row()
        request = StoredRequest(
            row, namespace, segments, prompt.size, prompt.copy(), segments.num_texts
        )
        self.cursors[row] = (-1, kernels.ROOT_STATE, 0)
        self.cursors[row, 1:, 0] = segments.slots
        segments.rows.add(row)
        self.follow_shared(request, prompt)
        indexed = self.index(request, max_tokens) if max_tokens > 0 else 0
        segments.ingest(self._config.shared_slice_tokens)
        return request, indexed

    def append(self, request: StoredRequest, tokens: IntArray, max_tokens: int) -> int:
        """Queue tokens of a request and index up to ``max_tokens``; return how many."""
        self.follow_shared(request, tokens)
        request.later.append(tokens.copy())
        if max_tokens > 0 or request.pending.size == 0:
            return self.index(request, max_tokens)
        kernels.follow(self.arena.array, self.cursors[request.row], 0, 1, tokens)
        return 0

    def truncate(self, request: StoredRequest, length: int) -> None:
        """Forget a request's tokens from ``length`` on, and index those that stay anew."""
        text = self._text(request, 0)
        if length >= text.size:
            return
        request.pending = text[: max(length, 0)]
        request.prompt_length = min(request.prompt_length, request.pending.size)
        cursor = self.cursors[request.row]
        base = int(cursor[0, 0])
        if base >= 0:
            caps = self.arena.array[base : base + 5].astype(np.int64)
            kernels.open_automaton(self.arena.array, base, caps)
        cursor[0, 1:] = (kernels.ROOT_STATE, 0)
        self.match_shared(request)
        self.index(request, self._config.slice_tokens)

    def end(self, request: StoredRequest) -> None:
        """Release what a request held and queue what its namespace may see of it."""
        start = 0 if self._config.share_prompts else request.prompt_length
        stop = None if self._config.share_responses else request.prompt_length - start
        if stop is None or stop > 0:
            request.segments.push(self._text(request, start)[:stop])
        base = int(self.cursors[request.row, 0, 0])
        if base >= 0:
            self.arena.release(base)
        self._free_rows.append(request.row)
        request.segments.rows.discard(request.row)
        request.segments.ingest(self._config.shared_slice_tokens)
        self.forget_if_empty(request.namespace)

    def match_shared(self, request: StoredRequest) -> None:
        """Find the request's place in the shared segments anew, since these hold new texts."""
        request.gather()
        request.num_texts = request.segments.num_texts
        self.cursors[request.row, 1:, 1:] = (kernels.ROOT_STATE, 0)
        base = int(self.cursors[request.row, 0, 0])
        indexed = 0 if base < 0 else int(self.arena.array[base + kernels.NUM_PREFIX]) - 1
        start = indexed + request.pending.size - self._config.max_context
        self.follow_shared(request, self._text(request, max(start, 0)))

    def follow_shared(self, request: StoredRequest, tokens: IntArray) -> None:
        """Move the request's places in the shared segments past ``tokens``."""
        tail = tokens[-self._config.max_context :]
        cursor = self.cursors[request.row]
        kernels.follow(self.arena.array, cursor, 1, len(cursor), tail)

    def index(self, request: StoredRequest, max_tokens: int) -> int:
        """Append up to ``max_tokens`` pending tokens to the request's automaton; return how many.

        Where some stay pending, the request stands at the end of the longest match of their tail.
        """
        request.gather()
        pending, cursor = request.pending, self.cursors[request.row]
        if cursor[0, 0] < 0 and not self._open(request):
            return 0
        stop = min(pending.size, max_tokens)
        reached = kernels.catch_up(self.arena.array, cursor, pending, 0, stop)
        while reached < stop and self._grow(request):
            reached = kernels.catch_up(self.arena.array, cursor, pending, reached, stop)
        request.pending = pending[reached:]
        if request.pending.size:
            tail = request.pending[-self._config.max_context :]
            cursor[0, 1:] = (kernels.ROOT_STATE, 0)
            kernels.follow(self.arena.array, cursor, 0, 1, tail)
        return reached

    def enter(self, namespace: str) -> Segments:
        """Return the shared part of a namespace and mark it as used."""
        segments = self.namespaces.get(namespace)
        if segments is None:
            segments = self.namespaces[namespace] = Segments(
                self.arena, self._config.num_segments, self._config.max_namespace_bytes,
                self._config.max_context, self._reserve, self._moved,
            )  # fmt: skip
        self._clock += 1
        segments.last_used = self._clock
        return segments

    def _text(self, request: StoredRequest, start: int) -> IntArray:
        """Return the request's tokens from ``start`` on; negative ones are -1."""
        request.gather()
        base = int(self.cursors[request.row, 0, 0])
        if base < 0:
            return request.pending[start:]
        array = self.arena.array
        indexed = int(array[base + kernels.NUM_PREFIX]) - 1
        if start >= indexed:
            return request.pending[start - indexed :]
        text = own_tokens(array, base, start)
        return np.concatenate((text, request.pending)) if request.pending.size else text

    def _open(self, request: StoredRequest) -> bool:
        """Give the request an automaton; return whether there was room."""
        num_tokens = request.pending.size + request.pending.size // 4 + 1024
        caps = table_caps(num_tokens, self._config.max_context)
        base = self._reserve(extent_size(caps))
        if base is None:
            return False
        kernels.open_automaton(self.arena.array, base, caps)
        self.cursors[request.row, 0] = (base, kernels.ROOT_STATE, 0)
        return True

    def _grow(self, request: StoredRequest) -> bool:
        """Move the request's automaton to tables twice as large; return whether there was room."""
        base = int(self.cursors[request.row, 0, 0])
        num_tokens = 2 * int(self.arena.array[base + kernels.PREFIX_CAP])
        caps = table_caps(num_tokens, self._config.max_context)
        new_base = self._reserve(extent_size(caps))
        if new_base is None:
            return False
        kernels.grow_automaton(self.arena.array, base, new_base, caps)
        self.arena.release(base)
        self.cursors[request.row, 0, 0] = new_base
        return True

    def _reserve(self, size: int) -> int | None:
        """Return an extent, if need be in place of the oldest texts of idle namespaces."""
        while (base := self.arena.allocate(size)) is None:
            holders = [name for name, segments in self.namespaces.items() if segments.num_segments]
            if not holders:
                return None
            victim = min(holders, key=lambda name: self.namespaces[name].last_used)
            self.namespaces[victim].drop_oldest()
            self.forget_if_empty(victim)
        return base

    def forget_if_empty(self, namespace: str) -> None:
        """Drop a namespace without requests and texts."""
        segments = self.namespaces.get(namespace)
        if segments and not (segments.rows or segments.num_segments or segments.num_waiting):
            del self.namespaces[namespace]

    def _moved(self, segments: Segments, slot: int) -> None:
        """Set the namespace's requests to the beginning of a slot that changed hands."""
        place = (segments.slots[slot], kernels.ROOT_STATE, 0)
        self.cursors[list(segments.rows), 1 + slot] = place

    def _new_row(self) -> int:
        if not self._free_rows:
            rows = len(self.cursors)
            self.cursors = np.concatenate((self.cursors, np.zeros_like(self.cursors)))
            self._free_rows = list(range(rows, 2 * rows))[::-1]
        return self._free_rows.pop()
