"""The corpus drafter: retrieval from a pool file of a repository or a collection of documents."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget, check_length
from ..calibration import Calibration
from ..tree import CandidateTree, IntArray
from . import _search_kernels as finder
from . import _tree_kernels as grower
from .index import MAX_CONTEXT
from .pool_file import open_pool

__all__ = ["CorpusConfig", "CorpusDrafter"]

LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

_DRAFTS_A_REFIT = 64
_ESCAPES = ((1, 1.8), (2, 1.0), (4, 0.5), (8, 0.2), (16, 0.1), (32, 0.05))
"""Length of match, and the votes for what was not seen: between these, straight lines over the
logarithm of the length."""


@dataclass(frozen=True, slots=True)
class CorpusConfig:
    """Settings of :class:`CorpusDrafter`.

    Attributes:
        path: the pool file, as ``freedraft pool build`` writes it.
        fingerprint: of the tokenizer in use (``tokenizer_fingerprint``); a pool built with another
            is refused. None takes any.
        min_match: shortest match with the tail that is proposed from.
        max_match: how many of the last tokens are looked up.
        max_places: places looked at in a step; more are sampled.
        min_prob: path probability below which nothing is proposed.
    """

    path: str | os.PathLike[str]
    fingerprint: str | None = None
    min_match: int = 2
    max_match: int = 64
    max_places: int = 48
    min_prob: float = 0.01

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not 1 <= self.min_match <= self.max_match <= MAX_CONTEXT:
            raise ValueError(
                f"expected 1 <= min_match <= max_match <= {MAX_CONTEXT}, "
                f"got {self.min_match} and {self.max_match}"
            )
        if not 1 <= self.max_places <= 4096:
            raise ValueError(f"expected max_places within 1..4096, got {self.max_places}")
        if not 0 < self.min_prob < 1:
            raise ValueError(f"expected min_prob between 0 and 1, got {self.min_prob}")


@dataclass(slots=True)
class _Request:
    """A running request: its row of the tails, its length, and what was last drafted for it."""

    row: int
    length: int = 0
    draft: tuple[IntArray, FloatArray, int, int] | None = None  # nodes, raw, size, class


class CorpusDrafter:
    """Drafts what followed, in the documents of a pool, at the longest matches of the last tokens.

    The pool is mapped read-only: processes share it, and requests cost their last tokens only. Any
    thread may call; calls take turns.

    Attributes:
        config: the settings.
        index: what the pool holds.
        description: what it says about itself.
        escapes: ``(max_match + 1,)`` float64 by length of match, votes for what no place reads.
    """

    def __init__(self, config: CorpusConfig) -> None:
        """Open the pool and compile the kernels.

        Args:
            config: the settings.

        Raises:
            SnapshotError: the file is foreign, truncated, corrupt, or for another tokenizer.
            OSError: the file cannot be read.
        """
        self.config = config
        self.index, self.description = open_pool(config.path, config.fingerprint)
        finder.compile_kernels()
        grower.compile_kernels()
        self._lock = threading.Lock()
        self._calibration = Calibration(grower.NUM_CLASSES)
        self._drafts_until_refit = _DRAFTS_A_REFIT
        self.escapes = _escape_table(config.max_match)
        self._requests: dict[RequestId, _Request] = {}
        # Twice what is looked up, so that a request can be cut back and still match.
        self._tails: IntArray = np.empty((4, 2 * config.max_match), np.int32)
        self._sizes: LongArray = np.zeros(4, np.int64)
        self._free_rows = list(range(4))
        self._groups = np.empty((0, grower.GROUP_FIELDS), np.int64)
        self._paths: DoubleArray = np.empty(0)

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "corpus"

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request; one of the same id that still runs is stopped first.

        The namespace makes no difference: nothing is learnt from one request for another but how
        far the corpus can be trusted.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        prompt = as_token_ids(prompt_ids)
        with self._lock:
            self._stop(request_id)
            request = _Request(self._take_row())
            self._requests[request_id] = request
            self._append(request, prompt)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        tokens = as_token_ids(token_ids)
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return
            if request.draft is not None and tokens.size:
                nodes, raw, size, group = request.draft
                grower.settle(nodes, raw, size, tokens, self._calibration.counts[group])
                request.draft = None
            self._append(request, tokens)

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
        max_places = self.config.max_places
        places = np.empty((batch, max_places), np.int32)
        votes = np.empty((batch, max_places), np.float64)
        nodes = np.empty((batch, 2, max_nodes), np.int32)
        raw, probs = np.empty((2, batch, max_nodes), np.float32)
        found, drawn = np.empty((2, batch, 2), np.int64)
        with self._lock:
            requests = [self._requests.get(request_id) for request_id in request_ids]
            rows = np.array([-1 if r is None else r.row for r in requests], np.int64)
            self._prepare(batch, max_nodes)
            index, floor = self.index, self.config.min_prob
            finder.search(
                index.tokens, index.order, index.keys, self._tails, self._sizes, rows,
                self.config.min_match, floor, self.escapes, places, votes, found,
            )  # fmt: skip
            grower.grow(
                index.tokens, max_depth, floor, self.escapes, self._calibration.knots, found,
                places, votes, self._groups, self._paths, nodes, raw, probs, drawn,
            )  # fmt: skip
            trees = []
            for i, (request, (size, group)) in enumerate(
                zip(requests, drawn.tolist(), strict=True)
            ):
                if size == 0 or request is None:
                    trees.append(CandidateTree.empty())
                    continue
                request.draft = (nodes[i], raw[i], size, group)
                trees.append(CandidateTree(nodes[i, 0, :size], nodes[i, 1, :size], probs[i, :size]))
        return trees

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the committed tokens, which ``extend`` brings, say all that is used."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: ``length`` is negative.
        """
        check_length(length)
        with self._lock:
            request = self._requests.get(request_id)
            if request is not None and length < request.length:
                kept = int(self._sizes[request.row]) - (request.length - length)
                self._sizes[request.row] = max(0, kept)
                request.length = length
                request.draft = None

    def stop(self, request_id: RequestId) -> None:
        """End the request and release what it held."""
        with self._lock:
            self._stop(request_id)

    def _stop(self, request_id: RequestId) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._free_rows.append(request.row)

    def _take_row(self) -> int:
        if not self._free_rows:
            num_rows = len(self._sizes)
            self._tails = np.concatenate((self._tails, np.empty_like(self._tails)))
            self._sizes = np.concatenate((self._sizes, np.zeros_like(self._sizes)))
            self._free_rows = list(range(num_rows, 2 * num_rows))
        row = self._free_rows.pop()
        self._sizes[row] = 0
        return row

    def _append(self, request: _Request, tokens: IntArray) -> None:
        """Put tokens behind the request's tail; when its row is full, the older half goes."""
        tail, size = self._tails[request.row], int(self._sizes[request.row])
        request.length += tokens.size
        if size + tokens.size > tail.size:
            tokens = tokens[-tail.size :]
            kept = min(size, self.config.max_match, tail.size - tokens.size)
            tail[:kept] = tail[size - kept : size].copy()
            size = kept
        tail[size : size + tokens.size] = tokens
        self._sizes[request.row] = size + tokens.size

    def _prepare(self, batch: int, max_nodes: int) -> None:
        """Bring the calibration up to date and make the scratch large enough."""
        self._drafts_until_refit -= batch
        if self._drafts_until_refit < 0:
            self._calibration.refit()
            self._drafts_until_refit = _DRAFTS_A_REFIT
        num_groups = (max_nodes + 1) * self.config.max_places
        if len(self._groups) < num_groups:
            self._groups = np.empty((num_groups, grower.GROUP_FIELDS), np.int64)
            self._paths = np.empty(num_groups)


def _escape_table(max_match: int) -> DoubleArray:
    """Return ``(max_match + 1,)`` float64: the votes for what was not seen, by length of match."""
    lengths, escapes = np.array(_ESCAPES).T
    wanted = np.log(np.maximum(np.arange(max_match + 1), 1))
    table: DoubleArray = np.exp(np.interp(wanted, np.log(lengths), np.log(escapes)))
    return table
