"""Rejection with a residual: exact distributions, and the draws behind it in production."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from acceptance_enumeration import (
    CHOSEN,
    DRAWN,
    REPEATING,
    Branching,
    RandomModel,
    Rule,
    enumerate_outcomes,
    exact_outcome,
    point_mass_walk,
    tree_shapes,
    upper_bound,
)

from freedraft.drafters import ROOT, CandidateTree
from freedraft.verifier import NoiseKey, choose_token
from freedraft.verifier.noise import uniform_noise
from freedraft.verifier.rejection import (
    ACCEPT_DRAW,
    DRAFT_DRAW,
    FloatArray64,
    PositionChance,
    TreeDraft,
    acceptance_probability,
    residual,
    uniform_number,
    verify_by_rejection,
    without_replacement,
)

TOLERANCE = 1e-12
SHAPES = [shape for num_nodes in range(7) for shape in tree_shapes(num_nodes)]


def models(vocab_size: int, shape: tuple[int, ...], case: int) -> tuple[RandomModel, RandomModel]:
    rng = np.random.default_rng((vocab_size, case, *(parent + 1 for parent in shape)))
    target, draft = rng.integers(2**31, size=2).tolist()
    return RandomModel(vocab_size, target), RandomModel(vocab_size, draft)


def mixed_kinds(vocab_size: int, shape: tuple[int, ...]) -> list[str]:
    rng = np.random.default_rng((vocab_size, 3, *(parent + 1 for parent in shape)))
    return list(rng.choice([DRAWN, REPEATING, CHOSEN], len(shape)))


def test_shapes_are_all_ordered_trees() -> None:
    catalan = [1, 1, 2, 5, 14, 42, 132]
    assert [len(set(tree_shapes(n))) for n in range(7)] == catalan
    for shape in SHAPES:
        CandidateTree.from_arrays(np.arange(len(shape)), np.array(shape, np.int32)).validate()


@pytest.mark.parametrize("vocab_size", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (point_mass_walk, CHOSEN),
        (verify_by_rejection, DRAWN),
        (verify_by_rejection, REPEATING),
        (verify_by_rejection, CHOSEN),
        (verify_by_rejection, "mixed"),
    ],
)
def test_first_two_tokens_are_the_targets_on_every_shape(
    vocab_size: int, rule: Rule, kind: str
) -> None:
    for shape in SHAPES:
        kinds = mixed_kinds(vocab_size, shape) if kind == "mixed" else [kind] * len(shape)
        target, draft = models(vocab_size, shape, 1)
        outcome = exact_outcome(rule, shape, kinds, target, draft, 2)
        assert outcome.error < TOLERANCE, (shape, kinds)


@pytest.mark.parametrize("vocab_size", [2, 3])
@pytest.mark.parametrize("rule", [point_mass_walk, verify_by_rejection])
def test_whole_runs_are_the_targets(vocab_size: int, rule: Rule) -> None:
    for shape in [shape for shape in SHAPES if len(shape) <= 4]:
        kinds = [CHOSEN] * len(shape)
        if rule is verify_by_rejection:
            kinds = mixed_kinds(vocab_size, shape)
        target, draft = models(vocab_size, shape, 2)
        outcome = exact_outcome(rule, shape, kinds, target, draft, len(shape) + 1)
        assert outcome.error < TOLERANCE, (shape, kinds)


class FixedDraft(TreeDraft):
    """A fixed tree that knows its nodes' paths."""

    def __init__(self, parents: tuple[int, ...], token_ids: list[int]) -> None:
        super().__init__(CandidateTree.from_arrays(token_ids, np.array(parents, np.int32)))
        self._parents = parents

    def path(self, node: int) -> tuple[int, ...]:
        return () if node == ROOT else (*self.path(self._parents[node]), self.token_id(node))


def expected_length(rule: Rule, draft: FixedDraft, target: RandomModel) -> float:
    def run(branching: Branching) -> int:
        result = rule(draft, lambda node: target(draft.path(node)), branching, lambda *_: True)
        return len(result.token_ids)

    return math.fsum(probability * length for probability, length in enumerate_outcomes(run))


@pytest.mark.parametrize("rule", [point_mass_walk, verify_by_rejection])
def test_fixed_trees_reach_the_upper_bound(rule: Rule) -> None:
    for shape in SHAPES:
        target = RandomModel(7, len(shape))
        tokens = [shape[:node].count(parent) for node, parent in enumerate(shape)]
        length = expected_length(rule, FixedDraft(shape, tokens), target)
        assert length == pytest.approx(upper_bound(shape, tokens, target), abs=TOLERANCE)


def test_worked_example() -> None:
    target, draft = np.array([0.6, 0.3, 0.1]), np.array([0.4, 0.4, 0.2])
    accepted = [draft[token] * acceptance_probability(target, draft, token) for token in range(3)]
    np.testing.assert_allclose(accepted, [0.4, 0.3, 0.1], atol=1e-15)
    np.testing.assert_allclose(residual(target, draft, 1), [1, 0, 0], atol=1e-15)


