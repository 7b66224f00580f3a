"""Known texts for the phrase drafter: an index of token sequences that the output may run into.

A book holds phrases. A phrase is one or more pieces of text; between two pieces stands something
unknown, such as a value between the fixed parts of a JSON object. Each place in a phrase links to
the place after it, so that spellings of one text share what they have in common.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import ahocorasick
import numpy.typing as npt

from ..base import as_token_ids
from .json_fragments import schema_phrases

Encode = Callable[[str], Sequence[int]]

NONE = -1
WORD_STARTS = ("", " ", "\n")
"""What may stand before a text: tokenizers write its first word differently after each."""


@dataclass(frozen=True, slots=True)
class PhraseIndex:
    """A book made ready for matching; it never changes.

    Attributes:
        tokens: token id of each place.
        following: the place after each place, -1 at the end of a piece.
        next_piece: for the last place of a piece the first place of the next one, else -1.
        automaton: finds each run of ``min_match`` tokens of a piece; its values are the tuples of
            the places behind such a run, the complement of the next piece's first place where the
            run ends a piece. None when no piece is that long.
        min_match: the length of those runs.
    """

    tokens: array[int]
    following: array[int]
    next_piece: array[int]
    automaton: ahocorasick.Automaton | None
    min_match: int


class PhraseBook:
    """Collects phrases as token ids, as texts or as the fixed parts of JSON schemas."""

    def __init__(self, min_match: int = 3, max_places: int = 16) -> None:
        """Begin an empty book.

        Args:
            min_match: tokens of a phrase that the output must have written, at the phrase's
                beginning or inside it, before the rest is proposed.
            max_places: places that one run of ``min_match`` tokens may lead to; what was added
                first is kept.

        Raises:
            ValueError: a number is below 1.
        """
        for name, value in (("min_match", min_match), ("max_places", max_places)):
            if value < 1:
                raise ValueError(f"expected {name} >= 1, got {value}")
        self.min_match = min_match
        self.max_places = max_places
        self._tokens = array("q")
        self._following = array("q")
        self._next_piece = array("q")
        self._known: set[tuple[tuple[int, ...], ...]] = set()

    def add(self, *pieces: npt.ArrayLike) -> None:
        """Add a phrase of one or more pieces; one that is known already changes nothing.

        Args:
            pieces: ``(length,)`` token ids each; empty ones are left out.

        Raises:
            ValueError: not of one dimension, not integers, or negative.
        """
        phrase = tuple(tuple(as_token_ids(piece).tolist()) for piece in pieces)
        phrase = tuple(piece for piece in phrase if piece)
        for piece in phrase:
            if min(piece) < 0:
                raise ValueError(f"expected token ids >= 0 in a phrase, got {min(piece)}")
        if phrase in self._known:
            return
        self._known.add(phrase)
        last = NONE
        for piece in phrase:
            first = self._append(piece, NONE)
            if last >= 0:
                self._next_piece[last] = first
            last = len(self._tokens) - 1

    def add_text(self, text: str, encode: Encode) -> None:
        """Add a text in each spelling that its first word may have.

        Args:
            text: at least one character.
            encode: text to token ids, without special tokens.

        Raises:
            ValueError: the text is empty, or ``encode`` returns negative ids.
        """
        if not text:
            raise ValueError("expected a text to add to the phrases, got an empty one")
        base = tuple(as_token_ids(encode(text)).tolist())
        first = len(self._tokens)
        self.add(base)
        if len(self._tokens) == first:
            return  # known, or no tokens
        for start in WORD_STARTS[1:]:
            spelling = tuple(as_token_ids(encode(start + text)).tolist())
            shared = 0
            for one, other in zip(reversed(base), reversed(spelling), strict=False):
                if one != other:
                    break
                shared += 1
            head = spelling[: len(spelling) - shared]
            if head:
                self._append(head, first + len(base) - shared if shared else NONE)

    def add_json_schema(self, schema: object, encode: Encode) -> None:
        """Add the fixed parts of the JSON texts that a schema describes, in usual layouts.

        Args:
            schema: a JSON schema, parsed.
            encode: text to token ids, without special tokens.

        Raises:
            ValueError: the schema is not an object or a boolean.
        """
        for pieces in schema_phrases(schema):
            self.add(*(encode(piece) for piece in pieces))

    def index(self) -> PhraseIndex:
        """Return the phrases so far, ready for matching."""
        runs: dict[tuple[int, ...], list[int]] = {}
        for start in range(len(self._tokens)):
            run: list[int] = []
            last, place = NONE, start
            while place >= 0 and len(run) < self.min_match:
                run.append(self._tokens[place])
                last, place = place, self._following[place]
            if place < 0 and len(run) == self.min_match and self._next_piece[last] >= 0:
                place = ~self._next_piece[last]
            if place != NONE:  # something is left to propose
                places = runs.setdefault(tuple(run), [])
                if place not in places and len(places) < self.max_places:
                    places.append(place)
        automaton = None
        if runs:
            automaton = ahocorasick.Automaton(ahocorasick.STORE_ANY, ahocorasick.KEY_SEQUENCE)
            for words, places in runs.items():
                automaton.add_word(words, tuple(places))
            automaton.make_automaton()
        return PhraseIndex(
            self._tokens[:], self._following[:], self._next_piece[:], automaton, self.min_match
        )

    def _append(self, piece: Iterable[int], behind: int) -> int:
        """Append the places of a piece that goes on at ``behind``, and return the first one."""
        first = len(self._tokens)
        for token in piece:
            self._tokens.append(token)
            self._following.append(len(self._tokens))
            self._next_piece.append(NONE)
        self._following[-1] = behind
        return first
