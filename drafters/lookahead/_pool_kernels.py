"""Kernels of the look-ahead pool: for each token, the last few n-grams that began with it.

The pool is one array: token x guess x the tokens that follow. The newest guess stands first; one
that is seen again moves to the front; the last one leaves when a new one comes.

Kernels never raise; the class validates.

Source: Fu et al., arXiv:2402.02057 (look-ahead decoding), the n-gram pool.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

Ints = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]

TOKEN, PARENT, RANK = 0, 1, 2


@kernel
def store(pool: Ints, ngrams: Ints) -> None:
    """Enter n-grams, the last one as the newest.

    Args:
        pool: ``(num_tokens, guess_set_size, ngram_size - 1)`` token ids plus 1, 0 where there is no
            guess; mutated.
        ngrams: ``(num_ngrams, ngram_size)``; those with an id outside the pool are left out.
    """
    num_tokens, num_guesses, length = pool.shape
    for row in range(ngrams.shape[0]):
        inside = True
        for i in range(length + 1):
            inside = inside and 0 <= ngrams[row, i] < num_tokens
        if not inside:
            continue
        first = ngrams[row, 0]
        rank = 0
        while rank < num_guesses - 1:
            same = True
            for i in range(length):
                same = same and pool[first, rank, i] == ngrams[row, i + 1] + 1
            if same or pool[first, rank, 0] == 0:
                break
            rank += 1
        while rank > 0:
            for i in range(length):
                pool[first, rank, i] = pool[first, rank - 1, i]
            rank -= 1
        for i in range(length):
            pool[first, 0, i] = ngrams[row, i + 1] + 1


@kernel
def store_text(pool: Ints, text: Ints) -> None:
    """Enter all n-grams of a text, in order.

    Args:
        pool: see :func:`store`; mutated.
        text: ``(length,)``.
    """
    size = pool.shape[2] + 1
    for start in range(text.size - size + 1):
        store(pool, text[start : start + size].reshape((1, size)))


@kernel
def grow(pool: Ints, last: int, chances: Doubles, max_depth: int, out: Ints, probs: Doubles) -> int:
    """Merge the guesses behind a token into a tree, the newest guess first.

    Args:
        pool: see :func:`store`.
        last: the text's last token.
        chances: ``(guess_set_size, ngram_size - 1)`` how often a guess of that rank is right down
            to that depth.
        max_depth: deepest node.
        out: ``(3, max_nodes)``, overwritten with token ids, parents, and the rank of the first
            guess with that path.
        probs: ``(max_nodes,)``, overwritten with path probabilities.

    Returns:
        The number of nodes.
    """
    num_tokens, num_guesses, length = pool.shape
    if last < 0 or last >= num_tokens:
        return 0
    count = 0
    for rank in range(num_guesses):
        above = -1
        for depth in range(min(length, max_depth)):
            token = pool[last, rank, depth] - 1
            if token < 0:
                break
            node = 0
            while node < count and (out[TOKEN, node] != token or out[PARENT, node] != above):
                node += 1
            chance = min(chances[rank, depth], probs[above] if above >= 0 else 1.0)
            if node == count:
                if count == probs.size:
                    break
                out[TOKEN, node] = token
                out[PARENT, node] = above
                out[RANK, node] = rank
                probs[node] = chance
                count += 1
            above = node
    return count


def compile_kernels() -> None:
    """Compile the kernels for their one signature."""
    compile_once(store, "void(int32[:,:,::1], int32[:,::1])")
    compile_once(store_text, "void(int32[:,:,::1], int32[::1])")
    compile_once(
        grow, "int64(int32[:,:,::1], int64, float64[:,::1], int64, int32[:,::1], float64[::1])"
    )
