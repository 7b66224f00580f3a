"""Kernels of the suffix pool: depth-bounded suffix automata in one flat int32 arena.

An automaton fills an extent of the arena: a header and four tables.

- *Prefix states*, one a token: ``TOKEN, LINK``. State ``s >= 0`` stands for the whole text up to
  its token, which occurs once, so its only transition leads to the next row and is not stored.
  Row 0 and every negative id are barriers: nothing matches across them.
- *Branch states*, one a class of repeated contexts: ``LINK, TAIL, LENGTH, COUNT, LAST, PREVIOUS,
  DEGREE``. The state's number is ``-1 - row``; row 0 is the root, the empty context.
- *Edges* out of branch states: ``SOURCE, TOKEN, TARGET, CHAIN, SIBLING``. ``TAIL`` names the
  youngest edge of a state and ``SIBLING`` closes the ring, oldest first.
- *Buckets*, the first edge of each hash chain. They are never cleared: an entry counts only when
  the edge that it names exists and hashes to that bucket, and a stale entry cannot fake that,
  because that edge's own insertion overwrote it. So an extent is recycled in O(1).

A context is a run of up to ``MAX_CONTEXT`` tokens; the longest context of a branch is at most one
token longer. Counts of contexts and of their continuations are exact, and an append walks at most
``MAX_CONTEXT + 1`` suffix links whatever the text is. Kernels never raise; the class validates.

Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; the bound
on the depth as in Na et al. 2003, "Truncated suffix trees and their application to data
compression"; uninitialised memory as in Briggs and Torczon 1993, "An efficient representation for
sparse sets".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]

PREFIX_CAP, BRANCH_CAP, EDGE_CAP, BUCKET_MASK, MAX_CONTEXT = 0, 1, 2, 3, 4
NUM_PREFIX, NUM_BRANCH, NUM_EDGE, MAX_DEGREE = 5, 6, 7, 8
BRANCH_AT, EDGE_AT, BUCKET_AT = 9, 10, 11
HEADER = 16
"""Header fields; prefix states begin right behind them, the other tables at the ``_AT`` offsets."""

PREFIX_ROW, BRANCH_ROW, EDGE_ROW = 2, 8, 5
LINK, TAIL, LENGTH, COUNT, LAST, PREVIOUS, DEGREE = 0, 1, 2, 3, 4, 5, 6
ROOT_STATE = -1
BARRIER = -1
DEAD_END = -(1 << 40)


@kernel
def open_automaton(arena: IntArray, base: int, caps: LongArray) -> None:
    """Write the header of an empty automaton at ``base``; no table needs clearing.

    Args:
        arena: int32, the header and the root's row are overwritten.
        base: where the extent begins.
        caps: ``(5,)`` int64: rows of prefix states, branches and edges, the number of buckets (a
            power of two) less one, and the longest context.
    """
    for field in range(5):
        arena[u(base + field)] = caps[field]
    arena[u(base + NUM_PREFIX)] = 1
    arena[u(base + NUM_BRANCH)] = 1
    arena[u(base + NUM_EDGE)] = 0
    arena[u(base + MAX_DEGREE)] = 1
    branch_at = HEADER + PREFIX_ROW * caps[0]
    arena[u(base + BRANCH_AT)] = branch_at
    arena[u(base + EDGE_AT)] = branch_at + BRANCH_ROW * caps[1]
    arena[u(base + BUCKET_AT)] = branch_at + BRANCH_ROW * caps[1] + EDGE_ROW * caps[2]
    arena[u(base + HEADER)] = BARRIER
    arena[u(base + HEADER + 1)] = ROOT_STATE
    root = base + branch_at
    arena[root : root + BRANCH_ROW] = -1
    arena[u(root + LENGTH)] = 0
    arena[u(root + COUNT)] = 0
    arena[u(root + DEGREE)] = 0


@kernel
def grow_automaton(arena: IntArray, base: int, new_base: int, caps: LongArray) -> None:
    """Copy the automaton at ``base`` to ``new_base`` with larger tables, and hash it anew."""
    open_automaton(arena, new_base, caps)
    for field in (NUM_PREFIX, NUM_BRANCH, NUM_EDGE, MAX_DEGREE):
        arena[u(new_base + field)] = arena[u(base + field)]
    size = PREFIX_ROW * arena[u(base + NUM_PREFIX)]
    new, old = new_base + HEADER, base + HEADER
    arena[new : new + size] = arena[old : old + size]
    size = BRANCH_ROW * arena[u(base + NUM_BRANCH)]
    new, old = new_base + arena[u(new_base + BRANCH_AT)], base + arena[u(base + BRANCH_AT)]
    arena[new : new + size] = arena[old : old + size]
    size = EDGE_ROW * arena[u(base + NUM_EDGE)]
    new, old = new_base + arena[u(new_base + EDGE_AT)], base + arena[u(base + EDGE_AT)]
    arena[new : new + size] = arena[old : old + size]
    for edge in range(int(arena[u(base + NUM_EDGE)])):
        _hash_edge(arena, new_base, edge)


@kernel
def _bucket_of(source: int, token: int, mask: int) -> int:
    """Return the hash bucket of an edge; every product stays below 2**63."""
    mixed = (int(source) * 0x3C6EF35F) ^ (int(token) * 0x19660D07)
    mixed ^= mixed >> 31
    return (((mixed & 0x7FFFFFFF) * 0x5BD1E995) >> 15) & int(mask)


@kernel
def _first_edge(arena: IntArray, base: int, bucket: int, num_edges: int) -> int:
    """Return the first edge in a bucket's chain among the first ``num_edges``, or -1."""
    edge = int(arena[u(base + arena[u(base + BUCKET_AT)] + bucket)])
    if edge < 0 or edge >= num_edges:
        return -1
    at = base + arena[u(base + EDGE_AT)] + EDGE_ROW * edge
    if _bucket_of(arena[u(at)], arena[u(at + 1)], arena[u(base + BUCKET_MASK)]) != bucket:
        return -1
    return edge


