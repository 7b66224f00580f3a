from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import pooled_paths, tree_paths

from freedraft import CandidateTree, Feedback
from freedraft.drafters.blend import BlendConfig, BlendDrafter
from freedraft.drafters.blend import _merge_kernels as kernels
from freedraft.drafters.tree_batch import TreeBatch


class Scripted:
    """Proposes what it is told and remembers what it was told."""

    def __init__(self, tree: CandidateTree) -> None:
        self.tree = tree
        self.asked = 0
        self.texts: dict[object, list[int]] = {}
        self.observed = 0

    name = "scripted"

    def start(self, request_id: object, prompt_ids: Sequence[int], namespace: str = "") -> None:
        self.texts[request_id] = list(prompt_ids)

    def extend(self, request_id: object, token_ids: Sequence[int]) -> None:
        self.texts.setdefault(request_id, []).extend(token_ids)

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        self.asked += len(request_ids)
        return [self.tree.cut(max_nodes, max_depth) for _ in request_ids]

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        self.observed += 1

    def truncate(self, request_id: object, length: int) -> None:
        del self.texts[request_id][length:]

    def stop(self, request_id: object) -> None:
        self.texts.pop(request_id, None)


@st.composite
def trees(draw: st.DrawFn) -> CandidateTree:
    chains = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=3))
    tree = CandidateTree.from_chains(chains)
    probs: list[float] = []
    for parent in tree.parents.tolist():
        share = draw(st.sampled_from([0.25, 0.5, 1.0]))
        probs.append((probs[parent] if parent >= 0 else 1.0) * share)
    return CandidateTree(tree.token_ids, tree.parents, np.array(probs, np.float32))


