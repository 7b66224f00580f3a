"""The look-ahead drafter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lookahead_oracles import PlainLookahead
from oracles import tree_paths
from tiny_models import VOCAB_SIZE, tiny_llama

import freedraft
from freedraft.drafters.base import Drafter, Feedback, SendsProbes
from freedraft.drafters.lookahead import LookaheadConfig, LookaheadDrafter
from freedraft.drafters.lookahead import _pool_kernels as kernels
from freedraft.drafters.lookahead.gate import WindowGate
from freedraft.drafters.lookahead.window import Window
from freedraft.drafters.tree import CandidateTree

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
SMALL: dict[str, Any] = {"max_vocab_size": 64}


def pool_of(pool: np.ndarray) -> dict[int, list[tuple[int, ...]]]:
    """Return a pool's array as the oracle has it."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for first, guesses in enumerate(pool.tolist()):
        rows = [(first, *(token - 1 for token in guess)) for guess in guesses if guess[0]]
        if rows:
            found[first] = rows
    return found


@pytest.mark.parametrize(("window_size", "ngram_size"), [(1, 2), (4, 2), (3, 3), (6, 4)])
def test_harvest_equals_the_plain_algorithm_step_by_step(window_size: int, ngram_size: int) -> None:
    model = tiny_llama(seed=2)
    prompt, new_tokens, max_nodes = [5, 6, 7, 5, 6, 9, 5], 24, 60

    def choose(text: Sequence[int]) -> int:
        with torch.no_grad():
            return int(model(torch.tensor([list(text)])).logits[0, -1].argmax())

    drafter = LookaheadDrafter(LookaheadConfig(window_size, ngram_size, guess_set_size=3, **SMALL))
    plain = PlainLookahead(choose, prompt, window_size, ngram_size, guess_set_size=3)
    num_left, steps, widest = new_tokens, 0, 0

    def compare(report: freedraft.StepReport) -> None:
        nonlocal num_left, steps, widest
        if steps == 0:  # the prompt's own step sends nothing
            plain.commit(report.token_ids)
        else:
            plain.step(report.token_ids, min(num_left - 1, max_nodes))
        num_left -= len(report.token_ids)
        steps += 1
        (request,) = drafter._requests.values()
        width = request.window.width
        assert request.window.levels.tolist() == [row[:width] for row in plain.levels]
        assert all(len(row) == width for row in plain.levels)
        assert pool_of(request.pool) == plain.pool
        widest = max(widest, report.num_drafted)

    text = freedraft.generate(
        model, prompt, drafter=drafter, max_new_tokens=new_tokens, max_nodes=max_nodes,
        cost_gate=False, do_sample=False, on_step=compare,
    )  # fmt: skip
    assert isinstance(text, torch.Tensor)
    wanted = model.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False)
    assert torch.equal(text, wanted)
    assert len(plain.harvested) > new_tokens // 2 or window_size == 1
    assert plain.harvested and widest > window_size


@settings(max_examples=60 if COMPILED else 10, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=20),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_pool_and_its_tree_equal_the_plain_ones(
    ngrams: list[list[int]], num_guesses: int, max_nodes: int, max_depth: int
) -> None:
    kernels.compile_kernels()
    pool = np.zeros((3, num_guesses, 2), np.int32)
    kernels.store(pool, np.array(ngrams, np.int32).reshape(-1, 3))
    plain: dict[int, list[tuple[int, ...]]] = {}
    for ngram in map(tuple, ngrams):
        if max(ngram) < 3:  # 3 lies outside the pool
            others = [known for known in plain.get(ngram[0], []) if known != ngram]
            plain[ngram[0]] = [ngram, *others][:num_guesses]
    assert pool_of(pool) == plain
    chances = np.linspace(0.9, 0.1, num_guesses * 2).reshape(num_guesses, 2)
    out, probs = np.empty((3, max_nodes), np.int32), np.empty(max_nodes)
    for first in range(-1, 4):
        size = kernels.grow(pool, first, chances, max_depth, out, probs)
        paths = tree_paths(*out[:2, :size].tolist())
        wanted: dict[tuple[int, ...], int] = {}
        for rank, ngram in enumerate(plain.get(first, [])):
            for depth in range(1, min(2, max_depth) + 1):
                wanted.setdefault(ngram[1 : 1 + depth], rank)
        assert len(set(paths)) == size
        assert set(paths) <= set(wanted)
        assert size == min(max_nodes, len(wanted)) or size < max_nodes
        if len(wanted) <= max_nodes:
            assert dict(zip(paths, out[2, :size].tolist(), strict=True)) == wanted
        CandidateTree(out[0, :size], out[1, :size], probs[:size].astype(np.float32)).validate()


