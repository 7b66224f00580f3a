"""Corpus pools in files: a snapshot with the index and the fingerprint of its tokenizer.

A pool is of use only with the tokenizer that it was built with, so it carries that one's
fingerprint: a pool of another one is refused instead of proposing nonsense. Layout, checksum and
the way to write are those of ``snapshot``; the arrays are mapped, so processes that open the same
file share its memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..snapshot import SnapshotError, read_snapshot, write_snapshot
from .index import CorpusIndex, check_order, check_structure

KIND = "corpus"
SUFFIX = ".pool"
_ARRAYS = ("tokens", "order", "keys")


@dataclass(frozen=True, slots=True)
class PoolDescription:
    """What a pool says about itself.

    Attributes:
        tokenizer: the name of the tokenizer, as it was given.
        fingerprint: see :func:`tokenizer_fingerprint`.
        num_documents: documents in it.
        num_text_bytes: bytes of text that they had.
    """

    tokenizer: str
    fingerprint: str
    num_documents: int
    num_text_bytes: int


def tokenizer_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Return the size of a vocabulary and a hash of it, for example ``"49152:1f0c..."``.

    Args:
        vocabulary: token to id, added tokens included.
    """
    digest = hashlib.sha256()
    for token, token_id in sorted(vocabulary.items(), key=lambda entry: (entry[1], entry[0])):
        # surrogatepass: byte-level vocabularies may hold halves of characters
        text = token.encode("utf-8", "surrogatepass")
        digest.update(f"{token_id} {len(text)} ".encode() + text)
    return f"{len(vocabulary)}:{digest.hexdigest()[:32]}"


def write_pool(
    path: str | os.PathLike[str], index: CorpusIndex, description: PoolDescription
) -> None:
    """Write a pool in place of ``path``, at once or not at all.

    Raises:
        OSError: the folder is missing or not writable, or the disk is full.
    """
    arrays = {name: getattr(index, name) for name in _ARRAYS}
    metadata: dict[str, str | int] = {
        "tokenizer": description.tokenizer,
        "fingerprint": description.fingerprint,
        "num_documents": description.num_documents,
        "num_text_bytes": description.num_text_bytes,
    }
    write_snapshot(path, KIND, arrays, metadata)


def open_pool(
    path: str | os.PathLike[str], fingerprint: str | None = None
) -> tuple[CorpusIndex, PoolDescription]:
    """Check a pool and map its arrays.

    Args:
        path: the file.
        fingerprint: of the tokenizer that it must be for; None takes any.

    Raises:
        SnapshotError: the file is foreign, truncated, corrupt, or for another tokenizer; it is
            named.
        OSError: the file cannot be read.
    """
    snapshot = read_snapshot(path, KIND)
    try:
        # asarray: plain arrays, of which kernels know the type at once, on the same memory
        index = CorpusIndex(*(np.asarray(snapshot.arrays[name]) for name in _ARRAYS))
        metadata = snapshot.metadata
        description = PoolDescription(
            str(metadata["tokenizer"]),
            str(metadata["fingerprint"]),
            int(metadata["num_documents"]),
            int(metadata["num_text_bytes"]),
        )
    except (KeyError, ValueError) as error:
        raise SnapshotError(f"expected the parts of a corpus pool, got {error}: {path}") from error
    problem = check_structure(index)
    if problem is not None:
        raise SnapshotError(f"{problem}: {path}")
    if fingerprint is not None and fingerprint != description.fingerprint:
        raise SnapshotError(
            f"expected a pool for the tokenizer with the fingerprint {fingerprint}, got one built "
            f"with {description.tokenizer} ({description.fingerprint}): {path}"
        )
    return index, description


def verify_pool(
    path: str | os.PathLike[str], fingerprint: str | None = None
) -> tuple[CorpusIndex, PoolDescription]:
    """Open a pool and also check that every place is there and in order.

    Raises:
        SnapshotError: as :func:`open_pool`, or the order is wrong.
        OSError: the file cannot be read.
    """
    index, description = open_pool(path, fingerprint)
    problem = check_order(index)
    if problem is not None:
        raise SnapshotError(f"{problem}: {path}")
    return index, description