@kernel
def find_edge(arena: IntArray, base: int, row: int, token: int) -> int:
    """Return the position in the arena of branch ``row``'s edge that reads ``token``, or -1."""
    bucket = _bucket_of(row, token, arena[u(base + BUCKET_MASK)])
    edge = _first_edge(arena, base, bucket, arena[u(base + NUM_EDGE)])
    edges = base + arena[u(base + EDGE_AT)]
    while edge >= 0:
        at = edges + EDGE_ROW * edge
        if arena[u(at)] == row and arena[u(at + 1)] == token:
            return int(at)
        edge = int(arena[u(at + 3)])
    return -1


@kernel
def _hash_edge(arena: IntArray, base: int, edge: int) -> None:
    """Put ``edge``, the youngest in the table so far, in front of its bucket's chain."""
    at = base + arena[u(base + EDGE_AT)] + EDGE_ROW * edge
    bucket = _bucket_of(arena[u(at)], arena[u(at + 1)], arena[u(base + BUCKET_MASK)])
    arena[u(at + 3)] = _first_edge(arena, base, bucket, edge)
    arena[u(base + arena[u(base + BUCKET_AT)] + bucket)] = edge


@kernel
def _add_edge(arena: IntArray, base: int, row: int, token: int, target: int) -> None:
    """Add an edge to branch ``row``; the caller knows that there is room."""
    edges = base + arena[u(base + EDGE_AT)]
    edge = int(arena[u(base + NUM_EDGE)])
    at = edges + EDGE_ROW * edge
    arena[u(at)] = row
    arena[u(at + 1)] = token
    arena[u(at + 2)] = target
    _hash_edge(arena, base, edge)
    branch = base + arena[u(base + BRANCH_AT)] + BRANCH_ROW * row
    if arena[u(branch + TAIL)] < 0:
        arena[u(at + 4)] = edge
    else:
        last = edges + EDGE_ROW * arena[u(branch + TAIL)]
        arena[u(at + 4)] = arena[u(last + 4)]
        arena[u(last + 4)] = edge
    arena[u(branch + TAIL)] = edge
    arena[u(branch + DEGREE)] += 1
    arena[u(base + MAX_DEGREE)] = max(arena[u(base + MAX_DEGREE)], arena[u(branch + DEGREE)])
    arena[u(base + NUM_EDGE)] = edge + 1


@kernel
def link_of(arena: IntArray, base: int, state: int) -> int:
    """Return the state of the longest context that ends like ``state`` in more places."""
    if state >= 0:
        return int(arena[u(base + HEADER + PREFIX_ROW * state + 1)])
    return int(arena[u(base + arena[u(base + BRANCH_AT)] + BRANCH_ROW * (-1 - state))])


@kernel
def length_of(arena: IntArray, base: int, state: int) -> int:
    """Return the length of the longest context of a branch state."""
    return int(arena[u(base + arena[u(base + BRANCH_AT)] + BRANCH_ROW * (-1 - state) + LENGTH)])


@kernel
def settle(arena: IntArray, base: int, state: int, length: int) -> int:
    """Return the state that holds the last ``length`` tokens of a context of ``state``."""
    while state != ROOT_STATE:
        link = link_of(arena, base, state)
        if length_of(arena, base, link) < length:
            break
        state = link
    return state