@given(
    st.lists(st.lists(trees(), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 24)
)
def test_merges_as_the_oracle_pools(batch: list[list[CandidateTree]], max_kept: int) -> None:
    kernels.compile_kernels()
    size = 12
    nodes = np.zeros((3, len(batch), 1 + 2 * size), np.int32)
    probs = np.zeros((3, len(batch), size), np.float32)
    for row, sources in enumerate(batch):
        for index, tree in enumerate(sources):
            nodes[index, row, 0] = tree.num_nodes
            nodes[index, row, 1 : 1 + tree.num_nodes] = tree.token_ids
            nodes[index, row, 1 + size : 1 + size + tree.num_nodes] = tree.parents
            probs[index, row, : tree.num_nodes] = tree.probs
    merged = TreeBatch.with_room(len(batch), max_kept)
    trust = np.full((3, len(batch)), 0.5, np.float32)
    kernels.merge_trees(nodes, probs, trust, merged.nodes, merged.probs)
    for got, sources in zip(merged.trees(), batch, strict=True):
        got.validate()
        wanted = pooled_paths(
            [dict(zip(paths(tree), (0.5 * tree.probs).tolist(), strict=True)) for tree in sources]
        )
        kept = dict(zip(paths(got), got.probs.tolist(), strict=True))
        assert len(kept) == min(len(wanted), max_kept)
        assert kept == pytest.approx({path: wanted[path] for path in kept}, rel=1e-5)
        left_out = [prob for path, prob in wanted.items() if path not in kept]
        assert min(kept.values(), default=0.0) >= max(left_out, default=0.0) * (1 - 1e-5)


def test_one_source_is_taken_at_its_word() -> None:
    tree = CandidateTree.from_chain([1, 2, 3], [0.9996, 0.5, 0.0001])
    blend = BlendDrafter([Scripted(tree), Scripted(CandidateTree.empty())])
    blend.start("a", [5])
    (merged,) = blend.propose(["a"], 4, 4)
    assert merged.token_ids.tolist() == [1, 2, 3]
    assert merged.probs == pytest.approx(tree.probs, rel=1e-6)


def test_sources_that_agree_count_more_than_one_alone() -> None:
    both, alone = CandidateTree.from_chain([1], [0.5]), CandidateTree.from_chain([2], [0.5])
    blend = BlendDrafter([Scripted(both), Scripted(CandidateTree.merge([both, alone]))])
    blend.start("a", [5])
    assert blend.propose(["a"], 1, 1)[0].token_ids.tolist() == [1]


def paths(tree: CandidateTree) -> list[tuple[int, ...]]:
    return tree_paths(tree.token_ids.tolist(), tree.parents.tolist())


def test_the_source_that_is_right_gets_the_nodes() -> None:
    right = Scripted(CandidateTree.from_chain([1, 2, 3, 4], [0.4, 0.4, 0.4, 0.4]))
    wrong = Scripted(CandidateTree.from_chain([7, 8, 9, 10], [0.8, 0.8, 0.8, 0.8]))
    blend = BlendDrafter([wrong, right])
    blend.start("a", [5])
    assert blend.propose(["a"], 4, 4)[0].token_ids.tolist() == [7, 8, 9, 10]
    for _ in range(12):
        blend.propose(["a"], 4, 4)
        blend.extend("a", [1, 2, 3, 4, 5])
    assert blend.propose(["a"], 4, 4)[0].token_ids.tolist() == [1, 2, 3, 4]
    blend.start("b", [5])  # another request starts without that record
    assert blend.propose(["b"], 4, 4)[0].token_ids.tolist() == [7, 8, 9, 10]


class InBatches(Scripted):
    def extend_batch(
        self, request_ids: Sequence[object], token_ids: Sequence[npt.ArrayLike]
    ) -> None:
        for request_id, tokens in zip(request_ids, token_ids, strict=True):
            self.extend(request_id, np.asarray(tokens).tolist())


def test_several_requests_are_extended_as_each_in_turn() -> None:
    wrong, right = CandidateTree.from_chain([7], [0.8]), CandidateTree.from_chain([1], [0.4])
    blends = [BlendDrafter([Scripted(wrong), InBatches(right)]) for _ in range(2)]
    for blend in blends:
        for request_id in ("a", "b"):
            blend.start(request_id, [5])
    for _ in range(12):
        for blend in blends:
            blend.propose(["a", "b"], 4, 4)
        blends[0].extend_batch(["b", "x", "a"], [[7, 5], [9], [1, 2]])
        for request_id, tokens in (("b", [7, 5]), ("x", [9]), ("a", [1, 2])):
            blends[1].extend(request_id, tokens)
    for source, other in zip(blends[0].sources, blends[1].sources, strict=True):
        assert isinstance(source, Scripted)
        assert isinstance(other, Scripted)
        assert source.texts == other.texts
        assert source.texts["a"] == [5] + [1, 2] * 12
    one, two = (blend.propose(["a", "b"], 4, 4) for blend in blends)
    assert [tree.token_ids.tolist() for tree in one] == [[1, 7], [7, 1]]
    for tree, other_tree in zip(one, two, strict=True):
        assert tree.probs.tolist() == other_tree.probs.tolist()
    with pytest.raises(ValueError, match="expected tokens of 2 requests, got 1 texts"):
        blends[0].extend_batch(["a", "b"], [[1]])


def test_an_idle_source_is_asked_rarely_but_learns_and_comes_back() -> None:
    config = BlendConfig(idle_after=4, idle_period=8)
    useless = Scripted(CandidateTree.from_chain([7], [0.5]))
    blend = BlendDrafter([Scripted(CandidateTree.empty()), useless], config)
    blend.start("a", [5])
    for _ in range(84):
        blend.propose(["a"], 4, 4)
        blend.extend("a", [1])
    assert 4 < useless.asked <= 4 + 11
    assert useless.texts["a"] == [5] + [1] * 84
    asked = useless.asked
    for _ in range(20):
        blend.propose(["a"], 4, 4)
        blend.extend("a", [7])
    assert useless.asked - asked >= 20 - 8


def test_calls_reach_every_source_and_unknown_requests_are_empty() -> None:
    first, second = Scripted(CandidateTree.from_chain([1])), Scripted(CandidateTree.empty())
    blend = BlendDrafter([first, second])
    blend.start("a", [5, 6])
    trees = blend.propose(["x", "a", "y"], 8, 8)
    assert [tree.num_nodes for tree in trees] == [0, 1, 0]
    feedback = Feedback(*(np.zeros(1, np.int32),) * 3)
    blend.observe("a", trees[1], feedback)
    blend.extend("a", [1, 2])
    blend.truncate("a", 3)
    blend.extend("x", [])
    assert first.texts["a"] == second.texts["a"] == [5, 6, 1]
    assert first.observed == second.observed == 1
    blend.stop("a")
    assert "a" not in first.texts
    assert blend.propose(["a"], 8, 8)[0].num_nodes == 0
    assert blend.propose([], 8, 8) == []
    assert blend.propose(["a"], 0, 8)[0].num_nodes == 0


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="at least one source"):
        BlendDrafter([])
    with pytest.raises(ValueError, match="memory > 0"):
        BlendConfig(memory=0)
    with pytest.raises(ValueError, match="idle_after >= 1"):
        BlendConfig(idle_after=0)
    blend = BlendDrafter([Scripted(CandidateTree.empty())])
    with pytest.raises(ValueError, match="max_nodes >= 0"):
        blend.propose(["a"], -1, 1)
