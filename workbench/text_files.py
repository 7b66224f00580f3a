"""Text files of folders, without what ``.gitignore`` files leave out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

_IGNORE_FILES = (Path(".gitignore"), Path(".git/info/exclude"))
_BINARY_HEAD = 8192


class UnreadableTextError(ValueError):
    """A file that is no document; the message is the reason in a word or two."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The ignore file of one folder."""

    folder: Path
    spec: GitIgnoreSpec


def list_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that are named and those in the folders that are named, sorted by name.

    In folders the rules of ``.gitignore`` files hold, those of the folders above up to the
    repository's included; ``.git`` and symbolic links are left out. What is named itself is taken
    whatever the rules say.

    Raises:
        FileNotFoundError: a path is neither a file nor a folder.
    """
    for path in paths:
        if path.is_dir():
            yield from _walk(path.absolute(), _rules_above(path.absolute()))
        elif path.is_file():
            yield path
        else:
            raise FileNotFoundError(f"expected a file or a folder, got {path}")


def read_text(path: Path, max_bytes: int) -> str:
    """Return a file's text.

    Args:
        path: the file.
        max_bytes: largest size that is read.

    Raises:
        UnreadableTextError: the file is empty, too large, binary, not UTF-8 or cannot be read.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > max_bytes:
                raise UnreadableTextError("too large")
            data = file.read()
    except OSError as error:
        raise UnreadableTextError("cannot be read") from error
    if b"\0" in data[:_BINARY_HEAD]:
        raise UnreadableTextError("binary")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableTextError("not UTF-8") from error
    if not text.strip():
        raise UnreadableTextError("empty")
    return text


def _walk(folder: Path, rules: tuple[_Rules, ...]) -> Iterator[Path]:
    """Yield the files below a folder; ``rules`` are those of the folders above, the top first."""
    rules = (*rules, *_rules_of(folder))
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        return
    for entry in entries:
        path = folder / entry.name
        if entry.is_dir(follow_symlinks=False):
            if entry.name != ".git" and not _is_ignored(path, True, rules):
                yield from _walk(path, rules)
        elif entry.is_file(follow_symlinks=False) and not _is_ignored(path, False, rules):
            yield path


def _is_ignored(path: Path, is_folder: bool, rules: tuple[_Rules, ...]) -> bool:
    """Return what the rules say; those of the nearest folder that say anything decide."""
    for rule in reversed(rules):
        name = path.relative_to(rule.folder).as_posix() + ("/" if is_folder else "")
        ignored = rule.spec.check_file(name).include
        if ignored is not None:
            return ignored
    return False


def _rules_of(folder: Path) -> Iterator[_Rules]:
    """Yield the rules that a folder brings, the weaker first."""
    for name in reversed(_IGNORE_FILES):
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        yield _Rules(folder, GitIgnoreSpec.from_lines(text.splitlines()))


def _rules_above(folder: Path) -> tuple[_Rules, ...]:
    """Return the rules of the folders above up to the repository's; none where it is ignored."""
    above: list[Path] = []
    for parent in folder.parents:
        if (folder / ".git").exists():
            break
        above.append(parent)
        if (parent / ".git").exists():
            rules: tuple[_Rules, ...] = ()
            for upper, lower in zip(above[::-1], [*above[-2::-1], folder], strict=True):
                rules = (*rules, *_rules_of(upper))
                if _is_ignored(lower, True, rules):
                    return ()
            return rules
    return ()
