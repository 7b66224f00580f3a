"""Python literals in lines of text: ``name=value, ...`` as dataclasses print themselves.

A line may hold long prompts with any text in quotes, so the scanner jumps from delimiter to
delimiter and looks at nothing else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .records import LogError, Record

CUT_SHORT = (
    "expected whole texts, got one that the server cut short (SGLang writes whole ones with "
    "--log-requests-level 3)"
)
_DELIMITER = re.compile(r"""['"()\[\]{},]""")
_FIELD = re.compile(r"\s*(?:(\w+)\s?[=:]|'(\w+)'\s*:)\s*")
_ELLIPSIS = re.compile(r"""['"\]] \.\.\. ['"\[]""")


def fields_until(text: str, start: int, place: str) -> tuple[Record, int]:
    """Return the literals of ``name=value, ...`` or ``name: value, ...`` and where they end.

    Values that are no literals (objects' own forms) are left out.

    Raises:
        LogError: the line ends inside a value, or a text is cut short.
    """
    fields: Record = {}
    end = start
    for begin, stop in _items(text, start, place):
        end = stop
        if match := _FIELD.match(text, begin, stop):
            value = text[match.end() : stop].strip()
            if _ELLIPSIS.search(value) and not _is_literal(value):
                raise LogError(place, "truncated text", CUT_SHORT)
            if _is_literal(value):
                fields[match[1] or match[2]] = ast.literal_eval(value)
            elif value.startswith("{"):
                fields[match[1] or match[2]] = fields_until(text, match.end() + 1, place)[0]
    return fields, end


def _is_literal(value: str) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _items(text: str, start: int, place: str) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each item up to the bracket that closes them, or the end."""
    depth = 0
    begin = at = start
    while match := _DELIMITER.search(text, at):
        at, sign = match.end(), match[0]
        if sign in "'\"":
            if text[at - 2 : at - 1].isalnum() and depth == 0:
                continue  # an apostrophe
            at = _string_end(text, at, sign, place)
        elif sign in "([{":
            depth += 1
        elif sign == ",":
            if depth == 0:
                yield begin, at - 1
                begin = at
        elif depth == 0:
            yield begin, at - 1
            return
        else:
            depth -= 1
    if depth:
        raise LogError(place, "cut off", "expected closed brackets, got a line that ends inside")
    yield begin, len(text)


def _string_end(text: str, at: int, quote: str, place: str) -> int:
    while (found := text.find(quote, at)) >= 0:
        backslashes = found - len(text[at:found].rstrip("\\")) - at
        if backslashes % 2 == 0:
            return found + 1
        at = found + 1
    raise LogError(place, "cut off", "expected a closing quote, got a line that ends inside a text")
