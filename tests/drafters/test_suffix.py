"""The suffix drafter."""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from suffix_oracles import BARRIER, NaiveMixer

from freedraft.drafters.base import Drafter
from freedraft.drafters.snapshot import SnapshotError, write_snapshot
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter
from freedraft.drafters.suffix.arena import Arena
from freedraft.drafters.suffix.trust import trust_table
from freedraft.drafters.tree import CandidateTree

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
SMALL = SuffixConfig(max_context=8, max_bytes=1 << 24, max_namespace_bytes=1 << 20)
EXACT = SuffixConfig(
    max_context=5,
    min_prob=0.01,
    learning_rate=0.0,
    max_bytes=1 << 24,
    max_namespace_bytes=1 << 20,
    slice_tokens=1 << 20,
    shared_slice_tokens=1 << 20,
)


def chain_of(drafter: SuffixDrafter, request_id: object, max_nodes: int = 8) -> list[int]:
    (tree,) = drafter.propose([request_id], max_nodes, max_nodes)
    tree.validate()
    return tree.best_chain().token_ids.tolist()


def test_proposes_what_followed_the_tail() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 9, 1, 2])
    assert chain_of(drafter, "a", 3) == [3, 4, 5]


def test_learns_from_finished_responses_of_its_namespace_alone() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.start("a", [1, 2], namespace="x")
    drafter.extend("a", [1, 2, 3, 4])
    drafter.stop("a")
    drafter.start("a", [7, 1, 2], namespace="x")
    drafter.start("b", [7, 1, 2], namespace="y")
    assert chain_of(drafter, "a") == [3, 4]
    assert chain_of(drafter, "b") == []


def test_unknown_request_is_ignored() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.extend("a", [1])
    drafter.truncate("a", 0)
    drafter.stop("a")
    assert drafter.propose(["a"], 4, 4)[0].num_nodes == 0


def test_placeholders_neither_match_nor_are_proposed() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.start("a", np.array([1, 2, -1, -7, 5, 1, 2]))
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [-1])
    assert chain_of(drafter, "a") == []


