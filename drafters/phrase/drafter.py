"""The phrase drafter: known texts, proposed as soon as the output is inside one of them.

Runs of tokens are found with an Aho-Corasick automaton (A. Aho, M. Corasick, "Efficient string
matching", CACM 1975) that goes on token by token; behind each run found, a cursor follows its
phrase for as long as the output writes the same.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..base import DEFAULT_NAMESPACE, Feedback, RequestId, as_token_ids, check_budget, check_length
from ..tree import CandidateTree
from .book import PhraseBook, PhraseIndex

Cursor = tuple[PhraseIndex, int, int, int]
"""A phrase index, the place of the next token in it, the tokens that match before that place, and
0 for the book or 1 for the request's prediction."""

_MAX_CURSORS = 64
_MAX_EXPECTED = 16
_LOOK_BACK = 64  # tokens of a prompt that are read to find out whether it ends inside a phrase
_LEAST_SHARE, _LARGEST_SHARE = 0.002, 0.9995
# Share of tokens foretold rightly after 0, 1, 2, 3, 4-7, 8-15, 16-31, 32+ matching tokens, as a
# guess of 8 trials that what is seen soon outweighs; of the book and of predictions.
_PRIOR_SHARES = (
    (0.30, 0.35, 0.45, 0.55, 0.75, 0.90, 0.95, 0.98),
    (0.80, 0.60, 0.65, 0.70, 0.85, 0.93, 0.97, 0.99),
)
_PRIOR_TRIALS = 8.0
_MEMORY = 4000.0  # trials after which all earlier ones count half


@dataclass(frozen=True, slots=True)
class PhraseConfig:
    """Settings of :class:`PhraseDrafter`.

    Attributes:
        min_prob: path probability below which a node is not proposed.
        prediction_match: tokens of a request's prediction that the output must have written to be
            found in it again after it has left it.
    """

    min_prob: float = 0.01
    prediction_match: int = 2

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not 0 < self.min_prob <= 1:
            raise ValueError(f"expected min_prob in (0, 1], got {self.min_prob}")
        if self.prediction_match < 1:
            raise ValueError(f"expected prediction_match >= 1, got {self.prediction_match}")


