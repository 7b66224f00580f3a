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

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget
from ..snapshot import SnapshotError, read_snapshot, write_snapshot
from ..tree import CandidateTree, IntArray
from ..tree_batch import TreeBatch
from . import _automaton_kernels as kernels
from . import _tree_kernels as tree_kernels
from . import _trust_kernels as trust_kernels
from .store import StoredRequest, SuffixConfig, SuffixStore
from .trust import trust_table

SNAPSHOT_KIND = "suffix"
MAX_LEARNING_TOKENS = 32
"""One token speaks for a whole step when the drafter learns, but not for more than these."""

_PACE = 8  # tokens of prompts that are indexed beside each token that comes behind a waiting one
_LEAST_SLICE = 256  # each slice copies what waits

LongArray = npt.NDArray[np.int64]
DoubleArray = npt.NDArray[np.float64]


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
        self._propose = tree_kernels.compile_kernels()
        self._take_in = trust_kernels.compile_kernels()
        self._lock = threading.Lock()
        self._store = SuffixStore(self.config)
        self._trust, self._groups = trust_table(self.config.max_context)
        self._flat_trust = self._trust.reshape(-1)  # the same, as kernels take it
        self._requests: dict[RequestId, StoredRequest] = {}
        self._draw = 1
        self._room = self.config.slice_tokens  # tokens of prompts that this step may still index
        self._most_nodes = 16
        self._scratch = self._new_scratch(self._most_nodes)

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "suffix"

    @property
    def num_bytes(self) -> int:
        """Bytes that requests and namespaces take of the arena."""
        return self._store.arena.num_used

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
            self._requests[request_id], indexed = self._store.begin(namespace, prompt, self._room)
            self._room -= indexed

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
                # Beside the slice of a step, so that the rest shrinks even where nobody drafts.
                self._room += _PACE * tokens.size
                room = self._room if self._room >= _LEAST_SLICE else 0
                self._room -= self._store.append(request, tokens, room)
            # Faster than texts come in, so that the queue empties whatever a step brings.
            if request.segments.num_waiting:
                request.segments.ingest(max(self.config.shared_slice_tokens, 2 * tokens.size))

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        if not request_ids or max_nodes <= 0 or max_depth <= 0:
            check_budget(max_nodes, max_depth)
            return [CandidateTree.empty()] * len(request_ids)
        batch = TreeBatch.with_room(len(request_ids), max_nodes)
        self.draft_batch(request_ids, max_depth, batch)
        return batch.trees()

    def draft_batch(
        self, request_ids: Sequence[RequestId], max_depth: int, batch: TreeBatch
    ) -> None:
        """Write one tree a request into ``batch``, as :meth:`propose` returns them.

        Args:
            request_ids: at least one.
            max_depth: the deepest level, at least 1.
            batch: overwritten; its room, at least one node a tree, is the most that a tree takes.
        """
        rows = [-1] * len(request_ids)
        with self._lock:
            self._room = self.config.slice_tokens
            for index, request_id in enumerate(request_ids):
                request = self._requests.get(request_id)
                if request is not None:
                    rows[index] = request.row
                    if request.pending.size and self._room > 0:
                        self._room -= self._store.index(request, self._room)
                    if request.num_texts != request.segments.num_texts:
                        self._store.match_shared(request)
            self._draft(self._store.cursors, np.array(rows, np.int64), max_depth, batch)

    def propose_after(
        self, request_id: RequestId, next_ids: Sequence[int], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return what would follow each of some tokens, were it the next; nothing else changes.

        Args:
            request_id: a started request; an unknown one has empty trees.
            next_ids: tokens that may follow the committed ones, each on its own.
            max_nodes: most nodes of a tree, the given token not counted.
            max_depth: deepest node, counted from the given token.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        num_tokens = len(next_ids)
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or num_tokens == 0 or max_nodes == 0 or max_depth == 0:
                return [CandidateTree.empty()] * num_tokens
            array = self._store.arena.array
            cursors = np.repeat(self._store.cursors[request.row][None], num_tokens, 0)
            tokens = as_token_ids(next_ids)
            for index, cursor in enumerate(cursors):
                kernels.follow(array, cursor, 0, len(cursor), tokens[index : index + 1])
            batch = TreeBatch.with_room(num_tokens, max_nodes)
            self._draft(cursors, np.arange(num_tokens, dtype=np.int64), max_depth, batch)
            return batch.trees()

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the committed tokens, which ``extend`` brings, say all that is used."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Nothing can be taken out of an automaton, so the text that stays is indexed anew.
        """
        with self._lock:
            request = self._requests.get(request_id)
            if request is not None:
                self._store.truncate(request, length)

    def stop(self, request_id: RequestId) -> None:
        """End the request, release what it held and queue its response for its namespace."""
        with self._lock:
            self._stop(request_id)

    def _stop(self, request_id: RequestId) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._store.end(request)

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
            segments = self._store.namespaces.get(namespace)
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
            segments = self._store.enter(namespace)
            segments.push(tokens)
        while segments.num_waiting:
            with self._lock:
                segments.ingest(self.config.slice_tokens)
        with self._lock:
            self._store.forget_if_empty(namespace)
        return int(tokens.size)

    def _extend_now(self, request: StoredRequest, tokens: IntArray) -> None:
        """Append a step's tokens to a request without pending ones, and learn from one of them.

        One token a step, at a random place, keeps the learning cheap and its sample fair.
        """
        array, cursors = self._store.arena.array, self._store.cursors
        self._draw = (self._draw * 1103515245 + 12345) & 0x7FFFFFFF
        place = (self._draw >> 8) % tokens.size
        rate = self.config.learning_rate * min(tokens.size, MAX_LEARNING_TOKENS)
        reached = self._take_in(
            array, cursors, request.row, tokens, place, rate, self._trust, self._groups
        )
        if reached < tokens.size:
            self._store.append(request, tokens[reached:], tokens.size)

    def _draft(self, cursors: LongArray, rows: LongArray, max_depth: int, batch: TreeBatch) -> None:
        """Write the tree of each of the rows of ``cursors``, an empty one for -1."""
        max_nodes = batch.probs.shape[1]
        if max_nodes > self._most_nodes:
            self._most_nodes, self._scratch = max_nodes, self._new_scratch(max_nodes)
        self._propose(
            self._store.arena.array, cursors, rows, max_depth, self.config.min_prob,
            self._flat_trust, self._groups, *self._scratch, batch.nodes, batch.probs,
        )  # fmt: skip

    def _new_scratch(self, max_nodes: int) -> tuple[IntArray, DoubleArray]:
        """Return the kernels' room to work in for trees of ``max_nodes``."""
        num_ints, num_floats = tree_kernels.room_for(1 + self.config.num_segments, max_nodes)
        return np.zeros(num_ints, np.int32), np.zeros(num_floats)