@pytest.mark.parametrize("bad", [{"max_context": 0}, {"min_prob": 0.0}, {"num_segments": 9}])
def test_refuses_settings(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        SuffixConfig(**bad)  # type: ignore[arg-type]


def paths_of(tree: CandidateTree) -> dict[tuple[int, ...], float]:
    tree.validate()
    return {
        tuple(tree.token_ids[tree.path(node)].tolist()): float(tree.probs[node])
        for node in range(tree.num_nodes)
    }


def assert_same_tree(
    found: dict[tuple[int, ...], float], expected: dict[tuple[int, ...], float]
) -> None:
    """The same paths with the same probabilities, except among equals at the cut."""
    np.testing.assert_allclose(
        sorted(found.values()), sorted(expected.values()), rtol=1e-5, atol=1e-7
    )
    least = min(expected.values(), default=0.0) * (1 + 1e-5)
    for path in found.keys() & expected.keys():
        assert found[path] == pytest.approx(expected[path], rel=1e-5)
    for path in found.keys() ^ expected.keys():
        assert found.get(path, expected.get(path, 0.0)) <= least


class AgainstCounting(RuleBasedStateMachine):
    """Interleaved requests of two namespaces, compared with plain counting after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.drafter = SuffixDrafter(EXACT)
        self.trust, self.groups = trust_table(EXACT.max_context)
        self.texts: dict[int, list[int]] = {}
        self.prompt_lengths: dict[int, int] = {}
        self.namespaces: dict[int, str] = {}
        self.shared: dict[str, list[int]] = defaultdict(list)

    ids = st.integers(0, 2)
    tokens = st.lists(st.integers(-2, 2), max_size=12)

    @rule(request=ids, prompt=tokens, namespace=st.sampled_from("xy"))
    def start(self, request: int, prompt: list[int], namespace: str) -> None:
        self.forget(request)
        self.drafter.start(request, prompt, namespace)
        self.texts[request] = [max(token, BARRIER) for token in prompt]
        self.prompt_lengths[request] = len(prompt)
        self.namespaces[request] = namespace

    @rule(request=ids, tokens=tokens)
    def extend(self, request: int, tokens: list[int]) -> None:
        self.drafter.extend(request, tokens)
        if request in self.texts:
            self.texts[request] += [max(token, BARRIER) for token in tokens]

    @rule(request=ids, length=st.integers(-1, 20))
    def truncate(self, request: int, length: int) -> None:
        self.drafter.truncate(request, length)
        if request in self.texts:
            del self.texts[request][max(length, 0) :]
            kept = len(self.texts[request])
            self.prompt_lengths[request] = min(self.prompt_lengths[request], kept)

    @rule(request=ids)
    def stop(self, request: int) -> None:
        self.drafter.stop(request)
        self.forget(request)

    def forget(self, request: int) -> None:
        text = self.texts.pop(request, [])
        response = text[self.prompt_lengths.pop(request, 0) :]
        if response:
            self.shared[self.namespaces[request]] += [*response, BARRIER]

    @rule(request=ids, max_nodes=st.integers(1, 12), max_depth=st.integers(1, 6))
    def propose(self, request: int, max_nodes: int, max_depth: int) -> None:
        found = paths_of(self.drafter.propose([request], max_nodes, max_depth)[0])
        self.check(request, found, max_nodes, max_depth)

    def check(
        self, request: int, found: dict[tuple[int, ...], float], max_nodes: int, max_depth: int
    ) -> None:
        expected: dict[tuple[int, ...], float] = {}
        if request in self.texts:
            text = self.texts[request]
            sources = [text, self.shared[self.namespaces[request]]]
            mixer = NaiveMixer(sources, self.trust, self.groups)
            expected = mixer.tree(text, max_nodes, max_depth, EXACT.min_prob)
        assert_same_tree(found, expected)

    @invariant()
    def a_batch_gives_each_request_its_own_tree(self) -> None:
        trees = self.drafter.propose([0, 1, "nobody", 2], 4, 3)
        assert trees[2].num_nodes == 0
        for request, tree in zip((0, 1, 2), (trees[0], trees[1], trees[3]), strict=True):
            self.check(request, paths_of(tree), 4, 3)


TestAgainstCounting = AgainstCounting.TestCase
TestAgainstCounting.settings = settings(
    max_examples=120 if COMPILED else 8, stateful_step_count=25, deadline=None
)


def test_follows_the_contract() -> None:
    drafter = SuffixDrafter(SMALL)
    assert isinstance(drafter, Drafter)
    assert drafter.name == "suffix"
    assert drafter.propose([], 4, 4) == []
    drafter.start("a", [1, 2, 1])
    assert [tree.num_nodes for tree in drafter.propose(["a", "a"], 0, 4)] == [0, 0]
    assert drafter.propose(["a"], 4, 0)[0].num_nodes == 0
    with pytest.raises(ValueError, match="max_nodes >= 0"):
        drafter.propose(["a"], -1, 4)
    with pytest.raises(ValueError, match="one dimension"):
        drafter.start("b", [[1]])


def test_trees_outlive_the_next_call() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 1, 2])
    (tree,) = drafter.propose(["a"], 4, 4)
    before = paths_of(tree)
    drafter.extend("a", [9, 1])
    drafter.propose(["a"], 4, 4)
    assert paths_of(tree) == before


@example([0] * 300, 3)
@example([0, 1, 2] * 50, 7)
@given(st.lists(st.integers(0, 3), max_size=300), st.integers(1, 40))
@settings(max_examples=60 if COMPILED else 6, deadline=None)
def test_slices_end_up_where_one_piece_does(text: list[int], slice_tokens: int) -> None:
    whole = SuffixDrafter(EXACT)
    sliced = SuffixDrafter(
        SuffixConfig(
            max_context=5,
            min_prob=0.01,
            learning_rate=0.0,
            max_bytes=1 << 24,
            max_namespace_bytes=1 << 20,
            slice_tokens=slice_tokens,
            shared_slice_tokens=slice_tokens,
        )
    )
    for drafter in (whole, sliced):
        drafter.start(0, text)
        drafter.extend(0, text[:50])
        drafter.stop(0)
        drafter.start(1, text)
        for token in text[:20]:
            drafter.extend(1, [token])
    for _ in range(400):
        (tree,) = sliced.propose([1], 8, 8)
        tree.validate()
        sliced.extend(1, [])
    assert_same_tree(paths_of(sliced.propose([1], 8, 8)[0]), paths_of(whole.propose([1], 8, 8)[0]))


def test_an_empty_prompt_that_had_to_wait_is_extended() -> None:
    drafter = SuffixDrafter(SuffixConfig(slice_tokens=8))
    drafter.start("first", list(range(8)))  # all that one step indexes
    drafter.start("r", [])
    for _ in range(3):
        drafter.extend("r", [1, 2, 3])
    assert chain_of(drafter, "r", 4) == [1, 2, 3, 1]
    assert chain_of(drafter, "first") == []


def test_a_request_grows_past_its_first_tables() -> None:
    drafter = SuffixDrafter(EXACT)
    drafter.start(0, [])
    text = np.random.default_rng(0).integers(0, 3, 3000).tolist()
    drafter.extend(0, text)
    mixer = NaiveMixer([text, []], *trust_table(EXACT.max_context))
    assert_same_tree(
        paths_of(drafter.propose([0], 8, 4)[0]), mixer.tree(text, 8, 4, EXACT.min_prob)
    )


def unlike(seed: int) -> list[int]:
    return (seed * 400 + np.arange(400)).tolist()


def test_old_responses_leave_and_memory_stays_bounded() -> None:
    drafter = SuffixDrafter(
        SuffixConfig(max_context=8, max_bytes=1 << 22, max_namespace_bytes=1 << 18)
    )
    for seed in range(60):
        drafter.start(0, [])
        drafter.extend(0, unlike(seed))
        drafter.stop(0)
        assert drafter.num_bytes <= 1 << 18
    for _ in range(4):  # the queue's last slices
        drafter.extend(1, [])
        drafter.start(1, [])
    drafter.start("old", unlike(0)[:3])
    drafter.start("new", unlike(59)[:3])
    assert chain_of(drafter, "old") == []
    assert chain_of(drafter, "new", 3) == unlike(59)[3:6]


def test_a_running_request_survives_the_eviction_of_what_it_matched() -> None:
    drafter = SuffixDrafter(
        SuffixConfig(max_context=8, max_bytes=1 << 22, max_namespace_bytes=1 << 18)
    )
    drafter.start("first", [])
    drafter.extend("first", unlike(0))
    drafter.stop("first")
    drafter.start("long", unlike(0)[:4])
    assert chain_of(drafter, "long", 3) == unlike(0)[4:7]
    for seed in range(1, 40):
        drafter.start(0, [])
        drafter.extend(0, unlike(seed))
        drafter.stop(0)
        drafter.propose(["long"], 8, 8)[0].validate()
    assert chain_of(drafter, "long") == []
    drafter.extend("long", unlike(39)[:4])
    assert chain_of(drafter, "long", 3) == unlike(39)[4:7]


def test_stop_returns_the_memory_of_a_request() -> None:
    drafter = SuffixDrafter(SuffixConfig(max_context=8, share_responses=False))
    before = drafter.num_bytes
    drafter.start(0, np.arange(5000))
    assert drafter.num_bytes > before
    drafter.stop(0)
    assert drafter.num_bytes == before


def test_a_full_arena_drops_texts_of_idle_namespaces_and_then_goes_without() -> None:
    drafter = SuffixDrafter(
        SuffixConfig(max_context=8, max_bytes=1 << 19, max_namespace_bytes=1 << 18)
    )
    for name in "abcdef":
        drafter.start(0, [], namespace=name)
        drafter.extend(0, unlike(ord(name)))
        drafter.stop(0)
    drafter.start(1, unlike(1) + unlike(1)[:3])
    assert chain_of(drafter, 1) == unlike(1)[3:11]
    for request in range(2, 12):
        drafter.start(request, unlike(request) + unlike(request)[:3])
        drafter.extend(request, unlike(request)[3:5])
    trees = drafter.propose(list(range(12)), 4, 4)
    assert any(tree.num_nodes == 0 for tree in trees[1:])
    assert chain_of(drafter, 1) == unlike(1)[3:11]
    for request in range(1, 11):
        drafter.stop(request)
    drafter.extend(11, [])
    assert chain_of(drafter, 11) == unlike(11)[5:13]


def test_namespaces_that_hold_nothing_are_forgotten() -> None:
    drafter = SuffixDrafter(SuffixConfig(max_context=8, share_responses=False))
    for number in range(100):
        drafter.start(0, [1, 2], namespace=str(number))
    drafter.stop(0)
    assert drafter.num_bytes == 0
    assert drafter._store.namespaces == {}


def test_shares_prompts_when_asked() -> None:
    for share in (False, True):
        drafter = SuffixDrafter(
            SuffixConfig(
                max_context=8,
                max_bytes=1 << 24,
                max_namespace_bytes=1 << 20,
                share_responses=False,
                share_prompts=share,
            )
        )
        drafter.start(0, [1, 2, 3, 4])
        drafter.extend(0, [7, 1, 8])
        drafter.stop(0)
        drafter.start(1, [9, 1, 2])
        assert chain_of(drafter, 1) == ([3, 4] if share else [])


def test_learning_moves_probabilities_towards_what_is_seen() -> None:
    learner = SuffixDrafter(SMALL)
    text = np.tile(np.arange(50), 4)
    learner.start(0, text)
    (before,) = learner.propose([0], 1, 1)
    for _ in range(40):
        learner.extend(0, np.arange(50))
    (after,) = learner.propose([0], 1, 1)
    assert before.token_ids.tolist() == after.token_ids.tolist() == [0]
    assert after.probs[0] > before.probs[0]


def test_threads_may_call_at_once() -> None:
    drafter = SuffixDrafter(SMALL)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                drafter.start(number, unlike(number)[:50] * 2)
                drafter.extend(number, unlike(number)[: 3 + turn])
                assert chain_of(drafter, number, 2) == unlike(number)[3 + turn : 5 + turn]
                drafter.stop(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def fed(texts: list[list[int]], config: SuffixConfig = EXACT) -> SuffixDrafter:
    drafter = SuffixDrafter(config)
    for text in texts:
        drafter.start(0, [])
        drafter.extend(0, text)
        drafter.stop(0)
    return drafter


@given(st.lists(st.lists(st.integers(-1, 3), max_size=30), max_size=4))
@settings(max_examples=40 if COMPILED else 8, deadline=None)
def test_a_loaded_namespace_drafts_as_the_saved_one(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("pools") / "a.pool"
    saved = fed(texts)
    saved.save("", path)
    loaded = SuffixDrafter(EXACT)
    loaded.load(path, "copy")
    for tail in ([0], [1, 2], [3, 3, 0]):
        saved.start("x", tail)
        loaded.start("x", tail, namespace="copy")
        loaded.start("y", tail, namespace="other")
        expected = paths_of(saved.propose(["x"], 10, 5)[0])
        assert_same_tree(paths_of(loaded.propose(["x"], 10, 5)[0]), expected)
        own = NaiveMixer([tail, []], loaded._trust, loaded._groups)
        alone = paths_of(loaded.propose(["y"], 10, 5)[0])
        assert_same_tree(alone, own.tree(tail, 10, 5, EXACT.min_prob))
        saved.stop("x")
        loaded.stop("x")


def test_saves_what_still_waits_to_be_indexed(tmp_path: Path) -> None:
    drafter = fed([unlike(1)], SuffixConfig(max_context=8, shared_slice_tokens=7))
    drafter.save("", tmp_path / "a")
    loaded = SuffixDrafter(SMALL)
    assert loaded.load(tmp_path / "a") == 401
    loaded.start(0, unlike(1)[390:393])
    assert chain_of(loaded, 0, 3) == unlike(1)[393:396]


def test_refuses_a_broken_pool_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.pool"
    drafter = fed([unlike(1)])
    drafter.save("", path)
    path.write_bytes(path.read_bytes()[:-1])
    fresh = SuffixDrafter(EXACT)
    with pytest.raises(SnapshotError, match=r"a\.pool"):
        fresh.load(path)
    write_snapshot(path, "suffix", {"tokens": np.zeros((2, 2), np.int32)}, {})
    with pytest.raises(SnapshotError, match=r"one-dimensional int32 .*a\.pool"):
        fresh.load(path)
    assert fresh.num_bytes == 0


def test_saves_and_loads_an_empty_namespace(tmp_path: Path) -> None:
    SuffixDrafter(SMALL).save("nobody", tmp_path / "a")
    drafter = SuffixDrafter(SMALL)
    assert drafter.load(tmp_path / "a") == 0
    assert drafter.num_bytes == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=40))
def test_arena_extents_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    arena = Arena(16 * 4096)
    held: dict[int, int] = {}
    for release, size in steps:
        if release and held:
            start = min(held)
            assert (arena.array[start : start + held[start]] == start).all()
            arena.release(start)
            del held[start]
        else:
            found = arena.allocate(size)
            if found is not None:
                arena.array[found : found + size] = found
                held[found] = size
    for start, size in held.items():
        assert (arena.array[start : start + size] == start).all()
        arena.release(start)
    assert arena.num_used == 0
    assert arena.allocate(16 * 1024) == 0
    with pytest.raises(ValueError, match="expected max_bytes"):
        Arena(100)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may keep the pages until reused")
def test_released_extents_are_given_back_to_the_system() -> None:
    arena = Arena(16 * 4096)
    start = arena.allocate(2048)
    assert start is not None
    arena.array[start : start + 2048] = 7
    arena.release(start)
    assert not arena.array[start : start + 2048].any()  # new pages, cleared by the system