class PhraseDrafter:
    """Proposes the rest of the phrases that the output is inside of.

    The phrases are the same for all requests and namespaces; a prediction belongs to one request.
    """

    def __init__(self, book: PhraseBook | None = None, config: PhraseConfig | None = None) -> None:
        """Make the phrases ready.

        Args:
            book: the phrases; later additions to it are not seen. None: predictions alone.
            config: the settings; the defaults when absent.
        """
        self.config = PhraseConfig() if config is None else config
        self._index = (PhraseBook() if book is None else book).index()
        self._requests: dict[RequestId, _Request] = {}
        self._counts = [
            [[share * _PRIOR_TRIALS, _PRIOR_TRIALS] for share in row] for row in _PRIOR_SHARES
        ]

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        return "phrase"

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request; one of the same id that still runs is stopped first.

        Args:
            request_id: any hashable, unique among the running requests.
            prompt_ids: ``(prompt_length,)`` integers.
            namespace: without effect: requests never see each other, the phrases are for all.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        prompt = as_token_ids(prompt_ids)
        tokens = array("i", prompt.tobytes())  # as int32 they are: a list of them takes far longer
        request = _Request(tokens, len(tokens), [_Tracker(self._index, 0)])
        request.trackers[0].read(prompt[-_LOOK_BACK:].tolist())
        self._requests[request_id] = request

    def set_prediction(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Say what the output of a request will probably be; replaces what was said before.

        Before the first output token the prediction is proposed from its beginning. Later, and
        after the output has left it, as soon as ``prediction_match`` tokens stand in it.

        Args:
            request_id: a started request; another one is ignored.
            token_ids: ``(length,)`` integers >= 0; none: there is no prediction any more.

        Raises:
            ValueError: not of one dimension, not integers, or negative.
        """
        book = PhraseBook(self.config.prediction_match)
        book.add(token_ids)
        request = self._requests.get(request_id)
        if request is None:
            return
        del request.trackers[1:]
        index = book.index()
        if index.tokens:
            request.trackers.append(_Tracker(index, 1))
            request.restart()

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off."""
        request = self._requests.get(request_id)
        if request is None:
            return
        tokens = as_token_ids(token_ids)
        request.tokens.frombytes(tokens.tobytes())
        trackers = [tracker for tracker in request.trackers if tracker.index.tokens]
        for token in tokens.tolist() if trackers else ():
            for tracker in trackers:
                tracker.learn(token, self._counts)
                tracker.advance(token)

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep.

        Raises:
            ValueError: a limit is negative.
        """
        check_budget(max_nodes, max_depth)
        trees: list[CandidateTree] = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            cursors = [] if request is None else list(request.cursors())
            trees.append(
                self._grow(cursors, max_nodes, max_depth) if cursors else CandidateTree.empty()
            )
        return trees

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Do nothing: the committed tokens, which ``extend`` brings, say all that is used."""

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on.

        Raises:
            ValueError: ``length`` is negative.
        """
        check_length(length)
        request = self._requests.get(request_id)
        if request is not None and length < len(request.tokens):
            del request.tokens[length:]
            request.prompt_length = min(request.prompt_length, length)
            request.restart()

    def stop(self, request_id: RequestId) -> None:
        """End the request."""
        self._requests.pop(request_id, None)

    def _grow(self, cursors: list[Cursor], max_nodes: int, max_depth: int) -> CandidateTree:
        """Merge what the cursors foretell, the most probable nodes first."""
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[float] = []
        waiting: list[tuple[float, int, int, int, int, list[Cursor]]] = []
        serial = 0  # decides ties: what was found first
        node, prob, depth = -1, 1.0, 0
        while len(tokens) < max_nodes:
            if depth < max_depth:
                for token, (share, after) in self._children(cursors).items():
                    if prob * share >= self.config.min_prob:
                        entry = (-prob * share, serial, token, node, depth + 1, after)
                        heapq.heappush(waiting, entry)
                        serial += 1
            if not waiting:
                break
            negative, _, token, parent, depth, cursors = heapq.heappop(waiting)
            node, prob = len(tokens), -negative
            tokens.append(token)
            parents.append(parent)
            probs.append(prob)
        return CandidateTree(
            np.array(tokens, np.int32), np.array(parents, np.int32), np.array(probs, np.float32)
        )

    def _children(self, cursors: list[Cursor]) -> dict[int, tuple[float, list[Cursor]]]:
        """Return the share of each next token, and where its cursors stand behind it."""
        odds: dict[int, float] = {}
        after: dict[int, list[Cursor]] = {}
        for index, place, matched, kind in cursors:
            token = index.tokens[place]
            hits, trials = self._counts[kind][_bucket(matched)]
            share = min(max(hits / trials, _LEAST_SHARE), _LARGEST_SHARE)
            # one phrase says it once, however many places of it do
            odds[token] = max(odds.get(token, 0.0), share / (1 - share))
            behind = after.setdefault(token, [])
            if index.following[place] >= 0:
                behind.append((index, index.following[place], matched + 1, kind))
        total = 1 + sum(odds.values())
        return {token: (value / total, after[token]) for token, value in odds.items()}


@dataclass(slots=True)
class _Request:
    tokens: array[int]
    prompt_length: int
    trackers: list[_Tracker]

    def cursors(self) -> Iterator[Cursor]:
        for tracker in self.trackers:
            for place, matched in tracker.places.items():
                yield tracker.index, place, matched, tracker.kind

    def restart(self) -> None:
        """Read the end of the text anew."""
        book, *predictions = self.trackers
        book.reset()
        book.read(self.tokens[-_LOOK_BACK:])
        for tracker in predictions:  # a prediction is of the output alone
            tracker.reset()
            tracker.read(self.tokens[self.prompt_length :][-_LOOK_BACK:])
            if len(self.tokens) == self.prompt_length:
                tracker.places = {0: 0}


@dataclass(slots=True)
class _Tracker:
    """Where a text is in the phrases of an index."""

    index: PhraseIndex
    kind: int
    places: dict[int, int] = field(default_factory=dict)  # next place: tokens that match before
    expected: dict[int, None] = field(default_factory=dict)  # first places of the next pieces
    finder: Iterator[tuple[int, tuple[int, ...]]] | None = None

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the text."""
        self.places = {}
        self.expected = {}
        automaton = self.index.automaton
        self.finder = None if automaton is None else automaton.iter(())

    def read(self, tokens: Sequence[int]) -> None:
        """Move over tokens without learning from them."""
        for token in tokens:
            self.advance(token)

    def learn(self, token: int, counts: list[list[list[float]]]) -> None:
        """Count what each place foretold as a trial: it was ``token`` or it was not."""
        for place, matched in self.places.items():
            count = counts[self.kind][_bucket(matched)]
            if count[1] >= _MEMORY:
                count[:] = [count[0] / 2, count[1] / 2]
            count[0] += self.index.tokens[place] == token
            count[1] += 1

    def advance(self, token: int) -> None:
        """Move over one token."""
        if token < 0:
            self.reset()
            return
        begun = [(place, 0) for place in self.expected]
        moved: dict[int, int] = {}
        for place, matched in (*begun, *self.places.items()):
            if self.index.tokens[place] == token:
                following = self.index.following[place]
                if following >= 0:
                    moved[following] = max(moved.get(following, 0), matched + 1)
                elif self.index.next_piece[place] >= 0:
                    self._expect(self.index.next_piece[place])
        if self.finder is not None:
            self.finder.set((token,))  # type: ignore[attr-defined]
            for _, places in self.finder:
                for place in places:
                    if place < 0:
                        self._expect(~place)
                    else:
                        moved[place] = max(moved.get(place, 0), self.index.min_match)
        if len(moved) > _MAX_CURSORS:
            longest = sorted(moved.items(), key=lambda item: -item[1])[:_MAX_CURSORS]
            moved = dict(longest)
        self.places = moved

    def _expect(self, place: int) -> None:
        self.expected.pop(place, None)
        self.expected[place] = None
        if len(self.expected) > _MAX_EXPECTED:
            del self.expected[next(iter(self.expected))]


def _bucket(matched: int) -> int:
    """Return the class of a number of matching tokens, 0 to 7."""
    return matched if matched < 4 else min(matched.bit_length() + 1, 7)