@kernel
def context_state(arena: IntArray, base: int) -> int:
    """Return the state of the longest repeated suffix of the text, a context at most."""
    state = link_of(arena, base, arena[u(base + NUM_PREFIX)] - 1)
    return settle(arena, base, state, arena[u(base + MAX_CONTEXT)])


@kernel
def _split(arena: IntArray, base: int, state: int, length: int) -> int:
    """Move the contexts of ``state`` up to ``length`` to a new branch state, and return that."""
    row = int(arena[u(base + NUM_BRANCH)])
    arena[u(base + NUM_BRANCH)] = row + 1
    branches = base + arena[u(base + BRANCH_AT)]
    at = branches + BRANCH_ROW * row
    arena[u(at + TAIL)] = -1
    arena[u(at + LENGTH)] = length
    arena[u(at + DEGREE)] = 0
    if state >= 0:
        old = base + HEADER + PREFIX_ROW * state
        arena[u(at + LINK)] = arena[u(old + 1)]
        arena[u(at + COUNT)] = 1
        arena[u(at + LAST)] = state
        arena[u(at + PREVIOUS)] = -1
        arena[u(old + 1)] = -1 - row
        if state + 1 < arena[u(base + NUM_PREFIX)] and arena[u(old + PREFIX_ROW)] >= 0:
            _add_edge(arena, base, row, arena[u(old + PREFIX_ROW)], state + 1)
        return -1 - row
    old = branches + BRANCH_ROW * (-1 - state)
    arena[u(at + LINK)] = arena[u(old + LINK)]
    arena[at + COUNT : at + DEGREE] = arena[old + COUNT : old + DEGREE]
    arena[u(old + LINK)] = -1 - row
    edges = base + arena[u(base + EDGE_AT)]
    tail = int(arena[u(old + TAIL)])
    edge = tail
    while edge >= 0:
        source = edges + EDGE_ROW * int(arena[u(edges + EDGE_ROW * edge + 4)])
        _add_edge(arena, base, row, arena[u(source + 1)], arena[u(source + 2)])
        edge = int(arena[u(edges + EDGE_ROW * edge + 4)])
        if edge == tail:
            break
    return -1 - row


@kernel
def _append_token(arena: IntArray, base: int, token: int) -> None:
    """Append one token; a negative one is a barrier. The caller knows that there is room."""
    new = int(arena[u(base + NUM_PREFIX)])
    at = base + HEADER + PREFIX_ROW * new
    state = context_state(arena, base)
    arena[u(at)] = max(int(token), BARRIER)
    arena[u(at + 1)] = ROOT_STATE
    arena[u(base + NUM_PREFIX)] = new + 1
    if token < 0:
        return
    edge = find_edge(arena, base, -1 - state, token)
    while edge < 0:
        _add_edge(arena, base, -1 - state, token, new)
        if state == ROOT_STATE:
            break
        state = link_of(arena, base, state)
        edge = find_edge(arena, base, -1 - state, token)
    target = ROOT_STATE
    if edge >= 0:
        target = int(arena[u(edge + 2)])
        length = min(length_of(arena, base, state), arena[u(base + MAX_CONTEXT)]) + 1
        if target >= 0 or length_of(arena, base, target) != length:
            old = target
            target = _split(arena, base, old, length)
            while edge >= 0 and arena[u(edge + 2)] == old:
                arena[u(edge + 2)] = target
                if state == ROOT_STATE:
                    break
                state = link_of(arena, base, state)
                edge = find_edge(arena, base, -1 - state, token)
    arena[u(at + 1)] = target
    branches = base + arena[u(base + BRANCH_AT)]
    while target < 0:  # every context that ends here occurs once more
        row = branches + BRANCH_ROW * (-1 - target)
        arena[u(row + COUNT)] += 1
        arena[u(row + PREVIOUS)] = arena[u(row + LAST)]
        arena[u(row + LAST)] = new
        target = 0 if target == ROOT_STATE else int(arena[u(row + LINK)])


@kernel
def append(arena: IntArray, base: int, tokens: IntArray, start: int, stop: int) -> int:
    """Append ``tokens[start:stop]`` while there is room; return the position reached."""
    for position in range(start, stop):
        most_edges = arena[u(base + MAX_CONTEXT)] + 2 + arena[u(base + MAX_DEGREE)]
        if (
            arena[u(base + NUM_PREFIX)] >= arena[u(base + PREFIX_CAP)]
            or arena[u(base + NUM_BRANCH)] >= arena[u(base + BRANCH_CAP)]
            or arena[u(base + NUM_EDGE)] + most_edges > arena[u(base + EDGE_CAP)]
        ):
            return position
        _append_token(arena, base, tokens[position])
    return stop


