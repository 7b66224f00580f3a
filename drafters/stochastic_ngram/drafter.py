"""The stochastic n-gram drafter: samples from what the target held likely behind an n-gram.

For sampled text. The recycling drafter proposes the few most likely tokens as they stand; this one
draws from the stored distribution and hands it to the verifier, which accepts a token with
min(1, p / q). Where the stored distribution is near the target's, nearly every draw is accepted,
also where the target itself is undecided.

Source: arXiv:2506.04708 (STAND).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget, check_length
from ..recycling import _table_kernels as kernels
from ..recycling.table import SuccessorTable, TableShape, newest_first
from ..shelf import Shelf
from ..tree import ROOT, CandidateTree, IntArray
from .growth import DoubleArray, DrawnTree, grow_drawn_tree

_MAX_RECENT = 64
_MAX_SIBLINGS = 4
_PRIOR_TRIES = 16.0
_MAX_TRIES = 2048.0
# By the longest context known (0 to 3 tokens): how often the first child is accepted at first, and
# by how much each further one less often.
_FIRST_ACCEPTED = np.array([0.0, 0.25, 0.45, 0.65])
_SIBLING_DECAY = 0.5


@dataclass(frozen=True, slots=True)
class StochasticNgramConfig:
    """Settings of :class:`StochasticNgramDrafter`.

    Attributes:
        temperature: of the draws; best near that of the target's sampling.
        seed: of the draws.
        num_successors: tokens kept behind a context, and asked of the target at every node.
        max_vocab_size: ids at or above it have no successors.
        hash_bits: contexts of two and of three tokens share ``2**hash_bits`` rows each.
        min_prob: estimated chance of acceptance below which nothing is drawn.
        max_namespaces: tables that are kept; the one not used for longest leaves.
        max_nodes: most nodes of a tree; each costs a row of the vocabulary's length.
    """

    temperature: float = 0.8
    seed: int = 0
    num_successors: int = 16
    max_vocab_size: int = 1 << 18
    hash_bits: int = 15
    min_prob: float = 0.02
    max_namespaces: int = 8
    max_nodes: int = 16

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        self.table_shape()
        if self.temperature <= 0:
            raise ValueError(f"expected temperature > 0, got {self.temperature}")
        if self.seed < 0:
            raise ValueError(f"expected seed >= 0, got {self.seed}")
        if not 0 < self.min_prob < 1:
            raise ValueError(f"expected min_prob within (0, 1), got {self.min_prob}")
        for name in ("max_namespaces", "max_nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")

    def table_shape(self) -> TableShape:
        """Return the sizes of a namespace's table."""
        return TableShape(self.num_successors, self.max_vocab_size, self.hash_bits)


@dataclass(slots=True)
class _Request:
    """One running request.

    Attributes:
        table: its namespace's.
        rng: its draws.
        recent: its last tokens, at most ``_MAX_RECENT``.
        length: all its tokens.
        draft: what was last proposed.
    """

    table: SuccessorTable
    rng: np.random.Generator
    recent: IntArray
    length: int
    draft: DrawnTree | None = field(default=None)


