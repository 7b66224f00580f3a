"""The batched forms on the device against the one-row forms on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from acceptance_enumeration import tree_shapes
from hypothesis import given
from hypothesis import strategies as st

from freedraft.drafters import ROOT, CandidateTree
from freedraft.verifier import NoiseKey, choose_token, walk
from freedraft.verifier.block_verification import verify_block
from freedraft.verifier.device.batched_cache import compact_cache
from freedraft.verifier.device.batched_rejection import reject_trees, verify_blocks
from freedraft.verifier.device.batched_sampling import RowSampling, choose_tokens, process_scores
from freedraft.verifier.device.batched_walk import (
    MAX_NODES,
    ancestor_words,
    bucket_width,
    column_depths,
    gather_columns,
    stack_trees,
    unpack_ancestors,
    walk_trees,
)
from freedraft.verifier.layout import pack_trees
from freedraft.verifier.rejection import FloatArray64, TreeDraft, verify_by_rejection

seeds = st.integers(0, 2**31)


def random_tree(rng: np.random.Generator, num_nodes: int, num_tokens: int) -> CandidateTree:
    """Return a tree of at most that many nodes; siblings differ."""
    chains = [
        rng.integers(num_tokens, size=rng.integers(1, 9)).tolist()
        for _ in range(num_nodes // 3 + 1)
    ]
    return CandidateTree.from_chains(chains).cut(num_nodes)


def random_trees(rng: np.random.Generator, num_rows: int) -> list[CandidateTree]:
    return [random_tree(rng, int(rng.integers(0, 20)), 3) for _ in range(num_rows)]


@given(seeds, st.integers(1, 4))
def test_walks_as_the_host_does(seed: int, num_rows: int) -> None:
    rng = np.random.default_rng(seed)
    trees = random_trees(rng, num_rows)
    width = bucket_width(1 + max(tree.num_nodes for tree in trees))
    stacked = stack_trees(trees, [7] * num_rows, width)
    choices = torch.from_numpy(rng.integers(3, size=(num_rows, width)))
    result = walk_trees(choices, stacked.token_ids, stacked.parents)
    for row, tree in enumerate(trees):
        picks = choices[row].tolist()
        expected = walk(tree, lambda node, picks=picks: picks[node + 1], lambda *_: True)
        length = len(expected.accepted)
        padding = [-1] * (width - length - 1)
        assert int(result.lengths[row]) == length
        assert result.token_ids[row].tolist() == expected.token_ids + padding
        columns = [0, *(node + 1 for node in expected.accepted)]
        assert result.columns[row].tolist() == columns + padding


@given(seeds, st.integers(1, 3))
def test_masks_and_depths_are_those_of_the_packed_layout(seed: int, num_rows: int) -> None:
    rng = np.random.default_rng(seed)
    trees = random_trees(rng, num_rows)
    batch = pack_trees(trees, [0] * num_rows)
    stacked = stack_trees(trees, [0] * num_rows, batch.width)
    assert torch.equal(column_depths(stacked.parents), batch.depths)
    words = ancestor_words(stacked.parents)
    assert torch.equal(unpack_ancestors(words, stacked.parents), batch.visible)


@pytest.mark.parametrize("num_nodes", [0, 1, 63, 64, 65, 255, 256])
def test_masks_of_long_chains(num_nodes: int) -> None:
    chain = CandidateTree.from_chain(np.zeros(num_nodes, np.int64))
    stacked = stack_trees([chain], [0], num_nodes + 1)
    words = ancestor_words(stacked.parents)
    assert words.shape == (1, num_nodes + 1, max(1, -(-num_nodes // 64)))
    triangle = torch.ones(num_nodes + 1, num_nodes + 1, dtype=torch.bool).tril()
    assert torch.equal(unpack_ancestors(words, stacked.parents)[0], triangle)
    choices = torch.zeros(1, num_nodes + 1, dtype=torch.int64)
    result = walk_trees(choices, stacked.token_ids, stacked.parents)
    assert result.columns.tolist() == [list(range(num_nodes + 1))]


def test_all_small_shapes() -> None:
    for shape in [shape for num_nodes in range(6) for shape in tree_shapes(num_nodes)]:
        tree = CandidateTree.from_arrays(np.arange(len(shape)), np.array(shape, np.int32))
        batch = pack_trees([tree], [0])
        stacked = stack_trees([tree], [0], batch.width)
        visible = unpack_ancestors(ancestor_words(stacked.parents), stacked.parents)
        assert torch.equal(visible, batch.visible)


def test_buckets() -> None:
    assert [bucket_width(n) for n in (1, 2, 3, 33, 256, 257)] == [1, 2, 4, 64, 256, 257]
    assert bucket_width(5, (4, 12)) == 12
    with pytest.raises(ValueError, match="at most 257 columns"):
        bucket_width(258)
    with pytest.raises(ValueError, match="at most 257 columns"):
        ancestor_words(torch.full((1, MAX_NODES + 2), -1))
    with pytest.raises(ValueError, match="trees of at most 1 nodes, got 2"):
        stack_trees([CandidateTree.from_chain([1, 2])], [0], 2)


def test_nothing_waits_for_the_device() -> None:
    """Tensors without data cannot be read on the host: any synchronisation would raise."""
    ids = torch.zeros(2, 8, dtype=torch.int64, device="meta")
    rows = torch.zeros(2, dtype=torch.int64, device="meta")
    result = walk_trees(ids, ids, ids)
    assert result.columns.shape == (2, 8) and result.lengths.shape == (2,)
    assert unpack_ancestors(ancestor_words(ids), ids).shape == (2, 8, 8)
    compact_cache([torch.zeros(2, 1, 20, 4, device="meta")], ids, rows, rows, 3)
    probs = torch.zeros(2, 8, 5, dtype=torch.float64, device="meta")
    reject_trees(probs, probs, ids, ids, probs[..., 0])
    verify_blocks(probs, probs, ids, rows, probs[..., 0])
    sampling = RowSampling.build([NoiseKey(1)] * 2, [1.0] * 2, device="meta")
    assert choose_tokens(probs, ids, sampling).shape == (2, 8)


def test_gathers_the_path() -> None:
    values = torch.arange(2 * 4 * 3).view(2, 4, 3)
    columns = torch.tensor([[0, 2, -1], [0, -1, -1]])
    kept = gather_columns(values, columns)
    assert kept[0].tolist() == [[0, 1, 2], [6, 7, 8], [0, 0, 0]]
    assert kept[1].tolist() == [[12, 13, 14], [0] * 3, [0] * 3]
    assert gather_columns(values[..., 0], columns).tolist() == [[0, 6, 0], [12, 0, 0]]


@given(seeds, st.integers(1, 3))
def test_compacts_as_a_copy_would(seed: int, num_rows: int) -> None:
    rng = np.random.default_rng(seed)
    width, num_slots = int(rng.integers(1, 9)), int(rng.integers(1, 9))
    lengths = rng.integers(0, num_slots + 1, size=num_rows)
    counts = rng.integers(1, width + 1, size=num_rows)
    columns = np.full((num_rows, width), -1)
    for row, count in enumerate(counts):
        columns[row, 1:count] = 1 + np.sort(rng.choice(width - 1, count - 1, replace=False))
        columns[row, 0] = 0
    state = torch.from_numpy(rng.integers(1000, size=(num_rows, 2, num_slots + width, 3)))
    expected = state.clone()
    for row, count in enumerate(counts):
        kept = state[row, :, num_slots + columns[row, :count]]
        expected[row, :, lengths[row] : lengths[row] + count] = kept
    arguments = (torch.from_numpy(a) for a in (columns, counts, lengths))
    compact_cache([state], *arguments, num_slots)
    assert torch.equal(state, expected)


def draw_tokens(rng: np.random.Generator, draft: FloatArray64) -> list[int]:
    return [int(rng.choice(4, p=row / row.sum())) if row.any() else 0 for row in draft]


class Given:
    """Events that are decided by given numbers; remembers what would be drawn from."""

    def __init__(self, uniforms: FloatArray64) -> None:
        self._uniforms = uniforms
        self.left: FloatArray64 | None = None

    def decide(self, probability: float, offset: int, attempt: int) -> bool:
        return bool(self._uniforms[attempt] < probability)

    def draw(self, probs: FloatArray64, offset: int) -> int:
        self.left = probs
        return 0


def random_rows(rng: np.random.Generator, num_rows: int) -> FloatArray64:
    """Return distributions over four tokens, some of them empty (chosen nodes)."""
    rows: FloatArray64 = rng.dirichlet(np.ones(4), num_rows)
    rows[rng.random(num_rows) < 0.3] = 0
    return rows


@given(seeds)
def test_rejects_as_the_host_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = tree_shapes(int(rng.integers(0, 7)))
    shape = np.array(shapes[rng.integers(len(shapes))], np.int32)
    draft = random_rows(rng, shape.size).astype(np.float32)
    tokens = draw_tokens(rng, draft.astype(np.float64))
    target = rng.dirichlet(np.ones(4), shape.size + 1)
    uniforms = rng.random(shape.size)
    tree = CandidateTree.from_arrays(tokens, shape, draft_probs=draft)
    host = TreeDraft(tree)
    chance = Given(uniforms)
    expected = verify_by_rejection(host, lambda node: target[node + 1], chance, lambda *_: True)
    rows = [host.probs(node) for node in range(shape.size)]
    exact = np.array([np.zeros(4), *(np.zeros(4) if row is None else row for row in rows)])
    stacked = stack_trees([tree] * 2, [0, 0], shape.size + 1)
    result = reject_trees(
        torch.from_numpy(np.stack([target] * 2)),
        torch.from_numpy(np.stack([exact] * 2)),
        stacked.token_ids,
        stacked.parents,
        torch.from_numpy(np.stack([np.concatenate([[0.5], uniforms])] * 2)),
    )
    path = [0, *(node + 1 for node in expected.accepted)]
    assert result.columns[1].tolist() == path + [-1] * (shape.size + 1 - len(path))
    assert result.lengths.tolist() == [len(expected.accepted)] * 2
    assert chance.left is not None
    np.testing.assert_allclose(result.left[1].numpy(), chance.left, atol=1e-12)


@given(seeds)
def test_verifies_blocks_as_the_host_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_nodes, width = int(rng.integers(0, 7)), 9
    draft = random_rows(rng, num_nodes)
    tokens = draw_tokens(rng, draft)
    target = rng.dirichlet(np.ones(4), width)
    uniforms = rng.random(width)
    tree = CandidateTree.from_arrays(
        tokens, np.arange(ROOT, num_nodes - 1, dtype=np.int32), draft_probs=draft
    )
    host = TreeDraft(tree)
    chance = Given(uniforms)
    expected = verify_block(host, lambda node: target[node + 1], chance, lambda *_: True)
    exact = np.zeros((width, 4))
    for node in range(num_nodes):
        row = host.probs(node)
        exact[node + 1] = 0 if row is None else row
    result = verify_blocks(
        torch.from_numpy(target)[None],
        torch.from_numpy(exact)[None],
        stack_trees([tree], [0], width).token_ids,
        torch.tensor([num_nodes]),
        torch.from_numpy(uniforms)[None],
    )
    assert result.lengths.tolist() == [len(expected.accepted)]
    assert chance.left is not None
    np.testing.assert_allclose(result.left[0].numpy(), chance.left, atol=1e-12)


def test_processes_scores_as_transformers_does() -> None:
    from transformers.generation import logits_process

    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 2, 200, generator=generator) * 3
    keys = [NoiseKey(5, row) for row in range(3)]
    sampling = RowSampling.build(keys, [0.7, 1.3, 1.0], [50, 0, 7], [0.9, 0.6, 1.0], [0, 0.05, 0.1])
    scores = process_scores(logits, sampling)
    for row, settings in enumerate([(0.7, 50, 0.9, 0), (1.3, 0, 0.6, 0.05), (1.0, 7, 1.0, 0.1)]):
        temperature, top_k, top_p, min_p = settings
        expected = logits_process.TemperatureLogitsWarper(temperature)(None, logits[row])
        if top_k:
            expected = logits_process.TopKLogitsWarper(top_k)(None, expected)
        if top_p < 1:
            expected = logits_process.TopPLogitsWarper(top_p)(None, expected)
        if min_p:
            expected = logits_process.MinPLogitsWarper(min_p)(None, expected)
        assert torch.equal(scores[row], expected)


@given(seeds)
def test_chooses_as_one_row_at_a_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(2, 3, 11)) * 2).float()
    positions = torch.from_numpy(rng.integers(0, 2**33, size=(2, 3)))
    keys = [NoiseKey(seed, 1), NoiseKey(-seed - 1, 2**31)]
    sampling = RowSampling.build(keys, [0.8, 0.0], [4, 3])
    chosen = choose_tokens(logits, positions, sampling)
    scores = process_scores(logits, sampling)
    for column in range(3):
        expected = choose_token(scores[0, column], keys[0], int(positions[0, column]))
        assert int(chosen[0, column]) == expected
    assert chosen[1].tolist() == logits[1].argmax(-1).tolist()


def test_equal_scores_stay_together() -> None:
    sampling = RowSampling.build([NoiseKey(0)] * 2, [1.0] * 2, [1, 0], [1.0, 0.5])
    scores = process_scores(torch.tensor([[[2.0, 2.0, 0.0]], [[1.0, 1.0, 1.0]]]), sampling)
    assert torch.isfinite(scores[0, 0]).tolist() == [True, True, False]
    assert torch.isfinite(scores[1, 0]).tolist() == [True, True, True]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": [-1.0]},
        {"top_k": [-1]},
        {"top_p": [0.0]},
        {"min_p": [1.0]},
        {"top_k": [1, 2]},
    ],
)
def test_refuses_settings(settings: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RowSampling.build([NoiseKey(0)], **({"temperature": [1.0]} | settings))  # type: ignore[arg-type]
