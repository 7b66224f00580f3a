"""Which short runs of tokens has a text had before? A filter of a few bits a token answers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..drafters.tree import IntArray

GRAM = 3
"""Tokens of a run."""

_BITS_A_TOKEN = 16  # with that many, one new run in sixteen seems to have stood there before
_LEAST_BITS = 1 << 16  # room for what a short prompt's response adds
_FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
_MASK = (1 << 64) - 1
_TOKEN = (1 << 32) - 1


class SeenGrams:
    """Remembers the runs of three tokens of one text, at two bytes a token.

    A Bloom filter (Bloom 1970) with one hash function: a run that stood there is always known
    again, one that did not rarely seems to be. A text that grows to many times its first length is
    known too well, never too little.

    Attributes:
        repeat: length of the text's end whose runs have all stood before; 0 below three tokens.
    """

    def __init__(self, token_ids: IntArray) -> None:
        """Take in a text from its beginning.

        Args:
            token_ids: ``(num_tokens,)`` int32.
        """
        size = max(_LEAST_BITS, 1 << (_BITS_A_TOKEN * token_ids.size - 1).bit_length())
        self._shift = 64 - size.bit_length() + 1
        self.repeat = 0
        ids = np.zeros(token_ids.size + GRAM - 1, np.uint64)
        ids[GRAM - 1 :] = token_ids.astype(np.uint32)
        factor = np.uint64(_FACTOR)
        keys = ((ids[:-2] * factor + ids[1:-1]) * factor + ids[2:]) * factor
        marks = np.zeros(size, np.bool_)
        marks[keys >> np.uint64(self._shift)] = True
        self._bits = bytearray(np.packbits(marks, bitorder="little").tobytes())
        self._last = (int(ids[-2]), int(ids[-1]))

    def append(self, token_ids: Iterable[int]) -> None:
        """Take in how the text goes on."""
        first, second = self._last
        bits, repeat, shift = self._bits, self.repeat, self._shift
        for token in token_ids:
            third = token & _TOKEN
            key = ((first * _FACTOR + second) * _FACTOR + third) * _FACTOR & _MASK
            index = key >> shift
            byte, bit = index >> 3, 1 << (index & 7)
            if bits[byte] & bit:
                repeat = repeat + 1 if repeat else GRAM
            else:
                repeat = 0
                bits[byte] |= bit
            first, second = second, third
        self._last = (first, second)
        self.repeat = repeat
