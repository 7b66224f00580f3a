"""The recycling drafter: what the target held likely behind the last tokens, wherever it stood.

Every verified node, accepted or not, says which tokens the target would go on with. Kept by
context, these successors make a tree where nothing was written before: the cold-start arm. The
tree grows best first by the stored probabilities. Below the root, the runners-up of the logits that
gave the last token join in: what the target nearly said now, it often says next.

Sources: Luo et al., arXiv:2408.08696 (Token Recycling); Liu et al., arXiv:2507.01449 (LogitSpec).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget, check_length
from ..calibration import Calibration
from ..shelf import Shelf
from ..tree import CandidateTree, FloatArray, IntArray, accepted_path
from . import _table_kernels as kernels
from .table import SuccessorTable, TableShape, newest_first

_DRAFTS_A_REFIT = 64
_MAX_RECENT = 64
_NO_RUNNERS = (np.zeros(0, np.int32), np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class RecyclingConfig:
    """Settings of :class:`RecyclingDrafter`.

    Attributes:
        num_successors: tokens kept behind a context, and asked of the target at every node.
        max_vocab_size: ids at or above it have no successors.
        hash_bits: contexts of two and of three tokens share ``2**hash_bits`` rows each.
        min_prob: path probability below which nothing is proposed.
        max_namespaces: tables that are kept; the one not used for longest leaves.
    """

    num_successors: int = 8
    max_vocab_size: int = 1 << 18
    hash_bits: int = 15
    min_prob: float = 0.002
    max_namespaces: int = 8

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        self.table_shape()
        if not 0 < self.min_prob < 1:
            raise ValueError(f"expected min_prob within (0, 1), got {self.min_prob}")
        if self.max_namespaces < 1:
            raise ValueError(f"expected max_namespaces >= 1, got {self.max_namespaces}")

    def table_shape(self) -> TableShape:
        """Return the sizes of a namespace's table."""
        return TableShape(self.num_successors, self.max_vocab_size, self.hash_bits)


@dataclass(slots=True)
class _Request:
    """One running request.

    Attributes:
        table: its namespace's.
        prompt: what the table has not read yet of it; it does once the target has named successors,
            without which the n-gram drafter does the same better.
        recent: its last tokens, at most ``_MAX_RECENT``.
        length: all its tokens.
        runners: ids and probabilities of what the target held likely in place of the last token.
        heard: the same of a step whose tokens are about to be committed.
        draft: what was last proposed, with the probabilities before calibration.
        group: the calibration's class of the draft.
    """

    table: SuccessorTable
    prompt: IntArray | None
    recent: IntArray
    length: int
    runners: tuple[IntArray, FloatArray] = _NO_RUNNERS
    heard: tuple[IntArray, FloatArray] = _NO_RUNNERS
    draft: CandidateTree = field(default_factory=CandidateTree.empty)
    group: int = 0


