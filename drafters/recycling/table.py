"""The successor table: its arrays, what goes in and out, its files."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..snapshot import SnapshotError, read_snapshot, write_snapshot
from ..tree import CandidateTree, FloatArray, IntArray
from . import _table_kernels as kernels

DoubleArray = npt.NDArray[np.float64]
SNAPSHOT_KIND = "successors"


@dataclass(frozen=True, slots=True)
class TableShape:
    """Sizes of a successor table.

    Attributes:
        num_successors: tokens kept behind a context, k.
        max_vocab_size: ids at or above it have no successors.
        hash_bits: contexts of two and of three tokens share ``2**hash_bits`` rows each.
    """

    num_successors: int = 8
    max_vocab_size: int = 1 << 18
    hash_bits: int = 15

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: a size is out of its range.
        """
        if not 1 <= self.num_successors <= 64:
            raise ValueError(f"expected num_successors within 1..64, got {self.num_successors}")
        if not 1 <= self.max_vocab_size <= 1 << 24:
            raise ValueError(f"expected max_vocab_size within 1..2**24, got {self.max_vocab_size}")
        if not 1 <= self.hash_bits <= 24:
            raise ValueError(f"expected hash_bits within 1..24, got {self.hash_bits}")

    @property
    def num_rows(self) -> int:
        """Rows of a table."""
        return self.max_vocab_size + (kernels.LENGTHS - 1 << self.hash_bits)


class SuccessorTable:
    """What the target held likely behind each context of one to three tokens.

    Attributes:
        shape: the sizes.
        ids: ``(num_rows, k)`` int32, the successors, -1 behind the last one.
        probs: ``(num_rows, k)`` float32, their probabilities.
        keys: ``(num_rows,)`` int32, what each row is about.
    """

    def __init__(self, shape: TableShape) -> None:
        """Begin empty."""
        self.shape = shape
        # Zeros come from the system untouched: rows that are never used take no memory.
        self.ids: IntArray = np.zeros((shape.num_rows, shape.num_successors), np.int32)
        self.probs: FloatArray = np.zeros((shape.num_rows, shape.num_successors), np.float32)
        self.keys: IntArray = np.zeros(shape.num_rows, np.int32)

    @property
    def num_contexts(self) -> int:
        """Contexts with successors."""
        return int(np.count_nonzero(self.keys))

    def record(
        self, tail: IntArray, tree: CandidateTree, top_ids: IntArray, top_probs: FloatArray
    ) -> None:
        """Store what the target said after the root and after each node of a verified tree.

        Args:
            tail: ``(LENGTHS,)`` int32, the tokens before the step, the last one first.
            tree: what was verified.
            top_ids: ``(num_nodes + 1, num_top)`` int32, the most likely tokens, the best first.
            top_probs: ``(num_nodes + 1, num_top)`` float32, their probabilities.
        """
        nodes = np.stack((tree.token_ids, tree.parents))
        kernels.record(
            self.ids, self.probs, self.keys, self.shape.max_vocab_size, tail, nodes, top_ids,
            top_probs,
        )  # fmt: skip

    def record_text(self, text: IntArray, first: int) -> None:
        """Enter the successors that a text shows, where the target has not said more.

        Args:
            text: ``(length,)`` int32.
            first: index of the first token that is entered as a successor, at least 1.
        """
        kernels.record_text(self.ids, self.probs, self.keys, self.shape.max_vocab_size, text, first)

    def successors(self, context: IntArray) -> tuple[IntArray, DoubleArray, int]:
        """Mix what the context's last one to three tokens are followed by.

        Args:
            context: ``(LENGTHS,)`` int32 tokens, the last one first, -1 where unknown.

        Returns:
            ``(n,)`` int32 distinct tokens, ``(n,)`` float64 probabilities of a sum of at most 1,
            and the length of the longest context known, 0 for none.
        """
        tokens = np.empty(kernels.LENGTHS * self.shape.num_successors, np.int32)
        chances = np.empty(tokens.size, np.float64)
        count, longest = kernels.successors(
            self.ids, self.probs, self.keys, self.shape.max_vocab_size, context, tokens, chances
        )
        return tokens[:count], chances[:count], longest

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rows in use to a file, in place of ``path``, or change nothing.

        Raises:
            OSError: the file cannot be written; what was there before stays.
        """
        rows = np.flatnonzero(self.keys).astype(np.int32)
        arrays = {
            "rows": rows,
            "keys": self.keys[rows],
            "ids": self.ids[rows],
            "probs": self.probs[rows],
        }
        shape = self.shape
        write_snapshot(
            path,
            SNAPSHOT_KIND,
            arrays,
            {
                "num_successors": shape.num_successors,
                "max_vocab_size": shape.max_vocab_size,
                "hash_bits": shape.hash_bits,
            },
        )

    def load(self, path: str | os.PathLike[str]) -> int:
        """Take the rows of a file over the own ones; return how many there are.

        Raises:
            SnapshotError: the file is not a whole snapshot of a table of this shape; it is named,
                and nothing is taken.
            OSError: the file cannot be read.
        """
        snapshot = read_snapshot(path, SNAPSHOT_KIND)
        for name in ("num_successors", "max_vocab_size", "hash_bits"):
            if snapshot.metadata.get(name) != getattr(self.shape, name):
                raise SnapshotError(
                    f"expected a table of {name} {getattr(self.shape, name)}, "
                    f"got {snapshot.metadata.get(name)}: {path}"
                )
        rows, keys, ids, probs = (
            snapshot.arrays.get(name, np.zeros(0, np.int32))
            for name in ("rows", "keys", "ids", "probs")
        )
        k = self.shape.num_successors
        fits = (
            all(array.dtype == np.int32 for array in (rows, keys, ids))
            and probs.dtype == np.float32
            and rows.ndim == 1
            and keys.shape == rows.shape
            and ids.shape == probs.shape == (rows.size, k)
            and (rows.size == 0 or 0 <= int(rows.min()) <= int(rows.max()) < self.keys.size)
            and bool((ids >= -1).all())
            and bool(((probs >= 0) & (probs <= 1)).all())
        )
        if not fits:
            raise SnapshotError(f"expected rows, keys, ids and probs that fit together: {path}")
        self.keys[rows] = keys
        self.ids[rows] = ids
        self.probs[rows] = probs
        return int(rows.size)


def newest_first(text: IntArray) -> IntArray:
    """Return ``(LENGTHS,)`` int32: the last tokens of a text, the last one first, -1 for none."""
    tail = np.full(kernels.LENGTHS, -1, np.int32)
    last = text[-kernels.LENGTHS :][::-1]
    tail[: last.size] = last
    return tail