def test_window_serves_itself_of_nodes_that_are_there() -> None:
    window = Window(3, seed=0)
    window.levels = np.array([[1, 2], [2, 4]], np.int32)
    window._choices = np.array([1, 1])
    tree = CandidateTree.from_chains([[1, 2, 3], [9]])
    added, nodes = window.add_to(tree, 2, 10)
    # root - 1 - 2 (row 0, and below 1 its level 1 is the same 2) - 4
    assert added.token_ids.tolist() == [1, 2, 3, 9, 4]
    assert nodes.tolist() == [[0, 1], [1, 4]]
    assert added.probs.tolist() == [1, 1, 1, 1, 0]
    added.validate()
    same, none = window.add_to(tree, 2, 4)  # no room for the second column
    assert same.num_nodes == 4 and none.tolist() == [[0], [1]]


def test_probes_are_accepted_where_they_hold_the_targets_token() -> None:
    drafter = LookaheadDrafter(LookaheadConfig(2, 2, **SMALL))
    drafter.start("a", [7])
    (tree,) = drafter.add_probes(["a"], [CandidateTree.empty()], 8, [8], None)
    assert tree.token_ids.tolist() == [7, 7] and tree.probs.tolist() == [0, 0]
    feedback = Feedback(
        np.array([7, 3], np.int32), np.array([0], np.int32), np.array([7, 3, 4], np.int32)
    )
    drafter.observe("a", tree, feedback)
    drafter.extend("a", [7, 3])
    (tree,) = drafter.propose(["a"], 8, 8)
    assert tree.token_ids.tolist() == []  # behind 3 nothing is known, but behind 7 there is:
    drafter.extend("a", [7])
    (tree,) = drafter.propose(["a"], 8, 8)
    assert 3 in tree.token_ids.tolist()


def test_a_tree_that_was_cut_meanwhile_is_not_read() -> None:
    drafter = LookaheadDrafter(LookaheadConfig(2, 2, text_ngrams=False, **SMALL))
    drafter.start("a", [7, 8])
    (tree,) = drafter.add_probes(["a"], [CandidateTree.empty()], 8, [8], None)
    window = drafter._requests["a"].window.levels.copy()
    one = np.array([3], np.int32)
    drafter.observe("a", tree.cut(1), Feedback(one, one[:0], np.array([3, 4], np.int32)))
    drafter.extend("a", [3])
    request = drafter._requests["a"]
    assert np.array_equal(request.window.levels, window[:, 1:])  # overtaken by one token
    assert not request.pool.any()


def test_drawn_trees_and_unknown_requests_get_no_probes() -> None:
    drafter = LookaheadDrafter(LookaheadConfig(2, 3, **SMALL))
    drafter.start("a", [7])
    drawn = CandidateTree.from_arrays([1], [-1], [0.5], np.eye(4)[[1]])
    empty = CandidateTree.empty()
    assert drafter.add_probes(["a"], [drawn], 8, [8], None)[0] is drawn
    assert drafter.add_probes(["nobody"], [empty], 8, [8], None)[0] is empty
    drafter.start("b", [])
    assert drafter.add_probes(["b"], [empty], 8, [8], None)[0].num_nodes == 0
    assert drafter.add_probes(["a"], [empty], 8, [0], None)[0].num_nodes == 0
    assert drafter.add_probes(["a"], [empty], 0, [8], None)[0].num_nodes == 0