class RecyclingDrafter:
    """Drafts a tree of the successors that the target named after the same few tokens before.

    It learns from feedback with ``top_ids`` only, and drafts nothing for a request that had none.

    Memory: a table takes 8 bytes a row and successor, at most 25 MiB with the defaults, of which
    only what is used is resident.
    """

    def __init__(self, config: RecyclingConfig | None = None) -> None:
        """Compile the kernels; tables are made when a namespace is first used.

        Args:
            config: the settings; the defaults when absent.
        """
        self.config = RecyclingConfig() if config is None else config
        kernels.compile_kernels()
        shape = self.config.table_shape()
        self._shelf = Shelf(lambda: SuccessorTable(shape), self.config.max_namespaces)
        self._calibration = Calibration(kernels.LENGTHS + 1)
        self._drafts_until_refit = _DRAFTS_A_REFIT
        self._requests: dict[RequestId, _Request] = {}

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "recycling"

    @property
    def num_top_ids(self) -> int:
        """How many of the target's most likely tokens the feedback should name."""
        return self.config.num_successors

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
        self._requests[request_id] = _Request(
            self._shelf.enter(namespace), prompt, prompt[-_MAX_RECENT:], prompt.size
        )

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        tokens = as_token_ids(token_ids)
        request = self._requests.get(request_id)
        if request is None or tokens.size == 0:
            return
        self._settle(request, tokens)
        text = np.concatenate((request.recent, tokens))
        if request.prompt is None:
            request.table.record_text(text, max(request.recent.size, 1))
        request.recent = text[-_MAX_RECENT:]
        request.length += tokens.size
        request.runners, request.heard = request.heard, _NO_RUNNERS

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        if max_nodes == 0 or max_depth == 0:
            return [CandidateTree.empty()] * len(request_ids)
        self._drafts_until_refit -= len(request_ids)
        if self._drafts_until_refit < 0:
            self._calibration.refit()
            self._drafts_until_refit = _DRAFTS_A_REFIT
        return [
            self._propose(self._requests.get(request_id), max_nodes, max_depth)
            for request_id in request_ids
        ]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Store what the target said after the root and after each verified node."""
        request = self._requests.get(request_id)
        if request is None or feedback.top_ids is None or feedback.top_logprobs is None:
            return
        if request.prompt is not None:
            request.table.record_text(request.prompt, 1)
            request.prompt = None
        top_ids = np.ascontiguousarray(feedback.top_ids, np.int32)
        top_probs = np.exp(np.ascontiguousarray(feedback.top_logprobs, np.float32))
        request.table.record(newest_first(request.recent), tree, top_ids, top_probs)
        before = int(feedback.token_ids.size) - 1  # accepted nodes above the last token
        if 0 <= before <= feedback.accepted.size:
            source = int(feedback.accepted[before - 1]) + 1 if before else 0
            others = top_ids[source] != feedback.token_ids[-1]
            request.heard = top_ids[source][others], top_probs[source][others]

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        What the table holds stays: it is about contexts, not about places. After a cut of more
        than the last 64 tokens nothing is proposed before the next token is known.

        Raises:
            ValueError: ``length`` is negative.
        """
        check_length(length)
        request = self._requests.get(request_id)
        if request is None or length >= request.length:
            return
        kept = max(0, request.recent.size - (request.length - length))
        request.recent = request.recent[:kept]
        request.length = length
        request.runners = request.heard = _NO_RUNNERS
        request.draft = CandidateTree.empty()

    def stop(self, request_id: RequestId) -> None:
        """End the request; its namespace's table stays."""
        self._requests.pop(request_id, None)

    def save(self, namespace: str, path: str | os.PathLike[str]) -> None:
        """Write a namespace's table to a file, in place of ``path``, or change nothing.

        Args:
            namespace: its name; one that nobody used has an empty table, which is saved too.
            path: the file; its folder must exist.

        Raises:
            OSError: the file cannot be written; what was there before stays.
        """
        self._shelf.enter(namespace).save(path)

    def load(self, path: str | os.PathLike[str], namespace: str = DEFAULT_NAMESPACE) -> int:
        """Take a file's contexts into a namespace's table; return how many there are.

        Raises:
            SnapshotError: the file is not a whole snapshot of a table of the configured shape; it
                is named, and nothing is taken.
            OSError: the file cannot be read.
        """
        return self._shelf.enter(namespace).load(path)

    def _propose(self, request: _Request | None, max_nodes: int, max_depth: int) -> CandidateTree:
        if request is None or request.prompt is not None:
            return CandidateTree.empty()
        table = request.table
        nodes = np.empty((2, max_nodes), np.int32)
        raw = np.empty(max_nodes, np.float64)
        size, request.group = kernels.grow(
            table.ids, table.probs, table.keys, self.config.max_vocab_size,
            newest_first(request.recent), *request.runners, max_depth, self.config.min_prob, nodes,
            raw,
        )  # fmt: skip
        tokens, parents, raw = nodes[0, :size], nodes[1, :size], raw[:size]
        request.draft = CandidateTree(tokens, parents, raw.astype(np.float32))
        probs = self._calibration.apply(request.group, raw).astype(np.float32)
        return CandidateTree(tokens, parents, probs)

    def _settle(self, request: _Request, tokens: IntArray) -> None:
        """Count which nodes of the last draft came true, as deep as that is known."""
        draft, request.draft = request.draft, CandidateTree.empty()
        if draft.num_nodes == 0:
            return
        hits = np.zeros(draft.num_nodes, np.bool_)
        hits[accepted_path(draft, tokens)] = True
        known = draft.depths() <= tokens.size
        self._calibration.add(request.group, draft.probs[known], hits[known])
