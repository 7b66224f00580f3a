"""Kernel that learns, token by token, how far contexts can be trusted.

The tree kernels mix what followed each context, longest first, with weights from a table. One step
of stochastic gradient descent on the likelihood of a committed token moves the entries that spoke.
The readers below repeat those of the voting kernels, but for what a shape is: Numba's cache does
not see edits in another file, so that each kernel on the way to one must be named.

Source: on-line mixing of context models by coding cost, as in Mahoney 2005, "Adaptive weighing of
context models for lossless data compression".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u
from . import _vote_kernels as voting
from ._automaton_kernels import (
    BRANCH_AT,
    BRANCH_ROW,
    COUNT,
    DEGREE,
    EDGE_AT,
    EDGE_ROW,
    HEADER,
    LAST,
    LENGTH,
    NUM_PREFIX,
    PREFIX_ROW,
    PREVIOUS,
    TAIL,
    extend,
)
from ._vote_kernels import BONUS, MAX_EDGES, shape_of

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
DoubleArray = npt.NDArray[np.float64]
TakeIn = Callable[[IntArray, LongArray, int, IntArray, int, float, DoubleArray, LongArray], int]

MAX_ASKED = 48
"""Contexts of one place that learn at most."""
NOVEL = 2e-5
"""Probability of a token that no context knows: one in a vocabulary."""


@kernel
def _link_of(arena: IntArray, base: int, state: int) -> int:
    if state >= 0:
        return int(arena[u(base + HEADER + PREFIX_ROW * state + 1)])
    return int(arena[u(base + arena[u(base + BRANCH_AT)] + BRANCH_ROW * (-1 - state))])


@kernel
def _length_of(arena: IntArray, base: int, state: int) -> int:
    return int(arena[u(base + arena[u(base + BRANCH_AT)] + BRANCH_ROW * (-1 - state) + LENGTH)])


@kernel
def _token_after(arena: IntArray, base: int, position: int) -> int:
    if position < 0 or position + 1 >= arena[u(base + NUM_PREFIX)]:
        return -1
    return int(arena[u(base + HEADER + PREFIX_ROW * (position + 1))])


@kernel
def _share_of(arena: IntArray, base: int, state: int, token: int) -> tuple[int, float]:
    """Return the shape of a context's counts and the share of its trust that ``token`` gets.

    The shape is -1 where nothing followed.
    """
    if state >= 0:
        after = _token_after(arena, base, state)
        return (-1 if after < 0 else 0), (1.0 if after == token else 0.0)
    branches = base + arena[u(base + BRANCH_AT)]
    row = branches + BRANCH_ROW * (-1 - state)
    count, latest = int(arena[u(row + COUNT)]), int(arena[u(row + LAST)])
    if latest + 1 == arena[u(base + NUM_PREFIX)]:
        count, latest = count - 1, int(arena[u(row + PREVIOUS)])
    degree = int(arena[u(row + DEGREE)])
    if degree == 0 or count <= 0:
        return -1, 0.0
    after = _token_after(arena, base, latest)
    total = float(count) if after < 0 else count + BONUS
    times = BONUS if after == token else 0.0
    edges = base + arena[u(base + EDGE_AT)]
    edge = int(arena[u(row + TAIL)])
    for _ in range(min(degree, MAX_EDGES)):
        edge = int(arena[u(edges + EDGE_ROW * edge + 4)])
        at = edges + EDGE_ROW * edge
        if arena[u(at + 1)] == token:
            target = int(arena[u(at + 2)])
            times += 1.0 if target >= 0 else arena[u(branches + BRANCH_ROW * (-1 - target) + COUNT)]
            break
    return shape_of(count, degree), times / total


@kernel
def learn(
    arena: IntArray, cursor: LongArray, token: int, rate: float, trust: DoubleArray,
    groups: LongArray,
) -> None:  # fmt: skip
    """Move the trust in the contexts of a request's place towards the token that followed.

    Args:
        arena: int32, the automata.
        cursor: ``(num_sources, 3)`` int64, where the request stands before ``token``: extent,
            state, matched length; the first source is its own text.
        token: what the target said; nothing is learned from a negative one.
        rate: step of the descent, in logits.
        trust: ``(2, 2, num_groups, num_shapes)`` float64, see the tree kernels; changed.
        groups: ``(max_context + 1,)`` int64, the group of each length.
    """
    if token < 0:
        return
    states = cursor[:, 1].copy()
    lengths = cursor[:, 2].copy()
    flat = trust.reshape(trust.size)
    cells = np.empty(MAX_ASKED, np.int64)
    shares = np.empty(MAX_ASKED, np.float64)
    asked = 0
    while asked < MAX_ASKED:
        source, length = 0, 0
        for other in range(lengths.size):
            if lengths[u(other)] > length:
                source, length = other, lengths[u(other)]
        if length == 0:
            break
        base, state = cursor[source, 0], states[u(source)]
        states[u(source)] = _link_of(arena, base, state)
        lengths[u(source)] = _length_of(arena, base, states[u(source)])
        if lengths[u(source)] >= length:
            lengths[u(source)] = length  # the state was split since: ask the one that took over
            continue
        shape, share = _share_of(arena, base, state, token)
        if shape >= 0:
            table = 2 * min(source, 1) + min(asked, 1)
            cells[u(asked)] = (table * trust.shape[2] + groups[length]) * trust.shape[3] + shape
            shares[u(asked)] = share
            asked += 1
    rest = np.empty(MAX_ASKED + 1, np.float64)  # what the later contexts give, all mass spent
    rest[u(asked)] = NOVEL
    for index in range(asked - 1, -1, -1):
        weight = flat[u(cells[u(index)])]
        rest[u(index)] = weight * shares[u(index)] + (1 - weight) * rest[u(index + 1)]
    mass = 1.0
    for index in range(asked):
        weight = flat[u(cells[u(index)])]
        slope = mass * weight * (1 - weight) * (shares[u(index)] - rest[u(index + 1)]) / rest[u(0)]
        odds = weight / (1 - weight) * np.exp(rate * slope)
        flat[u(cells[u(index)])] = min(max(odds / (1 + odds), 1e-3), 1 - 1e-3)
        mass *= 1 - weight


@kernel
def take_in(
    arena: IntArray, cursors: LongArray, row: int, tokens: IntArray, place: int, rate: float,
    trust: DoubleArray, groups: LongArray,
) -> int:  # fmt: skip
    """Append a step's tokens to a request's text, and learn from the one at ``place``.

    Args:
        arena: int32, the automata; that of the request is changed.
        cursors: ``(num_rows, num_sources, 3)`` int64, where each request stands; moved.
        row: the request's.
        tokens: int32, at least one.
        place: of the token that speaks for all.
        rate: see ``learn``.
        trust: see ``learn``; changed.
        groups: see ``learn``.

    Returns:
        How many tokens there was room for.
    """
    cursor = cursors[row]
    is_open = cursor[0, 0] >= 0  # else nothing was indexed of the request so far
    reached = extend(arena, cursor, tokens, 0, place) if place > 0 and is_open else 0
    if reached == place:
        learn(arena, cursor, int(tokens[u(place)]), rate, trust, groups)
        reached = extend(arena, cursor, tokens, place, tokens.size) if is_open else 0
    return reached


def compile_kernels() -> TakeIn:
    """Compile each kernel for its one signature, and return the one that Python calls."""
    voting.compile_kernels()
    compile_once(_link_of, "int64(int32[::1], int64, int64)")
    compile_once(_length_of, "int64(int32[::1], int64, int64)")
    compile_once(_token_after, "int64(int32[::1], int64, int64)")
    compile_once(
        _share_of, "Tuple((int64, float64))(int32[::1], int64, int64, int64)", calls=(shape_of,)
    )
    compile_once(
        learn,
        "void(int32[::1], int64[:,::1], int64, float64, float64[:,:,:,::1], int64[::1])",
        calls=(_share_of,),
    )
    return compile_once(
        take_in,
        "int64(int32[::1], int64[:,:,::1], int64, int32[::1], int64, float64, "
        "float64[:,:,:,::1], int64[::1])",
        calls=(extend, learn),
    )
