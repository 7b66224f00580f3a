"""The fixed parts of the JSON texts that a schema describes.

A model that answers in JSON writes keys, quotes, brackets and white space that the schema settles;
only the values are open. The schema is written out as a text with holes for the values, once for
each usual layout, and cut at the holes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

HOLE: None = None
"""Stands for a value that the schema leaves open."""

Parts = list[str | None]

_MAX_DEPTH = 8  # schemas may refer to themselves
_MAX_CHOICES = 16
_MAX_TEXTS = 64


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a serialiser separates things.

    Attributes:
        comma: between two members or elements of one line.
        colon: between a key and its value.
        indent: spaces a level, or None for everything in one line.
    """

    comma: str
    colon: str
    indent: int | None = None

    def break_at(self, depth: int) -> str:
        """Return the line break before something ``depth`` levels deep."""
        return "" if self.indent is None else "\n" + " " * (self.indent * depth)


_LAYOUTS = (
    _Layout(", ", ": "),
    _Layout(",", ":"),
    _Layout(",", ": ", indent=2),
    _Layout(",", ": ", indent=4),
)


def schema_phrases(schema: object) -> list[tuple[str, ...]]:
    """Return the fixed pieces of each way to write what a schema describes.

    Objects have their properties in the schema's order; all of them, and once more the required
    ones alone. ``enum``, ``const``, booleans, ``anyOf``, ``oneOf`` and local ``$ref`` are followed
    as far as the number of texts stays small, other keywords leave a hole.

    Args:
        schema: a JSON schema, parsed.

    Returns:
        Tuples of texts; something unknown stands between two texts of a tuple.

    Raises:
        ValueError: the schema is not an object or a boolean.
    """
    if not isinstance(schema, Mapping | bool):
        raise ValueError(f"expected a JSON schema (an object), got {type(schema).__name__}")
    phrases: dict[tuple[str, ...], None] = {}  # a set that keeps the order
    for layout in _LAYOUTS:
        for required_only in (False, True):
            writer = _Writer(schema, layout, required_only)
            for parts in writer.write(schema, 0, 0):
                pieces = tuple(_pieces(parts))
                if pieces:
                    phrases[pieces] = None
    return list(phrases)


def _pieces(parts: Parts) -> Iterator[str]:
    """Join what stands between holes."""
    text = ""
    for part in parts:
        if part is None:
            if text:
                yield text
            text = ""
        else:
            text += part
    if text:
        yield text


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the texts of one schema in one layout."""

    root: object
    layout: _Layout
    required_only: bool

    def write(self, schema: object, depth: int, nesting: int) -> list[Parts]:
        """Return the texts that ``schema`` allows, at most _MAX_TEXTS.

        Args:
            schema: the whole or a part of it.
            depth: levels of indentation around it.
            nesting: schemas around it, references included.
        """
        if not isinstance(schema, Mapping) or nesting > _MAX_DEPTH:
            return [[HOLE]]
        if "$ref" in schema:
            return self.write(self._resolve(schema["$ref"]), depth, nesting + 1)
        if "const" in schema:
            return [[json.dumps(schema["const"])]]
        if isinstance(schema.get("enum"), list):
            return [[json.dumps(value)] for value in schema["enum"][:_MAX_CHOICES]] or [[HOLE]]
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                return [
                    text
                    for part in schema[keyword][:_MAX_CHOICES]
                    for text in self.write(part, depth, nesting + 1)
                ][:_MAX_TEXTS] or [[HOLE]]
        return self._write_type(schema, depth, nesting)

    def _write_type(self, schema: Mapping[str, object], depth: int, nesting: int) -> list[Parts]:
        kind = schema.get("type")
        if kind == "object" or (kind is None and "properties" in schema):
            return self._write_object(schema, depth, nesting)
        if kind == "array":
            return self._write_array(schema, depth, nesting)
        if kind == "string":
            return [['"', HOLE, '"']]
        if kind == "boolean":
            return [["true"], ["false"]]
        if kind == "null":
            return [["null"]]
        return [[HOLE]]

    def _write_object(self, schema: Mapping[str, object], depth: int, nesting: int) -> list[Parts]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return [["{", HOLE, "}"]]
        required = schema.get("required")
        names = list(properties)
        if self.required_only and isinstance(required, list):
            names = [name for name in names if name in required] or names
        members: list[list[Parts]] = []
        for number, name in enumerate(names):
            start = self.layout.break_at(depth + 1)
            if number:
                start = (self.layout.comma if self.layout.indent is None else ",") + start
            key = f"{start}{json.dumps(name)}{self.layout.colon}"
            values = self.write(properties[name], depth + 1, nesting + 1)
            members.append([[key, *value] for value in values])
        end = self.layout.break_at(depth) + "}"
        return [["{", *text, end] for text in _combine(members)]

    def _write_array(self, schema: Mapping[str, object], depth: int, nesting: int) -> list[Parts]:
        items = schema.get("items")
        if items is None:
            return [["[", HOLE, "]"]]
        start = self.layout.break_at(depth + 1)
        comma = (self.layout.comma if self.layout.indent is None else ",") + start
        end = self.layout.break_at(depth) + "]"
        texts = self.write(items, depth + 1, nesting + 1)
        # two elements show how one ends and the next begins; after that anything may follow
        return [["[", start, *one, comma, *one, HOLE, end] for one in texts]

    def _resolve(self, reference: object) -> object:
        """Return what a reference within the schema stands for; None when it is not there."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: object = self.root
        for step in reference.lstrip("#").strip("/").split("/") if reference != "#" else []:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def _combine(members: list[list[Parts]]) -> list[Parts]:
    """Return the texts of members that may each be written in several ways, at most _MAX_TEXTS.

    When there are too many, the members with the most ways leave holes.
    """
    while True:
        number = 1
        for ways in members:
            number *= len(ways)
        if number <= _MAX_TEXTS:
            return [[part for way in ways for part in way] for ways in product(*members)]
        widest = max(range(len(members)), key=lambda index: len(members[index]))
        members = [*members]
        members[widest] = [[members[widest][0][0], HOLE]]
