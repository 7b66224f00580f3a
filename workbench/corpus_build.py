"""Builds corpus pools from repositories and documents."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..drafters.base import as_token_ids
from ..drafters.corpus.index import build_index
from ..drafters.corpus.pool_file import PoolDescription, tokenizer_fingerprint, write_pool
from ..drafters.tree import IntArray
from .text_files import UnreadableTextError, list_files, read_text

EncodeBatch = Callable[[list[str]], Sequence[Sequence[int]]]
Stage = Literal["list", "encode", "sort", "write"]
Progress = Callable[[Stage, int, int | None], None]

MAX_FILE_BYTES = 8 << 20
_BATCH_CHARACTERS = 1 << 20


class CorpusBuildError(ValueError):
    """A pool that cannot be built as asked."""


@dataclass(frozen=True, slots=True)
class PoolTokenizer:
    """A tokenizer, as far as a pool needs it.

    Attributes:
        name: what the user calls it.
        vocabulary: token to id, added tokens included.
        encode: texts to token ids, without special tokens.
    """

    name: str
    vocabulary: Mapping[str, int]
    encode: EncodeBatch


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What went into a pool.

    Attributes:
        num_documents: files taken.
        num_tokens: their tokens.
        num_text_bytes: their size as text.
        num_file_bytes: size of the pool.
        skipped: numbers of files left out, by reason.
    """

    num_documents: int
    num_tokens: int
    num_text_bytes: int
    num_file_bytes: int
    skipped: dict[str, int]


def build_pool(
    paths: Iterable[Path],
    output: Path,
    tokenizer: PoolTokenizer,
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    progress: Progress | None = None,
) -> BuildReport:
    """Write a pool of the text files that are named or lie in the folders that are named.

    Files with the same content are taken once. The pool appears when it is whole; until then
    ``output`` is what it was.

    Args:
        paths: files and folders, see :func:`~.text_files.list_files`.
        output: the pool; its folder must exist.
        tokenizer: of the model that the pool is for.
        max_file_bytes: larger files are left out.
        progress: told how far it is.

    Raises:
        CorpusBuildError: a path or the output's folder is missing, no document is left, or the
            index cannot be built.
        OSError: the output cannot be written.
    """
    report: Progress = progress or _silent
    if not output.parent.is_dir() or output.is_dir():
        raise CorpusBuildError(f"expected a file name in a folder that exists, got {output}")
    report("list", 0, None)
    try:
        files = list(list_files(paths))
    except FileNotFoundError as error:
        raise CorpusBuildError(str(error)) from error
    report("list", 1, 1)
    skipped: Counter[str] = Counter()
    report("encode", 0, len(files))
    documents: list[IntArray] = []
    num_text_bytes = 0
    for done, texts in _batches(files, max_file_bytes, skipped):
        documents += [as_token_ids(ids) for ids in tokenizer.encode(texts)]
        num_text_bytes += sum(len(text.encode()) for text in texts)
        report("encode", done, len(files))
    report("encode", len(files), len(files))
    return _write(documents, num_text_bytes, output, tokenizer, skipped, report)


def _write(
    documents: list[IntArray],
    num_text_bytes: int,
    output: Path,
    tokenizer: PoolTokenizer,
    skipped: Counter[str],
    report: Progress,
) -> BuildReport:
    """Index the documents and write the pool."""
    if not documents:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        raise CorpusBuildError(f"expected at least one text document, got none ({reasons or '-'})")
    report("sort", 0, None)
    try:
        index = build_index(documents)
    except ValueError as error:
        raise CorpusBuildError(str(error)) from error
    report("sort", 1, 1)
    report("write", 0, None)
    fingerprint = tokenizer_fingerprint(tokenizer.vocabulary)
    description = PoolDescription(tokenizer.name, fingerprint, len(documents), num_text_bytes)
    write_pool(output, index, description)
    report("write", 1, 1)
    return BuildReport(
        num_documents=len(documents),
        num_tokens=sum(document.size for document in documents),
        num_text_bytes=num_text_bytes,
        num_file_bytes=output.stat().st_size,
        skipped=dict(skipped),
    )


def _batches(
    files: Sequence[Path], max_file_bytes: int, skipped: Counter[str]
) -> Iterator[tuple[int, list[str]]]:
    """Yield texts to encode at once, with how many files were read; count what is left out."""
    seen: set[bytes] = set()
    texts: list[str] = []
    size = 0
    for done, path in enumerate(files, start=1):
        try:
            text = read_text(path, max_file_bytes)
        except UnreadableTextError as error:
            skipped[str(error)] += 1
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if digest in seen:
            skipped["duplicate"] += 1
            continue
        seen.add(digest)
        texts.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield done, texts
            texts, size = [], 0
    if texts:
        yield len(files), texts


def _silent(stage: Stage, done: int, total: int | None) -> None:
    """Report nothing."""
