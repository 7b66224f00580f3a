"""The recycling drafter."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import tree_paths
from recycling_oracles import PlainTable, random_top

from freedraft.drafters.base import Drafter, Feedback, WantsTopIds
from freedraft.drafters.recycling import RecyclingConfig, RecyclingDrafter
from freedraft.drafters.recycling import _table_kernels as kernels
from freedraft.drafters.recycling.table import SuccessorTable, TableShape, newest_first
from freedraft.drafters.snapshot import SnapshotError, write_snapshot
from freedraft.drafters.tree import CandidateTree

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
SMALL = RecyclingConfig(num_successors=3, max_vocab_size=64, hash_bits=12)


def heard(
    drafter: RecyclingDrafter,
    request_id: object,
    tree: CandidateTree,
    token_ids: list[int],
    tops: list[dict[int, float]],
    accepted: tuple[int, ...] = (),
) -> None:
    """Tell a drafter of a step: the tokens likely after the root and after each node."""
    top_ids = np.array([list(top) for top in tops], np.int32)
    logprobs = np.log(np.array([list(top.values()) for top in tops], np.float32))
    feedback = Feedback(
        np.array(token_ids, np.int32), np.array(accepted, np.int32), top_ids[:, 0], top_ids,
        logprobs,
    )  # fmt: skip
    drafter.observe(request_id, tree, feedback)
    drafter.extend(request_id, token_ids)


def drawn(drafter: RecyclingDrafter, request_id: object, max_nodes: int = 16) -> set[tuple]:
    (tree,) = drafter.propose([request_id], max_nodes, max_nodes)
    tree.validate()
    return set(tree_paths(tree.token_ids.tolist(), tree.parents.tolist()))


@settings(max_examples=60 if COMPILED else 8, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_tree_equals_the_plain_one(seed: int, num_successors: int, num_top: int) -> None:
    rng = np.random.default_rng(seed)
    kernels.compile_kernels()
    vocab_size = 6
    table = SuccessorTable(TableShape(num_successors, vocab_size, 14))
    plain = PlainTable(num_successors)
    text = rng.integers(-1, vocab_size, 12).tolist()
    table.record_text(np.array(text, np.int32), 1)
    plain.record_text(text, 1)
    for _ in range(4):
        size = int(rng.integers(0, 5))
        tokens = rng.integers(0, vocab_size, size).tolist()
        parents = [int(rng.integers(-1, node)) for node in range(size)]
        top_ids, top_probs = random_top(rng, size + 1, num_top, vocab_size)
        if size:
            top_ids[-1][0] = -1  # not asked there
        table.record(
            newest_first(np.array(text, np.int32)),
            CandidateTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(size)),
            np.array(top_ids, np.int32),
            np.array(top_probs, np.float32),
        )
        plain.record(text, tokens, parents, top_ids, top_probs)
        text.append(int(rng.integers(0, vocab_size)))
    (runner_ids,), (runner_probs,) = random_top(rng, 1, 2, vocab_size)
    wanted = plain.paths(text, list(zip(runner_ids, runner_probs, strict=True)), 3)
    nodes = np.empty((2, 20), np.int32)
    probs = np.empty(20, np.float64)
    size, longest = kernels.grow(
        table.ids, table.probs, table.keys, vocab_size, newest_first(np.array(text, np.int32)),
        np.array(runner_ids, np.int32), np.array(runner_probs, np.float32), 3, 1e-4, nodes, probs,
    )  # fmt: skip
    assert longest == plain.successors(text)[1]
    got = dict(zip(tree_paths(*nodes[:, :size].tolist()), probs[:size].tolist(), strict=True))
    assert len(got) == size
    for path, prob in got.items():
        assert prob == pytest.approx(wanted[path], rel=1e-5), path
    best = sorted((p for p in wanted.values() if p >= 1e-4), reverse=True)[:20]
    assert sorted(got.values(), reverse=True) == pytest.approx(best, rel=1e-5)


def test_drafts_what_the_target_held_likely_at_any_node() -> None:
    drafter = RecyclingDrafter(SMALL)
    drafter.start("a", [5, 6])
    assert drawn(drafter, "a") == set()  # nothing was said yet
    tree = CandidateTree.from_arrays([7, 8], [-1, 0], [0.5, 0.2])
    # The tree is rejected at once, yet what follows 7 and 8 is learned.
    heard(drafter, "a", tree, [9], [{9: 0.9, 1: 0.1}, {20: 0.8, 21: 0.1}, {30: 0.7, 31: 0.2}])
    heard(drafter, "a", CandidateTree.empty(), [7], [{7: 0.9, 2: 0.1}])
    paths = drawn(drafter, "a")
    assert {(20,), (21,), (2,)} <= paths  # a runner-up of the last logits too
    heard(drafter, "a", CandidateTree.empty(), [8], [{8: 0.9, 2: 0.1}])
    assert (30,) in drawn(drafter, "a")


def test_nothing_without_top_ids_and_nothing_from_other_namespaces() -> None:
    drafter = RecyclingDrafter(SMALL)
    drafter.start("a", [1, 2, 1, 2, 1])
    one = np.array([2], np.int32)
    drafter.observe("a", CandidateTree.empty(), Feedback(one, one[:0], one))
    drafter.extend("a", [2])
    assert drawn(drafter, "a") == set()
    drafter.start("x", [4], "x")
    heard(drafter, "x", CandidateTree.empty(), [5], [{5: 0.9, 6: 0.1}])
    for namespace, known in (("x", True), ("y", False)):
        drafter.start("b", [7], namespace)
        heard(drafter, "b", CandidateTree.empty(), [4], [{4: 0.9, 8: 0.1}])
        assert ((5,) in drawn(drafter, "b")) == known


def test_a_prompt_is_read_once_the_target_has_spoken() -> None:
    drafter = RecyclingDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 9])
    heard(drafter, "a", CandidateTree.empty(), [2], [{2: 0.9, 50: 0.1}])
    assert (3, 4) in drawn(drafter, "a")


def test_truncation_forgets_places_not_contexts() -> None:
    drafter = RecyclingDrafter(SMALL)
    drafter.start("a", [1])
    for token in (2, 3, 4):
        heard(drafter, "a", CandidateTree.empty(), [token], [{token: 0.9, 60: 0.05}])
    drafter.truncate("a", 2)  # 1 2
    assert (3, 4) in drawn(drafter, "a")
    drafter.truncate("a", 99)
    drafter.truncate("a", 0)
    assert drawn(drafter, "a") == set()
    with pytest.raises(ValueError, match="length >= 0"):
        drafter.truncate("a", -1)


def test_edges() -> None:
    drafter = RecyclingDrafter(SMALL)
    assert isinstance(drafter, Drafter) and isinstance(drafter, WantsTopIds)
    assert drafter.num_top_ids == 3
    drafter.start("a", [])
    drafter.extend("a", [])
    assert drawn(drafter, "a") == set()
    heard(drafter, "a", CandidateTree.empty(), [-1], [{3: 0.9, 4: 0.1}])
    drawn(drafter, "a")
    heard(drafter, "a", CandidateTree.empty(), [3], [{3: 0.9, 4: 0.1}])
    heard(drafter, "a", CandidateTree.empty(), [3], [{3: 0.9, 4: 0.1}])
    (tree,) = drafter.propose(["a"], 5, 2)
    assert tree.num_nodes <= 5 and tree.depths().max() <= 2
    assert drafter.propose(["a"], 0, 5)[0].num_nodes == 0
    assert drafter.propose(["a", "b"], 5, 0)[0].num_nodes == 0
    assert drafter.propose(["nobody"], 5, 5)[0].num_nodes == 0
    drafter.observe("nobody", tree, Feedback(tree.token_ids[:1], tree.token_ids[:0], tree.parents))
    drafter.extend("nobody", [1])
    drafter.truncate("nobody", 0)
    drafter.start("a", [8])  # used again
    assert drawn(drafter, "a") == set()
    drafter.stop("a")
    drafter.stop("a")
    assert drafter.propose(["a"], 5, 5)[0].num_nodes == 0
    heard(drafter, "a", CandidateTree.empty(), [500], [{500: 0.9, 501: 0.1}])


def test_ids_beyond_the_table_have_no_successors() -> None:
    drafter = RecyclingDrafter(SMALL)
    drafter.start("a", [500, 501, 500])
    heard(drafter, "a", CandidateTree.empty(), [501], [{501: 0.9, 502: 0.1}])
    assert drawn(drafter, "a") == {(502,)}  # the runner-up alone


def test_crowded_rows_stay_valid() -> None:
    drafter = RecyclingDrafter(RecyclingConfig(num_successors=2, max_vocab_size=40, hash_bits=1))
    rng = np.random.default_rng(0)
    drafter.start("a", rng.integers(0, 40, 50))
    for _ in range(50):
        (tree,) = drafter.propose(["a"], 12, 4)
        tree.validate(40)
        ids, probs = random_top(rng, tree.num_nodes + 1, 2, 40)
        tops = [dict(zip(i, p, strict=True)) for i, p in zip(ids, probs, strict=True)]
        heard(drafter, "a", tree, [int(rng.integers(40))], tops)


def test_namespaces_are_bounded() -> None:
    drafter = RecyclingDrafter(RecyclingConfig(max_vocab_size=8, hash_bits=2, max_namespaces=2))
    for name in "abc":
        drafter.start(name, [1, 2], name)
        drafter.stop(name)
    assert len(drafter._shelf) == 2


def test_save_and_load(tmp_path: Path) -> None:
    drafter = RecyclingDrafter(SMALL)
    drafter.start("a", [4], "x")
    for token in (5, 6, 4):
        heard(drafter, "a", CandidateTree.empty(), [token], [{token: 0.9, 60: 0.05}])
    wanted = drawn(drafter, "a")
    assert (5, 6) in wanted
    drafter.save("x", tmp_path / "table")
    other = RecyclingDrafter(SMALL)
    assert other.load(tmp_path / "table", "y") > 0
    other.start("b", [5, 6], "y")
    heard(other, "b", CandidateTree.empty(), [4], [{4: 0.9, 60: 0.05}])
    assert (5, 6) in drawn(other, "b")
    assert RecyclingDrafter(SMALL).load(tmp_path / "table") == other.load(tmp_path / "table")
    drafter.save("nobody", tmp_path / "empty")
    assert other.load(tmp_path / "empty") == 0


def test_bad_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    drafter = RecyclingDrafter(SMALL)
    file = tmp_path / "table"
    drafter.save("", file)
    with pytest.raises(SnapshotError, match="num_successors 4, got 3"):
        RecyclingDrafter(RecyclingConfig(num_successors=4, max_vocab_size=64, hash_bits=12)).load(
            file
        )
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotError):
        drafter.load(file)
    sizes = {"num_successors": 3, "max_vocab_size": 64, "hash_bits": 12}
    good = {
        "rows": np.zeros(1, np.int32),
        "keys": np.ones(1, np.int32),
        "ids": np.zeros((1, 3), np.int32),
        "probs": np.ones((1, 3), np.float32),
    }
    write_snapshot(file, "successors", good, sizes)
    assert drafter.load(file) == 1
    for name, wrong in (
        ("rows", np.full(1, 10**6, np.int32)),
        ("rows", np.full(1, -1, np.int32)),
        ("keys", np.ones(2, np.int32)),
        ("ids", np.zeros((1, 2), np.int32)),
        ("ids", np.full((1, 3), -7, np.int32)),
        ("probs", np.full((1, 3), 2, np.float32)),
        ("probs", np.full((1, 3), np.nan, np.float32)),
    ):
        write_snapshot(file, "successors", good | {name: wrong}, sizes)
        fresh = RecyclingDrafter(SMALL)
        with pytest.raises(SnapshotError, match="fit together"):
            fresh.load(file)
        assert fresh._shelf.enter("").num_contexts == 0


def test_probabilities_follow_what_comes_true() -> None:
    drafter = RecyclingDrafter(SMALL)
    drafter.start("a", [4])
    promised = []
    for _ in range(400):  # the target calls 5 nearly certain after 4, and is wrong
        heard(drafter, "a", CandidateTree.empty(), [4], [{5: 0.95, 6: 0.02}])
        (tree,) = drafter.propose(["a"], 4, 1)
        promised.append(float(tree.probs[0]))
    assert max(promised[:8]) > 0.8
    heard(drafter, "a", CandidateTree.empty(), [4], [{5: 0.95, 6: 0.02}])
    (tree,) = drafter.propose(["a"], 4, 1)
    assert tree.token_ids[0] == 5 and tree.probs[0] < 0.6


def test_kernels_are_compiled_by_the_constructor() -> None:
    RecyclingDrafter(SMALL)
    for kernel in (kernels.record, kernels.record_text, kernels.successors, kernels.grow):
        assert not COMPILED or len(kernel.signatures) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_successors": 0}, "num_successors within 1..64, got 0"),
        ({"max_vocab_size": 0}, "max_vocab_size within"),
        ({"hash_bits": 0}, "hash_bits within"),
        ({"min_prob": 0.0}, "min_prob within"),
        ({"max_namespaces": 0}, "max_namespaces >= 1"),
    ],
)
def test_settings_are_checked(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecyclingConfig(**wrong)  # type: ignore[arg-type]
