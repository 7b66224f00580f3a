"""A small pattern of characters: its regular expression, and what may come next.

Engines take the regular expression; where there is no grammar engine, the pattern itself says which
characters may follow, by derivatives.

Source: Brzozowski 1964, "Derivatives of regular expressions".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass


class Pattern:
    """A set of texts."""

    @property
    def is_nullable(self) -> bool:
        """Whether the empty text is one of them."""
        raise NotImplementedError

    def after(self, character: str) -> Pattern:
        """Return the set of what may follow a first character; empty when it fits nowhere."""
        raise NotImplementedError

    def first(self) -> frozenset[str]:
        """Return the characters that a text of the set can begin with."""
        raise NotImplementedError

    def regex(self) -> str:
        """Return the set as a regular expression."""
        raise NotImplementedError

    def gbnf(self) -> str:
        """Return the set as an expression of GBNF, llama.cpp's form of grammars."""
        raise NotImplementedError


@dataclass(frozen=True)
class Text(Pattern):
    """One text."""

    text: str

    @property
    def is_nullable(self) -> bool:
        """Whether it is empty."""
        return not self.text

    def after(self, character: str) -> Pattern:
        """Return the rest."""
        return Text(self.text[1:]) if self.text.startswith(character) else NOTHING

    def first(self) -> frozenset[str]:
        """Return its first character."""
        return frozenset(self.text[:1])

    def regex(self) -> str:
        """Return it, escaped; not every grammar engine knows an escaped space."""
        return re.escape(self.text).replace("\\ ", " ")

    def gbnf(self) -> str:
        """Return it, quoted."""
        return json.dumps(self.text)


@dataclass(frozen=True)
class OneOf(Pattern):
    """Any of several patterns; none is the empty set."""

    parts: tuple[Pattern, ...]

    @property
    def is_nullable(self) -> bool:
        """Whether a part is."""
        return any(part.is_nullable for part in self.parts)

    def after(self, character: str) -> Pattern:
        """Return what may follow in any part."""
        rests = (part.after(character) for part in self.parts)
        kept = dict.fromkeys(rest for rest in rests if rest != NOTHING)
        return OneOf(tuple(kept)) if kept else NOTHING

    def first(self) -> frozenset[str]:
        """Return the first characters of all parts."""
        return frozenset().union(*(part.first() for part in self.parts))

    def regex(self) -> str:
        """Return the alternatives."""
        return f"({'|'.join(part.regex() for part in self.parts)})"

    def gbnf(self) -> str:
        """Return the alternatives."""
        return f"({' | '.join(part.gbnf() for part in self.parts)})"


@dataclass(frozen=True)
class Sequence(Pattern):
    """One pattern behind the other."""

    head: Pattern
    tail: Pattern

    @property
    def is_nullable(self) -> bool:
        """Whether both are."""
        return self.head.is_nullable and self.tail.is_nullable

    def after(self, character: str) -> Pattern:
        """Return the rest of the head with the tail, or of the tail where the head may be empty."""
        rest = self.head.after(character)
        through = Sequence(rest, self.tail) if rest != NOTHING else NOTHING
        if not self.head.is_nullable:
            return through
        skipped = self.tail.after(character)
        kept = tuple(part for part in (through, skipped) if part != NOTHING)
        return OneOf(kept) if kept else NOTHING

    def first(self) -> frozenset[str]:
        """Return the head's first characters, and the tail's where the head may be empty."""
        if not self.head.is_nullable:
            return self.head.first()
        return self.head.first() | self.tail.first()

    def regex(self) -> str:
        """Return both."""
        return self.head.regex() + self.tail.regex()

    def gbnf(self) -> str:
        """Return both."""
        return f"{self.head.gbnf()} {self.tail.gbnf()}"


NOTHING = OneOf(())
"""The empty set."""
EMPTY = Text("")


def characters(allowed: str) -> Pattern:
    """Return the set of single characters."""
    return OneOf(tuple(Text(character) for character in allowed))


def repeat(part: Pattern, least: int, most: int) -> Pattern:
    """Return ``least`` to ``most`` times the part."""
    made: Pattern = EMPTY
    for count in range(most, 0, -1):
        step: Pattern = part if made == EMPTY else Sequence(part, made)
        made = step if count <= least else OneOf((step, EMPTY))
    return made


def rest_after(pattern: Pattern, text: str) -> Pattern:
    """Return what may follow a text; empty when the text fits nowhere."""
    for character in text:
        pattern = pattern.after(character)
    return pattern


LIST = Sequence(
    OneOf((Text("yes"), Text("no"))),
    Sequence(
        repeat(
            Sequence(Text(" "), Sequence(repeat(characters("0123456789"), 1, 3), Text(","))), 2, 4
        ),
        Text(" end"),
    ),
)
"""``yes`` or ``no``, two to four numbers, and an end: what the suite's grammar check asks for."""
