"""A request's tokens in the parts that an engine keeps them in, read as one sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..drafters.tree import IntArray


class JoinedText:
    """Several runs of token ids, one behind the other; only what is asked for is copied.

    Slices and the whole are arrays of their own, so the engine may change its parts afterwards.
    """

    def __init__(self, *parts: Sequence[int]) -> None:
        """Take the parts as they are.

        Args:
            *parts: token ids: lists, arrays, ``array.array``.
        """
        self._parts = [part for part in parts if len(part)]
        self._length = sum(len(part) for part in self._parts)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self._length

    def __getitem__(self, where: slice) -> IntArray:
        """Return ``(num_wanted,)`` int32, the tokens of a slice without a step."""
        start, stop, _ = where.indices(self._length)
        pieces = []
        offset = 0
        for part in self._parts:
            begin, end = max(start - offset, 0), min(stop - offset, len(part))
            if begin < end:
                pieces.append(np.array(part[begin:end], np.int32))
            offset += len(part)
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[np.generic]:
        """Return all tokens as an array."""
        return np.asarray(self[:], dtype)

    def last(self) -> int:
        """Return the last token.

        Raises:
            IndexError: there is none.
        """
        return int(self._parts[-1][-1])
