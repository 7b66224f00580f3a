"""Kernels of the successor table: what the target held likely behind the last one to three tokens.

A table is three arrays with one row a context. Contexts of one token have a row each, the token's
own (vocabulary x k); longer ones share ``2**bits`` rows a length, found by a hash. A row holds the
last top-k that the target gave behind its context; a newer one replaces it, and a longer context
replaces another one that falls on its row.

Behind a context the rows of its three lengths are mixed: the longest one known counts most. The
weights were fitted by expectation maximisation on greedy chat answers of SmolLM2-135M-Instruct.

Kernels never raise; the classes validate.

Sources: the table and its refreshment from every verified node, Luo et al., arXiv:2408.08696
(Token Recycling); the last logits' runners-up as candidates of the token after next, Liu et al.,
arXiv:2507.01449 (LogitSpec).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

LENGTHS = 3
"""Context lengths, in tokens: 1, 2 and 3."""
EMPTY = 0
"""Key of a row that holds nothing."""
TOKEN, PARENT = 0, 1
_PRIME = 2**31 - 1
_HASH_BASE = 1_270_405_883
_ROW_MIX = 1_640_531_527

# By the longest context known (1 to 3): the weights of the rows of lengths 1, 2 and 3.
_WEIGHTS = np.array([[0.45, 0.0, 0.0], [0.22, 0.48, 0.0], [0.08, 0.12, 0.74]])
# By the same, and with 0 known: the weight of the last logits' runners-up, below the root only.
_RUNNER_WEIGHTS = np.array([0.25, 0.15, 0.12, 0.03])


@kernel
def _find(keys: Ints, num_direct: int, context: Ints, length: int) -> tuple[int, int]:
    """Return the row of a context and the key that it has there, or row -1.

    Args:
        keys: ``(num_rows,)``.
        num_direct: rows of contexts of one token, the first ones.
        context: ``(LENGTHS,)`` tokens, the last one first; negative where unknown.
        length: how many of them count.
    """
    if context[0] < 0 or context[0] >= num_direct:
        return -1, EMPTY
    if length == 1:
        return int(context[0]), 1
    value = length
    for i in range(length):
        if context[i] < 0:
            return -1, EMPTY
        # Both factors are below 2**31, so that the product fits int64.
        value = (value * _HASH_BASE + int(context[i]) + 1) % _PRIME
    num_hashed = (keys.size - num_direct) // (LENGTHS - 1)
    row = num_direct + (length - 2) * num_hashed + (value * _ROW_MIX) % _PRIME % num_hashed
    return row, value + 1


@kernel
def record(
    ids: Ints,
    probs: Floats,
    keys: Ints,
    num_direct: int,
    tail: Ints,
    nodes: Ints,
    top_ids: Ints,
    top_probs: Floats,
) -> None:
    """Store what the target held likely after the root and after each node of a tree.

    Args:
        ids: ``(num_rows, k)`` successors of each context, mutated.
        probs: ``(num_rows, k)`` their probabilities, mutated.
        keys: ``(num_rows,)`` what each row is about, mutated.
        num_direct: rows of contexts of one token.
        tail: ``(LENGTHS,)`` the committed tokens, the last one first; negative where unknown.
        nodes: ``(2, num_nodes)`` token ids and parents of the tree, -1 below the root.
        top_ids: ``(num_nodes + 1, num_top)`` the target's most likely tokens, the best first;
            negative where it was not asked.
        top_probs: ``(num_nodes + 1, num_top)`` their probabilities.
    """
    num_nodes = nodes.shape[1]
    k = min(ids.shape[1], top_ids.shape[1])
    contexts = np.empty((num_nodes + 1, LENGTHS), np.int32)
    contexts[0] = tail
    for index in range(num_nodes + 1):
        if index > 0:
            above = int(nodes[PARENT, index - 1]) + 1
            contexts[index, 0] = nodes[TOKEN, index - 1]
            contexts[index, 1:] = contexts[above, :-1]
        if top_ids[index, 0] < 0:
            continue
        for length in range(1, LENGTHS + 1):
            row, key = _find(keys, num_direct, contexts[index], length)
            if row < 0:
                break
            keys[row] = key
            for rank in range(ids.shape[1]):
                known = rank < k
                ids[row, rank] = top_ids[index, rank] if known else np.int32(-1)
                probs[row, rank] = top_probs[index, rank] if known else np.float32(0.0)


@kernel
def record_text(
    ids: Ints, probs: Floats, keys: Ints, num_direct: int, text: Ints, first: int
) -> None:
    """Enter the successors that a text shows, where the target has not said more.

    One that the target did not name counts half as much as the one before it; the last one gives
    way when a row is full.

    Args:
        ids: ``(num_rows, k)`` successors of each context, mutated.
        probs: ``(num_rows, k)`` their probabilities, mutated.
        keys: ``(num_rows,)`` what each row is about, mutated.
        num_direct: rows of contexts of one token.
        text: ``(length,)`` tokens.
        first: index of the first token that is entered as a successor, at least 1.
    """
    context = np.empty(LENGTHS, np.int32)
    last = ids.shape[1] - 1
    for i in range(first, text.size):
        if text[i] < 0 or text[i] >= num_direct:
            continue
        for back in range(LENGTHS):
            context[back] = text[i - 1 - back] if i - 1 - back >= 0 else np.int32(-1)
        for length in range(1, LENGTHS + 1):
            row, key = _find(keys, num_direct, context, length)
            if row < 0:
                break
            if keys[row] != key:
                keys[row] = key
                ids[row, :] = -1
            rank = 0
            while rank < last and ids[row, rank] != text[i] and ids[row, rank] >= 0:
                rank += 1
            if ids[row, rank] != text[i]:
                ids[row, rank] = text[i]
                probs[row, rank] = np.float32(0.5 ** (rank + 1))


@kernel
def successors(
    ids: Ints,
    probs: Floats,
    keys: Ints,
    num_direct: int,
    context: Ints,
    tokens: Ints,
    chances: Doubles,
) -> tuple[int, int]:
    """Mix the rows of a context's lengths into one distribution.

    Args:
        ids: ``(num_rows, k)`` successors of each context.
        probs: ``(num_rows, k)`` their probabilities.
        keys: ``(num_rows,)`` what each row is about.
        num_direct: rows of contexts of one token.
        context: ``(LENGTHS,)`` tokens, the last one first; negative where unknown.
        tokens: ``(LENGTHS * k,)``, overwritten with distinct successors.
        chances: ``(LENGTHS * k,)``, overwritten with their probabilities; the sum is at most 1.

    Returns:
        How many there are, and the longest context known (0 to LENGTHS).
    """
    rows = np.empty(LENGTHS, np.int64)
    longest = 0
    for length in range(1, LENGTHS + 1):
        row, key = _find(keys, num_direct, context, length)
        rows[length - 1] = -1
        if row < 0:
            break
        if keys[row] == key:
            rows[length - 1] = row
            longest = length
    count = 0
    for length in range(longest, 0, -1):
        row = int(rows[length - 1])
        if row < 0:
            continue
        weight = _WEIGHTS[longest - 1, length - 1]
        for rank in range(ids.shape[1]):
            token = ids[row, rank]
            if token < 0:
                break
            at = 0
            while at < count and tokens[at] != token:
                at += 1
            if at == count:
                tokens[at] = token
                chances[at] = 0.0
                count += 1
            chances[at] += weight * probs[row, rank]
    return count, longest


@kernel
def grow(
    ids: Ints,
    probs: Floats,
    keys: Ints,
    num_direct: int,
    tail: Ints,
    runner_ids: Ints,
    runner_probs: Floats,
    max_depth: int,
    min_prob: float,
    out_nodes: Ints,
    out_probs: Doubles,
) -> tuple[int, int]:
    """Draft the most probable paths behind a text, the best path extended first.

    Args:
        ids: ``(num_rows, k)`` successors of each context.
        probs: ``(num_rows, k)`` their probabilities.
        keys: ``(num_rows,)`` what each row is about.
        num_direct: rows of contexts of one token.
        tail: ``(LENGTHS,)`` the committed tokens, the last one first; negative where unknown.
        runner_ids: ``(num_runners,)`` what the target held likely instead of the last token.
        runner_probs: ``(num_runners,)`` their probabilities.
        max_depth: deepest node, at least 1.
        min_prob: path probability below which nothing is drafted.
        out_nodes: ``(2, max_nodes)``, overwritten with token ids and parents.
        out_probs: ``(max_nodes,)``, overwritten with path probabilities.

    Returns:
        The number of nodes, and the longest context known at the root (0 to LENGTHS).
    """
    max_nodes = out_probs.size
    width = LENGTHS * ids.shape[1] + runner_ids.size
    heap_nodes = np.empty(((max_nodes + 1) * width, 2), np.int32)
    heap_probs = np.empty((max_nodes + 1) * width, np.float64)
    contexts = np.empty((max_nodes + 1, LENGTHS), np.int32)
    depths = np.zeros(max_nodes + 1, np.int64)
    tokens = np.empty(width, np.int32)
    chances = np.empty(width, np.float64)
    contexts[0] = tail
    size = 0
    drafted = 0
    root_length = 0
    while True:
        # Entry ``drafted`` is the newest node (0: the root): its successors become candidates.
        if depths[drafted] < max_depth:
            count, longest = successors(
                ids, probs, keys, num_direct, contexts[drafted], tokens, chances
            )
            if drafted == 0:
                root_length = longest
                for rank in range(runner_ids.size):
                    if runner_ids[rank] < 0:
                        continue
                    at = 0
                    while at < count and tokens[at] != runner_ids[rank]:
                        at += 1
                    if at == count:
                        tokens[at] = runner_ids[rank]
                        chances[at] = 0.0
                        count += 1
                    chances[at] += _RUNNER_WEIGHTS[longest] * runner_probs[rank]
            above = out_probs[drafted - 1] if drafted > 0 else 1.0
            for i in range(count):
                chance = above * min(chances[i], 1.0)
                if chance < min_prob:
                    continue
                at = size
                size += 1
                while at > 0 and heap_probs[(at - 1) >> 1] < chance:
                    heap_probs[at] = heap_probs[(at - 1) >> 1]
                    heap_nodes[at] = heap_nodes[(at - 1) >> 1]
                    at = (at - 1) >> 1
                heap_probs[at] = chance
                heap_nodes[at, TOKEN] = tokens[i]
                heap_nodes[at, PARENT] = drafted - 1
        if size == 0 or drafted == max_nodes:
            return drafted, root_length
        token, parent = heap_nodes[0, TOKEN], heap_nodes[0, PARENT]
        out_nodes[TOKEN, drafted] = token
        out_nodes[PARENT, drafted] = parent
        out_probs[drafted] = heap_probs[0]
        drafted += 1
        contexts[drafted, 0] = token
        contexts[drafted, 1:] = contexts[parent + 1, :-1]
        depths[drafted] = depths[parent + 1] + 1
        size -= 1
        at = 0
        while True:
            below = 2 * at + 1
            if below >= size:
                break
            if below + 1 < size and heap_probs[below + 1] > heap_probs[below]:
                below += 1
            if heap_probs[below] <= heap_probs[size]:
                break
            heap_probs[at] = heap_probs[below]
            heap_nodes[at] = heap_nodes[below]
            at = below
        heap_probs[at] = heap_probs[size]
        heap_nodes[at] = heap_nodes[size]


def compile_kernels() -> None:
    """Compile the kernels that Python calls, for their one signature."""
    table = "int32[:,::1], float32[:,::1], int32[::1], int64"
    compile_once(record, f"void({table}, int32[::1], int32[:,::1], int32[:,::1], float32[:,::1])")
    compile_once(record_text, f"void({table}, int32[::1], int64)")
    compile_once(successors, f"UniTuple(int64, 2)({table}, int32[::1], int32[::1], float64[::1])")
    compile_once(
        grow,
        f"UniTuple(int64, 2)({table}, int32[::1], int32[::1], float32[::1], int64, float64, "
        "int32[:,::1], float64[::1])",
    )
