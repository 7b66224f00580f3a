"""The suffix drafter: exact counts of what followed every context of the last tokens.

Each request has a depth-bounded suffix automaton over its own tokens; each namespace has a ring of
them over its earlier responses. Why an automaton, and not a compressed suffix tree or a suffix
array, by measurement on text, code and edits with a 49,152-token vocabulary:

- Memory: 0.25 to 0.7 branch states and 1.0 to 1.14 edges a token, since the states of unique text
  need neither edges nor counts: 43 to 55 bytes a token, half of the bound of 110.
- Counts are exact at once for every context up to the bound on the depth; Ukkonen's tree knows
  nothing of its implicit suffixes until they end. An append touches 2 to 5 contexts, not the 64
  that a tree with one active node a depth must move.
- The state behind the last token is the longest match, its suffix links are all shorter contexts
  in which something else followed, and its edges lead to the states of its continuations. So a
  tree of candidates is read off without a search.

Nothing can be removed from an automaton; the ring of segments makes eviction O(1) all the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import _suffix_kernels as kernels
from . import _suffix_tree_kernels as tree_kernels
from . import _suffix_trust_kernels as trust_kernels
from .arena import Arena
from .base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget
from .snapshot import SnapshotError, read_snapshot, write_snapshot
from .suffix_segments import Segments, extent_size, own_tokens, table_caps
from .suffix_trust import trust_table
from .tree import CandidateTree, IntArray

SNAPSHOT_KIND = "suffix"

LongArray = npt.NDArray[np.int64]
DoubleArray = npt.NDArray[np.float64]


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
        slice_tokens: tokens of long prompts that one call indexes at most.
        shared_slice_tokens: tokens of finished texts that one call indexes at most.
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
    shared_slice_tokens: int = 256

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
class _Request:
    """One running request.

    Attributes:
        row: its row in the cursors.
        namespace: its namespace.
        segments: its namespace's shared part.
        prompt_length: tokens before the response.
        pending: tokens that its automaton does not hold yet.
        num_texts: how many texts the shared part held when it was last matched from scratch.
    """

    row: int
    namespace: str
    segments: Segments
    prompt_length: int
    pending: IntArray
    num_texts: int


class SuffixDrafter:
    """Drafts from exact counts over the request's own text and its namespace's earlier texts.

    Long texts are indexed in slices, a slice a call, so that no step waits for a long prompt; what
    is not indexed yet is not found. Any thread may call; calls take turns.
    """

    def __init__(self, config: SuffixConfig | None = None) -> None:
        """Reserve the arena and compile the kernels.

        Args:
            config: the settings; the defaults when absent.
        """
        self.config = SuffixConfig() if config is None else config
        kernels.compile_kernels()
        tree_kernels.compile_kernels()
        trust_kernels.compile_kernels()
        self._lock = threading.Lock()
        self._arena = Arena(self.config.max_bytes)
        self._trust, self._groups = trust_table(self.config.max_context)
        self._requests: dict[RequestId, _Request] = {}
        self._namespaces: dict[str, Segments] = {}
        self._cursors = np.zeros((8, 1 + self.config.num_segments, 3), np.int64)
        self._free_rows = list(range(len(self._cursors)))[::-1]
        self._clock = 0
        self._draw = 1
        self._scratch = self._new_scratch(16)

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "suffix"

    @property
    def num_bytes(self) -> int:
        """Bytes that requests and namespaces take of the arena."""
        return self._arena.num_used

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request; one of the same id that still runs is stopped first.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        prompt = as_token_ids(prompt_ids)
        with self._lock:
            self._stop(request_id)
            segments = self._enter(namespace)
            request = _Request(
                self._new_row(), namespace, segments, prompt.size, prompt.copy(), segments.num_texts
            )
            self._requests[request_id] = request
            cursor = self._cursors[request.row]
            cursor[:] = (-1, kernels.ROOT_STATE, 0)
            cursor[1:, 0] = segments.slots
            segments.rows.add(request.row)
            self._follow_shared(request, prompt)
            self._index(request, self.config.slice_tokens)
            segments.ingest(self.config.shared_slice_tokens)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        tokens = as_token_ids(token_ids)
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return
            if request.pending.size == 0 and 0 < tokens.size <= self.config.slice_tokens:
                self._extend_now(request, tokens)
            else:
                self._follow_shared(request, tokens)
                request.pending = np.concatenate((request.pending, tokens))
                self._index(request, self.config.slice_tokens)
            request.segments.ingest(self.config.shared_slice_tokens)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        batch = len(request_ids)
        if batch == 0 or max_nodes == 0 or max_depth == 0:
            return [CandidateTree.empty()] * batch
        rows = np.full(batch, -1, np.int64)
        counts = np.empty(batch, np.int64)
        nodes = np.empty((batch, 2, max_nodes), np.int32)
        probs = np.empty((batch, max_nodes), np.float32)
        with self._lock:
            budget = self.config.slice_tokens
            for index, request_id in enumerate(request_ids):
                request = self._requests.get(request_id)
                if request is not None:
                    rows[index] = request.row
                    if request.pending.size and budget > 0:
                        budget -= self._index(request, budget)
                    if request.num_texts != request.segments.num_texts:
                        self._match_shared(request)
            if len(self._scratch[1]) < (max_nodes + 1) * tree_kernels.MAX_CHILDREN:
                self._scratch = self._new_scratch(max_nodes)
            tree_kernels.propose(
                self._arena.array, self._cursors, rows, max_depth, self.config.min_prob,
                self._trust, self._groups, *self._scratch, nodes, probs, counts,
            )  # fmt: skip
        return [
            CandidateTree(nodes[i, 0, :n], nodes[i, 1, :n], probs[i, :n])
            for i, n in enumerate(counts.tolist())
        ]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the committed tokens, which ``extend`` brings, say all that is used."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Nothing can be taken out of an automaton, so the text that stays is indexed anew.
        """
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return
            text = self._text(request, 0)
            if length >= text.size:
                return
            request.pending = text[: max(length, 0)]
            request.prompt_length = min(request.prompt_length, request.pending.size)
            cursor = self._cursors[request.row]
            base = int(cursor[0, 0])
            if base >= 0:
                caps = self._arena.array[base : base + 5].astype(np.int64)
                kernels.open_automaton(self._arena.array, base, caps)
            cursor[0, 1:] = (kernels.ROOT_STATE, 0)
            self._match_shared(request)
            self._index(request, self.config.slice_tokens)

    def stop(self, request_id: RequestId) -> None:
        """End the request, release what it held and queue its response for its namespace."""
        with self._lock:
            self._stop(request_id)

    def save(self, namespace: str, path: str | os.PathLike[str]) -> None:
        """Write a namespace's finished texts to a file, in place of ``path``, or change nothing.

        The file holds tokens, 4 bytes each; the automata are built again from them. So a file that
        somebody made up can be useless but not harmful.

        Args:
            namespace: its name; one that nobody used has no texts, which is saved too.
            path: the file; its folder must exist.

        Raises:
            OSError: the file cannot be written; what was there before stays.
        """
        with self._lock:
            segments = self._namespaces.get(namespace)
            texts = [] if segments is None else segments.texts()
        tokens = np.concatenate(texts) if texts else np.zeros(0, np.int32)
        write_snapshot(path, SNAPSHOT_KIND, {"tokens": tokens}, {})

    def load(self, path: str | os.PathLike[str], namespace: str = DEFAULT_NAMESPACE) -> int:
        """Add the texts of a file to a namespace, as its latest; return the number of tokens.

        Indexing takes about 0.3 microseconds a token, in slices between which others may draft.

        Raises:
            SnapshotError: the file is not a whole snapshot of a suffix pool; it is named, and
                nothing is added.
            OSError: the file cannot be read.
        """
        tokens = read_snapshot(path, SNAPSHOT_KIND).arrays.get("tokens")
        if tokens is None or tokens.ndim != 1 or tokens.dtype != np.int32:
            raise SnapshotError(f"expected a one-dimensional int32 array of tokens: {path}")
        with self._lock:
            segments = self._enter(namespace)
            segments.push(tokens)
        while segments.num_waiting:
            with self._lock:
                segments.ingest(self.config.slice_tokens)
        return int(tokens.size)

    def _stop(self, request_id: RequestId) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        start = 0 if self.config.share_prompts else request.prompt_length
        stop = None if self.config.share_responses else request.prompt_length - start
        if stop is None or stop > 0:
            request.segments.push(self._text(request, start)[:stop])
        base = int(self._cursors[request.row, 0, 0])
        if base >= 0:
            self._arena.release(base)
        self._free_rows.append(request.row)
        request.segments.rows.discard(request.row)
        request.segments.ingest(self.config.shared_slice_tokens)
        self._forget_if_empty(request.namespace)

    def _extend_now(self, request: _Request, tokens: IntArray) -> None:
        """Append a step's tokens to a request without pending ones, and learn from one of them.

        One token a step, at a random place, keeps the learning cheap and its sample fair.
        """
        array, cursor = self._arena.array, self._cursors[request.row]
        self._draw = (self._draw * 1103515245 + 12345) & 0x7FFFFFFF
        place = (self._draw >> 8) % tokens.size
        reached = kernels.extend(array, cursor, tokens, 0, place) if place else 0
        if reached == place:
            rate = self.config.learning_rate * tokens.size
            trust_kernels.learn(array, cursor, int(tokens[place]), rate, self._trust, self._groups)
            reached = kernels.extend(array, cursor, tokens, place, tokens.size)
        if reached < tokens.size:
            self._follow_shared(request, tokens[reached:])
            request.pending = tokens[reached:].copy()
            self._index(request, self.config.slice_tokens)

    def _text(self, request: _Request, start: int) -> IntArray:
        """Return the request's tokens from ``start`` on; negative ones are -1."""
        base = int(self._cursors[request.row, 0, 0])
        if base < 0:
            return request.pending[start:]
        array = self._arena.array
        indexed = int(array[base + kernels.NUM_PREFIX]) - 1
        if start >= indexed:
            return request.pending[start - indexed :]
        text = own_tokens(array, base, start)
        return np.concatenate((text, request.pending)) if request.pending.size else text

    def _match_shared(self, request: _Request) -> None:
        """Find the request's place in the shared segments anew, since these hold new texts."""
        request.num_texts = request.segments.num_texts
        self._cursors[request.row, 1:, 1:] = (kernels.ROOT_STATE, 0)
        base = int(self._cursors[request.row, 0, 0])
        indexed = 0 if base < 0 else int(self._arena.array[base + kernels.NUM_PREFIX]) - 1
        start = indexed + request.pending.size - self.config.max_context
        self._follow_shared(request, self._text(request, max(start, 0)))

    def _follow_shared(self, request: _Request, tokens: IntArray) -> None:
        """Move the request's places in the shared segments past ``tokens``."""
        tail = tokens[-self.config.max_context :]
        cursor = self._cursors[request.row]
        kernels.follow(self._arena.array, cursor, 1, len(cursor), tail)

    def _index(self, request: _Request, max_tokens: int) -> int:
        """Append up to ``max_tokens`` pending tokens to the request's automaton; return how many.

        Where some stay pending, the request stands at the end of the longest match of their tail.
        """
        pending, cursor = request.pending, self._cursors[request.row]
        if cursor[0, 0] < 0 and not self._open(request):
            return 0
        stop = min(pending.size, max_tokens)
        reached = kernels.catch_up(self._arena.array, cursor, pending, 0, stop)
        while reached < stop and self._grow(request):
            reached = kernels.catch_up(self._arena.array, cursor, pending, reached, stop)
        request.pending = pending[reached:]
        if request.pending.size:
            tail = request.pending[-self.config.max_context :]
            cursor[0, 1:] = (kernels.ROOT_STATE, 0)
            kernels.follow(self._arena.array, cursor, 0, 1, tail)
        return reached

    def _open(self, request: _Request) -> bool:
        """Give the request an automaton; return whether there was room."""
        num_tokens = request.pending.size + request.pending.size // 4 + 1024
        caps = table_caps(num_tokens, self.config.max_context)
        base = self._reserve(extent_size(caps))
        if base is None:
            return False
        kernels.open_automaton(self._arena.array, base, caps)
        self._cursors[request.row, 0] = (base, kernels.ROOT_STATE, 0)
        return True

    def _grow(self, request: _Request) -> bool:
        """Move the request's automaton to tables twice as large; return whether there was room."""
        base = int(self._cursors[request.row, 0, 0])
        num_tokens = 2 * int(self._arena.array[base + kernels.PREFIX_CAP])
        caps = table_caps(num_tokens, self.config.max_context)
        new_base = self._reserve(extent_size(caps))
        if new_base is None:
            return False
        kernels.grow_automaton(self._arena.array, base, new_base, caps)
        self._arena.release(base)
        self._cursors[request.row, 0, 0] = new_base
        return True

    def _reserve(self, size: int) -> int | None:
        """Return an extent, if need be in place of the oldest texts of idle namespaces."""
        while (base := self._arena.allocate(size)) is None:
            holders = [name for name, segments in self._namespaces.items() if segments.num_segments]
            if not holders:
                return None
            victim = min(holders, key=lambda name: self._namespaces[name].last_used)
            self._namespaces[victim].drop_oldest()
            self._forget_if_empty(victim)
        return base

    def _enter(self, namespace: str) -> Segments:
        """Return the shared part of a namespace and mark it as used."""
        segments = self._namespaces.get(namespace)
        if segments is None:
            segments = self._namespaces[namespace] = Segments(
                self._arena, self.config.num_segments, self.config.max_namespace_bytes,
                self.config.max_context, self._reserve, self._moved,
            )  # fmt: skip
        self._clock += 1
        segments.last_used = self._clock
        return segments

    def _forget_if_empty(self, namespace: str) -> None:
        segments = self._namespaces[namespace]
        if not (segments.rows or segments.num_segments or segments.num_waiting):
            del self._namespaces[namespace]

    def _moved(self, segments: Segments, slot: int) -> None:
        """Set the namespace's requests to the beginning of a slot that changed hands."""
        place = (segments.slots[slot], kernels.ROOT_STATE, 0)
        self._cursors[list(segments.rows), 1 + slot] = place

    def _new_row(self) -> int:
        if not self._free_rows:
            rows = len(self._cursors)
            self._cursors = np.concatenate((self._cursors, np.zeros_like(self._cursors)))
            self._free_rows = list(range(rows, 2 * rows))[::-1]
        return self._free_rows.pop()

    def _new_scratch(self, max_nodes: int) -> tuple[LongArray, DoubleArray]:
        """Return the candidates' columns and probabilities for trees of ``max_nodes``."""
        size = (max_nodes + 1) * tree_kernels.MAX_CHILDREN
        columns = tree_kernels.STATES + 2 * (1 + self.config.num_segments)
        return np.empty((size, columns), np.int64), np.empty(size, np.float64)
