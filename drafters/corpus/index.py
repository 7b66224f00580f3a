"""The index of a corpus: its places sorted by the text before them, and a directory.

The documents stand one after the other, each between two barriers, so that no context and no
continuation leaves its document. Reading backwards turns "sorted by what stands before" into a
suffix array, for which there are fast libraries: of a processor's time pydivsufsort needs 0.13
microseconds for each token of a corpus of four million, prefix doubling in numpy 0.82
(``benchmarks/corpus_build.py``). The latter sorts where the former is not installed.

Source of prefix doubling: Manber and Myers, "Suffix arrays" (1993).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from ..tree import IntArray
from . import _search_kernels as kernels

LongArray = npt.NDArray[np.int64]

BARRIER = -1
MAX_TOKENS = (1 << 31) - 2
"""The most tokens, barriers included, that a corpus may hold."""
MAX_CONTEXT = 128
"""Tokens of the contexts that the places are sorted by, at least."""
FAST_SORT = "pydivsufsort"
"""The library that sorts fast."""


@dataclass(frozen=True, slots=True)
class CorpusIndex:
    """A corpus that can be searched.

    Attributes:
        tokens: ``(num_tokens,)`` int32, the documents with barriers (-1) around each.
        order: ``(num_places,)`` int32, positions of the tokens that have one before them in their
            document, sorted by the tokens before them read backwards.
        keys: ``(ceil(num_places / STRIDE),)`` int64, the last three tokens before every 16th of
            these places, packed.
    """

    tokens: IntArray
    order: IntArray
    keys: LongArray


def build_index(documents: Iterable[IntArray]) -> CorpusIndex:
    """Return the index of documents.

    Args:
        documents: one-dimensional int32 arrays of token ids.

    Raises:
        ValueError: no document has two tokens, an id is negative or too large for a key, or there
            are too many tokens.
    """
    parts: list[IntArray] = [np.array([BARRIER], np.int32)]
    for document in documents:
        if document.size == 0:
            continue
        if document.min() < 0 or document.max() > kernels.MAX_TOKEN_ID:
            raise ValueError(
                f"expected token ids within 0..{kernels.MAX_TOKEN_ID}, "
                f"got {document.min()}..{document.max()}"
            )
        parts += [document, parts[0]]
    tokens = np.concatenate(parts)
    if tokens.size > MAX_TOKENS:
        raise ValueError(f"expected a corpus of at most {MAX_TOKENS} tokens, got {tokens.size}")
    places = tokens.size - suffix_array(tokens[::-1])
    places = places[places < tokens.size]
    order = places[(tokens[places - 1] >= 0) & (tokens[places] >= 0)].astype(np.int32)
    if order.size == 0:
        raise ValueError("expected a document of at least two tokens, got none")
    return CorpusIndex(tokens, order, pack_keys(tokens, order))


def has_fast_sort() -> bool:
    """Return whether the library that sorts fast is installed."""
    return find_spec(FAST_SORT) is not None


def suffix_array(text: IntArray) -> npt.NDArray[np.integer]:
    """Return the suffixes' starts in the order of the suffixes, a prefix before what it begins.

    Args:
        text: ``(n,)`` int32.

    Returns:
        ``(n,)`` integers. Suffixes that agree in ``MAX_CONTEXT`` symbols may stand in any order.
    """
    if text.size > 1 and has_fast_sort():
        sort: Callable[[IntArray], npt.NDArray[np.integer]] = import_module(FAST_SORT).divsufsort
        return sort(np.ascontiguousarray(text))
    return sort_by_doubling(text)


def sort_by_doubling(text: IntArray) -> LongArray:
    """Return what :func:`suffix_array` does, in numpy alone: sort by 1, 2, 4, ... symbols."""
    ranks: LongArray = np.unique(text, return_inverse=True)[1].astype(np.int64)
    order: LongArray = np.argsort(ranks, kind="stable")
    length = 1
    while length < MAX_CONTEXT and length < text.size:
        pairs = ranks * (text.size + 1)  # 0 in the second half: the text has ended
        pairs[:-length] += ranks[length:] + 1
        order = np.argsort(pairs, kind="stable")
        changes = np.diff(pairs[order]) != 0
        ranks[order] = np.concatenate(([0], np.cumsum(changes)))
        if changes.all():
            break
        length *= 2
    return order


def pack_keys(tokens: IntArray, order: IntArray) -> LongArray:
    """Return the directory: the last tokens before every ``STRIDE``-th place, packed.

    The token nearest to the place stands in the highest bits; what is before a barrier is 0.
    """
    places = order[:: kernels.STRIDE].astype(np.int64)
    keys = np.zeros(places.size, np.int64)
    inside = np.ones(places.size, np.bool_)
    for back in range(1, kernels.KEY_TOKENS + 1):
        part = tokens[np.maximum(places - back, 0)].astype(np.int64) + 1
        inside &= part > 0
        keys = (keys << kernels.KEY_BITS) | np.where(inside, part, 0)
    return keys


def check_structure(index: CorpusIndex) -> str | None:
    """Say why an index cannot be searched without leaving its arrays, or return None.

    Takes about 2 nanoseconds a token. Wrong order is not looked for: it costs matches only.
    """
    tokens, order, keys = index.tokens, index.order, index.keys
    for array, dtype in ((tokens, np.int32), (order, np.int32), (keys, np.int64)):
        if array.ndim != 1 or array.dtype != dtype or array.size == 0:
            return f"expected a filled {np.dtype(dtype)} array, got {array.dtype} {array.shape}"
    if tokens[0] != BARRIER or tokens[-1] != BARRIER or tokens.min() != BARRIER:
        return "expected barriers at both ends of the tokens and no id below them"
    if order.min() < 2 or order.max() >= tokens.size - 1:
        return f"expected places within 2..{tokens.size - 2}, got {order.min()}..{order.max()}"
    if keys.size != -(-order.size // kernels.STRIDE):
        return f"expected {-(-order.size // kernels.STRIDE)} keys, got {keys.size}"
    return None


def check_order(index: CorpusIndex) -> str | None:
    """Say what is wrong with the order of a well-structured index, or return None."""
    tokens, order = index.tokens, index.order
    wanted = np.zeros(tokens.size, np.bool_)
    wanted[1:] = (tokens[1:] >= 0) & (tokens[:-1] >= 0)
    if order.size != int(wanted.sum()):
        return f"expected {int(wanted.sum())} places, got {order.size}"
    wanted[order] = False
    if wanted.any():
        return f"expected each place once, {int(wanted.sum())} are missing"
    kernels.compile_kernels()
    wrong = int(kernels.count_misplaced(tokens, order, index.keys, MAX_CONTEXT))
    return f"expected places in order, {wrong} places or keys are not" if wrong else None
