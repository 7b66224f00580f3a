"""The look-ahead drafter: Jacobi iterations as probe nodes, their n-grams as drafts.

A window of guesses about the next tokens is verified along with the candidates
(:meth:`LookaheadDrafter.add_probes`). What the target says below each guess makes the next, better
guess, and columns of successive guesses are n-grams of the target's own making, which a pool keeps
by their first token. A draft is what the pool holds behind the last token. No second attention
pattern and no second forward is needed: the window is a tree (:mod:`.window`).

Probes cost what any node costs. With a cost gate, the window shrinks to nothing while it does not
pay (:mod:`.gate`).

Source: Fu et al., arXiv:2402.02057 (look-ahead decoding); lengths of guesses, window and guess set
as there: N, W and G.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..base import (
    DEFAULT_NAMESPACE,
    Feedback,
    FloatArray64,
    RequestId,
    as_token_ids,
    check_budget,
    check_length,
)
from ..shelf import Shelf
from ..tree import CandidateTree, IntArray, accepted_path
from . import _pool_kernels as kernels
from .gate import WindowGate
from .window import Window

_MAX_RECENT = 256
_PRIOR_TRIES = 8.0
_MAX_TRIES = 1024.0


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """Settings of :class:`LookaheadDrafter`.

    Attributes:
        window_size: columns of the window, W.
        ngram_size: tokens of an n-gram, N; a column has N - 1 levels.
        guess_set_size: n-grams kept behind a token, G.
        text_ngrams: whether the n-grams of prompt and output go to the pool too.
        max_vocab_size: n-grams with ids at or above it are not kept.
        max_namespaces: pools that are kept; the one not used for longest leaves.
        seed: of the places in the text that first guesses are taken from.
    """

    window_size: int = 5
    ngram_size: int = 3
    guess_set_size: int = 5
    text_ngrams: bool = True
    max_vocab_size: int = 1 << 18
    max_namespaces: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        for name, least, most in (
            ("window_size", 1, 64),
            ("ngram_size", 2, 16),
            ("guess_set_size", 1, 64),
            ("max_vocab_size", 1, 1 << 24),
            ("max_namespaces", 1, 1 << 16),
            ("seed", 0, 2**31 - 1),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(
                    f"expected {name} within {least}..{most}, got {getattr(self, name)}"
                )


@dataclass(slots=True)
class _Request:
    """One running request.

    Attributes:
        pool: its namespace's.
        window: its guesses.
        recent: its last tokens, at most ``_MAX_RECENT``.
        length: all its tokens.
        draft: what was last proposed, and each node's rank among the guesses.
        sent: the tree that carries the window's probes, and their nodes.
        cost: what those probes cost, in steps without them.
    """

    pool: IntArray
    window: Window
    recent: IntArray
    length: int
    draft: CandidateTree = field(default_factory=CandidateTree.empty)
    ranks: list[int] = field(default_factory=list)
    sent: tuple[CandidateTree, IntArray] | None = None
    cost: float = 0.0


class LookaheadDrafter:
    """Drafts n-grams that the target made itself, and sends the probes that make them."""

    def __init__(self, config: LookaheadConfig | None = None) -> None:
        """Compile the kernels; pools are made when a namespace is first used.

        Args:
            config: the settings; the defaults when absent.
        """
        self.config = LookaheadConfig() if config is None else config
        kernels.compile_kernels()
        shape = (
            self.config.max_vocab_size,
            self.config.guess_set_size,
            self.config.ngram_size - 1,
        )
        # Zeros come from the system untouched: tokens that never begin an n-gram take no memory.
        self._shelf = Shelf(lambda: np.zeros(shape, np.int32), self.config.max_namespaces)
        self._gate = WindowGate(self.config.window_size)
        self._tries: FloatArray64 = np.full(shape[1:], _PRIOR_TRIES)
        rank, depth = np.ogrid[: shape[1], : shape[2]]
        self._hits: FloatArray64 = self._tries * 0.3 * 0.6 ** (rank + depth)
        self._requests: dict[RequestId, _Request] = {}

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "lookahead"

    @property
    def num_probes(self) -> int:
        """The most probes that a request may send; the same 0 or more while the window pays."""
        return self.config.window_size * (self.config.ngram_size - 1)

    @property
    def window_size(self) -> int:
        """Columns that the cost gate allows now."""
        return self._gate.width

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
        pool = self._shelf.enter(namespace)
        if self.config.text_ngrams:
            kernels.store_text(pool, prompt)
        window = Window(self.config.ngram_size, self.config.seed)
        self._requests[request_id] = _Request(pool, window, prompt[-_MAX_RECENT:], prompt.size)

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens; a step whose probes were not observed moves the window on."""
        tokens = as_token_ids(token_ids)
        request = self._requests.get(request_id)
        if request is None or tokens.size == 0:
            return
        gain = self._settle(request, tokens)
        self._gate.record(gain, int(tokens.size), request.cost)
        if request.sent is not None:
            request.window.skip(int(tokens.size))
        request.sent, request.cost = None, 0.0
        text = np.concatenate((request.recent, tokens))
        if self.config.text_ngrams:
            first = max(0, request.recent.size - self.config.ngram_size + 1)
            kernels.store_text(request.pool, text[first:])
        request.recent = text[-_MAX_RECENT:]
        request.length += tokens.size

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        chances = np.minimum.accumulate(self._hits / self._tries, axis=1)
        return [
            self._propose(self._requests.get(request_id), chances, max_nodes, max_depth)
            for request_id in request_ids
        ]

    def add_probes(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: FloatArray64 | None,
    ) -> list[CandidateTree]:
        """Return the trees with the windows behind their own nodes, as far as there is room.

        Drawn trees are left alone. See :class:`SendsProbes`.
        """
        width = self.config.window_size if costs is None else self._gate.width
        added = list(trees)
        for index, (request_id, depth) in enumerate(zip(request_ids, max_depths, strict=True)):
            request = self._requests.get(request_id)
            if request is None or trees[index].draft_probs is not None:
                continue
            text = request.recent[request.recent >= 0]
            if text.size == 0:
                continue
            request.window.resize(width, text)
            columns = request.window.columns_within(depth)
            tree, nodes = request.window.add_to(trees[index], columns, max_nodes)
            request.sent = added[index], _ = tree, nodes
            if costs is not None:
                before = float(costs[trees[index].num_nodes])
                request.cost = float(costs[tree.num_nodes]) / before - 1
        return added

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Read the target's choices at the probes; harvest the n-grams that are complete."""
        request = self._requests.get(request_id)
        if request is None or request.sent is None or request.sent[0] is not tree:
            return
        nodes = request.sent[1]
        choices = feedback.choices[nodes[-1] + 1].astype(np.int32)
        asked = choices[: int(np.argmax(choices < 0))] if (choices < 0).any() else choices
        emitted = int(feedback.token_ids.size)
        if asked.size == 0 or emitted == 0:
            return
        kernels.store(request.pool, request.window.advance(asked, emitted))
        request.sent = None

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
            request.window = Window(self.config.ngram_size, self.config.seed)
            request.draft, request.ranks, request.sent = CandidateTree.empty(), [], None

    def stop(self, request_id: RequestId) -> None:
        """End the request; its namespace's pool stays."""
        self._requests.pop(request_id, None)

    def _propose(
        self, request: _Request | None, chances: FloatArray64, max_nodes: int, max_depth: int
    ) -> CandidateTree:
        if request is None or request.recent.size == 0 or max_nodes == 0 or max_depth == 0:
            return CandidateTree.empty()
        out = np.empty((3, max_nodes), np.int32)
        probs = np.empty(max_nodes, np.float64)
        last = int(request.recent[-1])
        size = kernels.grow(request.pool, last, chances, max_depth, out, probs)
        tokens, parents, ranks = out[:, :size]
        request.draft = CandidateTree(tokens, parents, probs[:size].astype(np.float32))
        request.ranks = ranks.tolist()
        return request.draft

    def _settle(self, request: _Request, tokens: IntArray) -> int:
        """Count what of the last draft came true; return its accepted length."""
        draft, request.draft = request.draft, CandidateTree.empty()
        if draft.num_nodes == 0:
            return 0
        path = accepted_path(draft, tokens)
        right = set(path.tolist())
        for node, (rank, depth) in enumerate(
            zip(request.ranks, draft.depths().tolist(), strict=True)
        ):
            if depth <= tokens.size:  # what lies deeper is not known
                self._tries[rank, depth - 1] += 1
                self._hits[rank, depth - 1] += node in right
        full = self._tries > _MAX_TRIES
        self._tries[full] /= 2
        self._hits[full] /= 2
        return int(path.size)
