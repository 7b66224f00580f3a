"""Prompts of a benchmark, from JSONL or plain text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_SEPARATOR = "---"


class PromptFileError(ValueError):
    """A file of prompts that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        name: unique within its file.
        workload: what kind it is; "" where the file does not say.
        text: what the user says.
    """

    name: str
    workload: str
    text: str


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read prompts.

    A file whose name ends in ``.jsonl`` has one object a line, with the text ``prompt`` and
    optionally ``id`` and ``workload``; blank lines are skipped, other keys ignored. Any other file
    is text: prompts are parted by lines of three hyphens and called by their numbers.

    Args:
        path: a UTF-8 file.

    Raises:
        PromptFileError: the file cannot be opened or decoded, a line is not such an object, a name
            comes twice, or there is no prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{path}: expected UTF-8 text, got {error.reason}") from error
    prompts = _of_lines(text, path) if path.suffix == ".jsonl" else _of_text(text)
    if not prompts:
        raise PromptFileError(f"{path}: expected at least one prompt, got none")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.name in seen:
            raise PromptFileError(f"{path}: expected ids of their own, got {prompt.name!r} twice")
        seen.add(prompt.name)
    return prompts


def _of_text(text: str) -> list[BenchPrompt]:
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.strip() == _SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    texts = [joined for part in parts if (joined := "".join(part).strip("\n")).strip()]
    return [BenchPrompt(str(number), "", text) for number, text in enumerate(texts, start=1)]


def _of_lines(text: str, path: Path) -> list[BenchPrompt]:
    # split("\n") and not splitlines(): JSON texts may hold U+2028 and its like unescaped
    return [
        _of_line(line, number, f"{path}:{number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]


def _of_line(line: str, number: int, place: str) -> BenchPrompt:
    try:
        record: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptFileError(f"{place}: expected one JSON object, got {error.msg}") from error
    if not isinstance(record, dict):
        raise PromptFileError(f"{place}: expected a JSON object, got {type(record).__name__}")
    fields = {"id": str(number), "workload": "", **record}
    for key in ("prompt", "id", "workload"):
        if not isinstance(fields.get(key), str):
            got = type(fields[key]).__name__ if key in fields else f"the keys {sorted(record)}"
            raise PromptFileError(f'{place}: expected text for "{key}", got {got}')
    if not fields["prompt"].strip():
        raise PromptFileError(f'{place}: expected a "prompt" with text, got a blank one')
    return BenchPrompt(fields["id"], fields["workload"], fields["prompt"])
