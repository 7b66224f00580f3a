"""The suffix automaton and its readers against plain counting."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_oracles import BARRIER, continuations, endings, longest_match

from freedraft.drafters.suffix import _automaton_kernels as kernels
from freedraft.drafters.suffix import _tree_kernels as tree_kernels
from freedraft.drafters.suffix import _trust_kernels as trust_kernels
from freedraft.drafters.suffix import _vote_kernels as vote_kernels

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
BASE = 3
EXAMPLES = settings(max_examples=300 if COMPILED else 40, deadline=None)

texts = st.lists(st.integers(-1, 3), max_size=60)
contexts = st.integers(1, 7)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    kernels.compile_kernels()
    tree_kernels.compile_kernels()
    trust_kernels.compile_kernels()


def caps_for(num_tokens: int, max_context: int) -> np.ndarray:
    num_edges = 4 * num_tokens + 2 * max_context + 16
    return np.array([num_tokens + 1, 2 * num_tokens + 2, num_edges, 7, max_context], np.int64)


def build(text: list[int], max_context: int, seed: int = 0) -> np.ndarray:
    """An automaton in memory full of rubbish, as when an extent is used again."""
    arena = np.random.default_rng(seed).integers(-5, 90, 8000).astype(np.int32)
    kernels.open_automaton(arena, BASE, caps_for(len(text), max_context))
    tokens = np.array(text, np.int32)
    assert kernels.append(arena, BASE, tokens, 0, len(text)) == len(text)
    return arena


def row_of(arena: np.ndarray, state: int) -> np.ndarray:
    start = BASE + arena[BASE + kernels.BRANCH_AT] + kernels.BRANCH_ROW * (-1 - state)
    return arena[start : start + kernels.BRANCH_ROW]


def counts_of(arena: np.ndarray, state: int) -> tuple[int, dict[int, int]]:
    """How often the state's contexts occur, and how often each token follows."""
    if state >= 0:
        after = BASE + kernels.HEADER + kernels.PREFIX_ROW * (state + 1)
        ends = state + 1 >= arena[BASE + kernels.NUM_PREFIX] or arena[after] < 0
        return 1, {} if ends else {int(arena[after]): 1}
    row = row_of(arena, state)
    followed: dict[int, int] = {}
    edge = tail = int(row[kernels.TAIL])
    while edge >= 0:
        edges = BASE + arena[BASE + kernels.EDGE_AT]
        edge = int(arena[edges + kernels.EDGE_ROW * edge + 4])
        token, target = arena[edges + kernels.EDGE_ROW * edge + 1 :][:2].tolist()
        followed[token] = 1 if target >= 0 else int(row_of(arena, target)[kernels.COUNT])
        if edge == tail:
            break
    assert len(followed) == row[kernels.DEGREE]
    return int(row[kernels.COUNT]), followed


def read(arena: np.ndarray, tokens: list[int]) -> tuple[int, int]:
    state, length = kernels.ROOT_STATE, 0
    for token in tokens:
        state, length = kernels.advance(arena, BASE, state, length, token)
    return state, length


@EXAMPLES
@given(texts, contexts, st.integers(0, 3))
def test_counts_of_every_context_are_exact(text: list[int], max_context: int, seed: int) -> None:
    arena = build(text, max_context, seed)
    for stop in range(len(text) + 1):
        for size in range(1, min(max_context, stop) + 1):
            context = tuple(text[stop - size : stop])
            if BARRIER in context:
                break
            state, length = read(arena, list(context))
            assert length == size
            count, followed = counts_of(arena, state)
            assert count == len(endings(text, context))
            assert followed == continuations(text, context)
            if state < 0:
                row = row_of(arena, state)
                latest = [int(row[kernels.LAST]), int(row[kernels.PREVIOUS])]
                assert latest == endings(text, context)[:-3:-1]


@EXAMPLES
@given(texts, contexts)
def test_context_state_is_the_longest_repeated_suffix(text: list[int], max_context: int) -> None:
    arena = build(text, max_context)
    state = kernels.context_state(arena, BASE)
    found = min(kernels.length_of(arena, BASE, state), max_context)
    assert found == len(longest_match(text, text, max_context, 2))


@EXAMPLES
@given(texts, texts, contexts)
def test_reading_finds_the_longest_match(
    text: list[int], other: list[int], max_context: int
) -> None:
    arena = build(text, max_context)
    state, length = kernels.ROOT_STATE, 0
    for stop, token in enumerate(other, 1):
        state, length = kernels.advance(arena, BASE, state, length, token)
        context = longest_match(text, other[:stop], max_context, 1)
        assert length == len(context)
        if length:
            assert counts_of(arena, state)[0] == len(endings(text, context))


@EXAMPLES
@given(texts, texts, contexts)
def test_a_reader_stays_right_while_the_text_grows(
    text: list[int], more: list[int], max_context: int
) -> None:
    arena = build(text, max_context)
    big = np.zeros(40000, np.int32)
    big[: arena.size] = arena
    caps = caps_for(len(text) + len(more), max_context)
    kernels.grow_automaton(big, BASE, arena.size, caps)
    grown = big[arena.size - BASE :].copy()
    state, length = read(grown, text)
    kernels.append(grown, BASE, np.array([BARRIER, *more], np.int32)[: len(more)], 0, len(more))
    grown_text = [*text, BARRIER, *more][: len(text) + len(more)]
    state = kernels.settle(grown, BASE, state, length)
    if length:
        context = tuple(text[len(text) - length :])
        assert counts_of(grown, state) == (
            len(endings(grown_text, context)),
            continuations(grown_text, context),
        )


@EXAMPLES
@given(texts, contexts, st.integers(1, 12), st.integers(1, 12))
def test_a_full_automaton_stops_and_stays_right(
    text: list[int], max_context: int, branches: int, tokens: int
) -> None:
    caps = caps_for(tokens, max_context)
    caps[1] = branches
    arena = np.full(4000, 7, np.int32)
    kernels.open_automaton(arena, BASE, caps)
    reached = kernels.append(arena, BASE, np.array(text, np.int32), 0, len(text))
    assert reached <= tokens
    assert (arena[BASE + kernels.BUCKET_AT] + 8 + BASE <= arena.size) and np.all(
        arena[BASE + arena[BASE + kernels.BUCKET_AT] + 8 :] == 7
    )
    for token in set(text[:reached]) - {BARRIER}:
        state, _ = read(arena, [token])
        assert counts_of(arena, state)[1] == continuations(text[:reached], (token,))


@pytest.mark.skipif(not COMPILED, reason="the compiler is off")
def test_each_kernel_has_one_signature() -> None:
    for module in (kernels, tree_kernels, trust_kernels, vote_kernels):
        for value in vars(module).values():
            if hasattr(value, "signatures") and value.__module__ == module.__name__:
                assert len(value.signatures) == 1, value