def test_window_shrinks_to_nothing_where_probes_do_not_pay_and_comes_back() -> None:
    gate = WindowGate(8)
    widths = []
    for _ in range(32 * 5):
        gate.record(gain=0, num_emitted=1, cost=0.1)
        widths.append(gate.width)
    assert widths[0] == 8 and {4, 2, 1, 0} <= set(widths)
    for _ in range(32 * 4):  # tried again after a while, and now it pays
        gate.record(gain=1, num_emitted=2, cost=0.1 if gate.width else 0.0)
    assert gate.width == 8


def test_waits_grow_while_nothing_pays() -> None:
    gate = WindowGate(1)
    zero = []
    for _ in range(4000):
        gate.record(gain=0, num_emitted=1, cost=0.1 if gate.width else 0.0)
        zero.append(gate.width == 0)
    assert np.mean(zero[:200]) < np.mean(zero[-2000:])
    assert np.mean(zero[-2000:]) > 0.9


def test_costs_close_the_window_of_the_drafter() -> None:
    drafter = LookaheadDrafter(LookaheadConfig(4, 2, **SMALL))
    drafter.start("a", [1])
    costs = 1.0 + np.arange(17) / 4
    sizes = []
    for token in range(2, 60):  # never what was guessed
        (tree,) = drafter.add_probes(["a"], [CandidateTree.empty()], 16, [16], costs)
        sizes.append(tree.num_nodes)
        one = np.array([token % 60], np.int32)
        choices = np.full(tree.num_nodes + 1, 61, np.int32)
        drafter.observe("a", tree, Feedback(one, one[:0], choices))
        drafter.extend("a", one)
    assert max(sizes[:3]) == 4 and drafter.window_size < 4
    assert drafter.num_probes == 4
    # Where nobody counts, the window is whole.
    (tree,) = drafter.add_probes(["a"], [CandidateTree.empty()], 16, [16], None)
    assert tree.num_nodes == 4


def test_edges() -> None:
    drafter = LookaheadDrafter(LookaheadConfig(2, 3, **SMALL))
    assert isinstance(drafter, Drafter) and isinstance(drafter, SendsProbes)
    drafter.start("a", [-1, -1, 2, 3, 4, 2])
    (tree,) = drafter.propose(["a"], 8, 8)
    assert tree.token_ids.tolist() == [3, 4]
    assert drafter.propose(["a"], 8, 1)[0].token_ids.tolist() == [3]
    assert drafter.propose(["a"], 1, 8)[0].token_ids.tolist() == [3]
    assert drafter.propose(["a", "b"], 0, 8)[0].num_nodes == 0
    assert drafter.propose(["nobody"], 8, 8)[0].num_nodes == 0
    drafter.observe("nobody", tree, Feedback(tree.token_ids, tree.token_ids, tree.token_ids))
    drafter.extend("nobody", [1])
    drafter.truncate("a", 4)  # ends with 3
    assert drafter.propose(["a"], 8, 8)[0].token_ids.tolist() == [4, 2]
    drafter.truncate("a", 0)
    assert drafter.propose(["a"], 8, 8)[0].num_nodes == 0
    with pytest.raises(ValueError, match="length >= 0"):
        drafter.truncate("a", -1)
    drafter.start("a", [3], "other")
    assert drafter.propose(["a"], 8, 8)[0].num_nodes == 0  # another namespace's pool
    drafter.start("a", [3])
    assert drafter.propose(["a"], 8, 8)[0].num_nodes == 2
    drafter.stop("a")
    drafter.stop("a")
    assert drafter.propose(["a"], 8, 8)[0].num_nodes == 0
    drafter.start("a", [63, 64, 65, 63])
    drafter.extend("a", [VOCAB_SIZE, 64])
    assert drafter.propose(["a"], 8, 8)[0].num_nodes == 0


def test_kernels_are_compiled_by_the_constructor() -> None:
    LookaheadDrafter(LookaheadConfig(**SMALL))
    for kernel in (kernels.store, kernels.store_text, kernels.grow):
        assert not COMPILED or len(kernel.signatures) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_size": 0},
        {"ngram_size": 1},
        {"guess_set_size": 0},
        {"max_vocab_size": 0},
        {"max_namespaces": 0},
        {"seed": -1},
    ],
)
def test_settings_are_checked(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"expected {name} within .*, got"):
        LookaheadConfig(**wrong)