@kernel
def advance(arena: IntArray, base: int, state: int, length: int, token: int) -> tuple[int, int]:
    """Read ``token`` from a state; return the state and length of the longest match then."""
    if token < 0:
        return ROOT_STATE, 0
    state = settle(arena, base, state, length)
    while True:
        target = DEAD_END
        if state >= 0:
            after = base + HEADER + PREFIX_ROW * (state + 1)
            if state + 1 < arena[u(base + NUM_PREFIX)] and arena[u(after)] == token:
                target = state + 1
        else:
            edge = find_edge(arena, base, -1 - state, token)
            if edge >= 0:
                target = int(arena[u(edge + 2)])
        if target != DEAD_END:
            length = min(length + 1, int(arena[u(base + MAX_CONTEXT)]))
            return settle(arena, base, target, length), length
        if state == ROOT_STATE:
            return ROOT_STATE, 0
        state = link_of(arena, base, state)
        length = length_of(arena, base, state)


@kernel
def follow(arena: IntArray, cursor: LongArray, first: int, stop: int, tokens: IntArray) -> None:
    """Read tokens in the sources ``first..stop - 1``, without adding to any.

    Args:
        arena: int32, the automata.
        cursor: ``(num_sources, 3)`` int64: extent (-1 where there is none), state, matched length.
        first: the first source.
        stop: behind the last source.
        tokens: ``(num_new,)`` int32.
    """
    for source in range(first, stop):
        base, state, length = cursor[source, 0], cursor[source, 1], cursor[source, 2]
        if base >= 0:
            for token in tokens:
                state, length = advance(arena, base, state, length, token)
            cursor[source, 1] = state
            cursor[source, 2] = length


@kernel
def catch_up(arena: IntArray, cursor: LongArray, tokens: IntArray, start: int, stop: int) -> int:
    """Append ``tokens[start:stop]`` to a request's own text while there is room.

    Args:
        arena: int32, the automata; the first source's is changed.
        cursor: ``(num_sources, 3)`` int64, see ``follow``; the first source's is moved.
        tokens: int32.
        start: position of the first new token.
        stop: position behind the last.

    Returns:
        The position behind the last token appended.
    """
    base = cursor[0, 0]
    reached = append(arena, base, tokens, start, stop)
    cursor[0, 1] = context_state(arena, base)
    cursor[0, 2] = min(length_of(arena, base, cursor[0, 1]), arena[u(base + MAX_CONTEXT)])
    return reached


@kernel
def extend(arena: IntArray, cursor: LongArray, tokens: IntArray, start: int, stop: int) -> int:
    """Do as ``catch_up``, and read the tokens appended in the other sources too."""
    reached = catch_up(arena, cursor, tokens, start, stop)
    follow(arena, cursor, 1, cursor.shape[0], tokens[start:reached])
    return reached


def compile_kernels() -> None:
    """Compile each kernel for its one signature; a process does so once."""
    compile_once(open_automaton, "void(int32[::1], int64, int64[::1])")
    compile_once(_bucket_of, "int64(int64, int64, int64)")
    compile_once(_first_edge, "int64(int32[::1], int64, int64, int64)")
    compile_once(find_edge, "int64(int32[::1], int64, int64, int64)")
    compile_once(_hash_edge, "void(int32[::1], int64, int64)")
    compile_once(_add_edge, "void(int32[::1], int64, int64, int64, int64)")
    compile_once(link_of, "int64(int32[::1], int64, int64)")
    compile_once(length_of, "int64(int32[::1], int64, int64)")
    compile_once(settle, "int64(int32[::1], int64, int64, int64)")
    compile_once(context_state, "int64(int32[::1], int64)")
    compile_once(_split, "int64(int32[::1], int64, int64, int64)")
    compile_once(_append_token, "void(int32[::1], int64, int64)")
    compile_once(append, "int64(int32[::1], int64, int32[::1], int64, int64)")
    compile_once(grow_automaton, "void(int32[::1], int64, int64, int64[::1])")
    compile_once(advance, "UniTuple(int64, 2)(int32[::1], int64, int64, int64, int64)")
    compile_once(follow, "void(int32[::1], int64[:,::1], int64, int64, int32[::1])")
    compile_once(catch_up, "int64(int32[::1], int64[:,::1], int32[::1], int64, int64)")
    compile_once(extend, "int64(int32[::1], int64[:,::1], int32[::1], int64, int64)")