def test_worked_example_without_replacement() -> None:
    draft = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(without_replacement(draft, [0]), [0, 0.6, 0.4])
    np.testing.assert_allclose(without_replacement(draft, [0, 2]), [0, 1, 0])
    with pytest.raises(ValueError, match="expected a token left to draw"):
        without_replacement(draft, [0, 1, 2])


def test_dropping_unlikely_draws_is_biased() -> None:
    """Why a drawn node may not be cut by its own probability: the check sees the bias."""
    target, draft = np.array([0.5, 0.5]), np.array([0.9, 0.1])

    def run(branching: Branching) -> int:
        token = branching.pick(draft.tolist())
        tree = CandidateTree.from_arrays([token], [ROOT], draft_probs=draft[None])
        kept = TreeDraft(tree if draft[token] > 0.5 else CandidateTree.empty())
        result = verify_by_rejection(kept, lambda node: target, branching, lambda *_: False)
        return result.token_ids[0]

    first = math.fsum(prob for prob, token in enumerate_outcomes(run) if token == 0)
    assert first == pytest.approx(0.55)  # and not 0.5


def test_reads_rows_of_zeros_as_chosen_nodes() -> None:
    rows = [[0.25, 0.75, 0], [0, 0, 0]]
    draft = TreeDraft(CandidateTree.from_arrays([1, 2], [ROOT, ROOT], draft_probs=rows))
    assert list(draft.children(ROOT)) == [0, 1] and list(draft.children(0)) == []
    probs = draft.probs(0)
    assert probs is not None and probs.dtype == np.float64
    np.testing.assert_allclose(probs, rows[0])
    assert draft.probs(1) is None
    assert TreeDraft(CandidateTree.from_chain([1, 2])).probs(0) is None


@pytest.mark.parametrize(
    ("row", "message"),
    [([0.5, 0.1, 0], "a sum of 0.6"), ([1, 0, 0], "allow its token 1"), ([1.5, -0.5, 0], "-0.5")],
)
def test_refuses_rows_that_nothing_was_drawn_from(row: list[float], message: str) -> None:
    draft = TreeDraft(CandidateTree.from_arrays([1], [ROOT], draft_probs=[row]))
    with pytest.raises(ValueError, match=message):
        draft.probs(0)


def test_stops_where_it_is_told_to() -> None:
    sure = np.array([0, 0, 1.0])
    draft = TreeDraft(CandidateTree.from_chain([2, 2, 2]))
    chance = PositionChance(NoiseKey(1), 5)
    emitted: list[int] = []

    def emit(token: int, node: int) -> bool:
        emitted.append(node)
        return len(emitted) < 2

    result = verify_by_rejection(draft, lambda node: sure, chance, emit)
    assert (result.token_ids, result.accepted, emitted) == ([2, 2], [0, 1], [ROOT, 0])


def test_uniform_number_is_the_tensor_noise() -> None:
    indices = torch.tensor([0, 1, 255, 2**31 - 1])
    for key in (NoiseKey(0), NoiseKey(2**64 - 1, 3), NoiseKey(-5, 2**32 - 1)):
        expected = uniform_noise(key, 2**33 + 9, indices, ACCEPT_DRAW)
        got = [uniform_number(key, 2**33 + 9, index) for index in indices.tolist()]
        assert got == expected.tolist()


def test_an_empty_tree_draws_the_token_of_plain_decoding() -> None:
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs = torch.softmax(scores, -1).numpy()
    for position in range(40):
        result = verify_by_rejection(
            TreeDraft(CandidateTree.empty()),
            lambda node: probs,
            PositionChance(NoiseKey(11), position),
            lambda *_: True,
        )
        assert result.token_ids == [choose_token(scores, NoiseKey(11), position)]


def test_keyed_draws_give_the_targets_distribution() -> None:
    """Two siblings and a chain below the first, drawn and judged with position-keyed noise."""
    target, draft = RandomModel(4, 5), RandomModel(4, 6)
    num_runs, counts = 1500, Counter[tuple[int, ...]]()
    for seed in range(num_runs):
        key, position = NoiseKey(seed), 9
        tokens: list[int] = []
        rows: list[FloatArray64] = []
        for node, parent in enumerate([ROOT, ROOT, 0]):
            row = draft(() if parent == ROOT else (tokens[0],))
            row = without_replacement(row, [tokens[0]]) if node == 1 else row
            uniform = uniform_number(key, position, node, DRAFT_DRAW)
            tokens.append(int(np.searchsorted(row.cumsum(), uniform, side="right")))
            rows.append(row)
        tree = CandidateTree.from_arrays(tokens, [ROOT, ROOT, 0], draft_probs=rows)
        paths = {ROOT: (), 0: (tokens[0],), 1: (tokens[1],), 2: (tokens[0], tokens[2])}
        result = verify_by_rejection(
            TreeDraft(tree),
            lambda node, paths=paths: target(paths[node]),
            PositionChance(key, position),
            lambda *_: True,
        )
        counts[tuple(result.token_ids[:1])] += 1
    expected = target(()) * num_runs
    observed = np.array([counts[token,] for token in range(4)])
    possible = expected > 0
    assert observed[~possible].sum() == 0
    chi_square = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 16.3  # the 99.9 % point at 3 degrees of freedom; the seeds are fixed