class StochasticNgramDrafter:
    """Draws a tree from the target's own distributions behind the last one to three tokens.

    It learns from feedback with ``top_ids`` only. Trees are verified by rejection, whole: a cost
    gate can leave one out but not cut it.
    """

    def __init__(self, config: StochasticNgramConfig | None = None) -> None:
        """Compile the kernels; tables are made when a namespace is first used.

        Args:
            config: the settings; the defaults when absent.
        """
        self.config = StochasticNgramConfig() if config is None else config
        kernels.compile_kernels()
        shape = self.config.table_shape()
        self._shelf = Shelf(lambda: SuccessorTable(shape), self.config.max_namespaces)
        decay = _SIBLING_DECAY ** np.arange(_MAX_SIBLINGS)
        self._tries: DoubleArray = np.full((_FIRST_ACCEPTED.size, _MAX_SIBLINGS), _PRIOR_TRIES)
        self._hits: DoubleArray = self._tries * _FIRST_ACCEPTED[:, None] * decay
        self._vocab_size = 0
        self._serial = 0
        self._requests: dict[RequestId, _Request] = {}

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "stochastic_ngram"

    @property
    def num_top_ids(self) -> int:
        """How many of the target's most likely tokens the feedback should name."""
        return self.config.num_successors

    def set_vocab_size(self, vocab_size: int) -> None:
        """Learn the size of the target's vocabulary, without which nothing is proposed.

        Raises:
            ValueError: it is less than 1.
        """
        if vocab_size < 1:
            raise ValueError(f"expected vocab_size >= 1, got {vocab_size}")
        self._vocab_size = vocab_size

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
        self._serial += 1
        self._requests[request_id] = _Request(
            self._shelf.enter(namespace),
            np.random.Generator(np.random.Philox(key=[self.config.seed, self._serial])),
            prompt[-_MAX_RECENT:],
            prompt.size,
        )

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        tokens = as_token_ids(token_ids)
        request = self._requests.get(request_id)
        if request is not None:
            request.recent = np.concatenate((request.recent, tokens))[-_MAX_RECENT:]
            request.length += tokens.size
            request.draft = None

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        acceptance = self._hits / self._tries
        trees = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None or self._vocab_size == 0 or max_nodes == 0 or max_depth == 0:
                trees.append(CandidateTree.empty())
                continue
            request.draft = self._draw(request, acceptance, max_nodes, max_depth)
            trees.append(request.draft.tree)
        return trees

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Store what the target said at each verified node, and count which draws it accepted."""
        request = self._requests.get(request_id)
        if request is None or feedback.top_ids is None or feedback.top_logprobs is None:
            return
        top_ids = np.ascontiguousarray(feedback.top_ids, np.int32)
        top_probs = np.exp(np.ascontiguousarray(feedback.top_logprobs, np.float32))
        request.table.record(newest_first(request.recent), tree, top_ids, top_probs)
        # A blend may have put other nodes behind the drawn ones, but never moves these.
        if request.draft is not None and tree.draft_probs is not None:
            self._count(request.draft, feedback.accepted.tolist())

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: ``length`` is negative.
        """
        check_length(length)
        request = self._requests.get(request_id)
        if request is not None and length < request.length:
            kept = max(0, request.recent.size - (request.length - length))
            request.recent = request.recent[:kept]
            request.length = length
            request.draft = None

    def stop(self, request_id: RequestId) -> None:
        """End the request; its namespace's table stays."""
        self._requests.pop(request_id, None)

    def _draw(
        self, request: _Request, acceptance: DoubleArray, max_nodes: int, max_depth: int
    ) -> DrawnTree:
        def successors(context: IntArray) -> tuple[IntArray, DoubleArray, int]:
            tokens, chances, longest = request.table.successors(context)
            drawable = (chances > 1e-6) & (tokens < self._vocab_size)
            return tokens[drawable], chances[drawable] ** (1 / self.config.temperature), longest

        return grow_drawn_tree(
            newest_first(request.recent),
            successors,
            lambda probs: _draw_index(probs, request.rng.random()),
            acceptance,
            vocab_size=self._vocab_size,
            max_nodes=min(max_nodes, self.config.max_nodes),
            max_depth=max_depth,
            min_prob=self.config.min_prob,
        )

    def _count(self, draft: DrawnTree, accepted: list[int]) -> None:
        """Count, along the accepted path, which children were tried and which was accepted."""
        path = {ROOT, *accepted}
        taken = set(accepted)
        done: set[int] = set()  # parents of which a child was accepted: later ones were not tried
        for node, parent in enumerate(draft.tree.parents.tolist()):
            if parent not in path or parent in done:
                continue
            place = draft.groups[node], draft.ranks[node]
            self._tries[place] += 1
            if node in taken:
                self._hits[place] += 1
                done.add(parent)
        full = self._tries > _MAX_TRIES
        self._tries[full] /= 2
        self._hits[full] /= 2


def _draw_index(probs: DoubleArray, uniform: float) -> int:
    """Return the index at which the cumulated probabilities pass ``uniform``, in [0, 1)."""
    cumulated = probs.cumsum()
    index = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
    return min(index, int(np.flatnonzero(probs)[-1]))  # rounding may lead behind the last one
