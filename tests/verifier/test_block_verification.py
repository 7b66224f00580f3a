"""Block verification: exact distributions, and how much it accepts beside the other rules."""

from __future__ import annotations

import numpy as np
import pytest
from acceptance_enumeration import (
    CHOSEN,
    DRAWN,
    RandomModel,
    exact_outcome,
    point_mass_walk,
)

from freedraft.drafters import ROOT, CandidateTree
from freedraft.verifier import NoiseKey
from freedraft.verifier.block_verification import joint_ratios, stop_probability, verify_block
from freedraft.verifier.rejection import (
    FloatArray64,
    PositionChance,
    TreeDraft,
    verify_by_rejection,
)

TOLERANCE = 1e-12
# vocabulary size, longest chain: every run of the draws is enumerated
SIZES = [(2, 6), (3, 6), (4, 4), (5, 4)]


def chain(num_nodes: int) -> tuple[int, ...]:
    return tuple(range(ROOT, num_nodes - 1))


class FixedModel(RandomModel):
    """The same distribution after every path."""

    def __init__(self, row: list[float]) -> None:
        super().__init__(len(row), 0)
        self._row = np.array(row)

    def __call__(self, path: tuple[int, ...]) -> FloatArray64:
        return self._row


@pytest.mark.parametrize(("vocab_size", "max_nodes"), SIZES)
def test_whole_runs_are_the_targets(vocab_size: int, max_nodes: int) -> None:
    for num_nodes in range(max_nodes + 1):
        target, draft = RandomModel(vocab_size, num_nodes), RandomModel(vocab_size, 50 + num_nodes)
        mixed = [CHOSEN if node % 3 == 1 else DRAWN for node in range(num_nodes)]
        for kinds in ([DRAWN] * num_nodes, mixed):
            for num_tokens in {1, 2, num_nodes + 1}:
                outcome = exact_outcome(
                    verify_block, chain(num_nodes), kinds, target, draft, num_tokens
                )
                assert outcome.error < TOLERANCE, (num_nodes, kinds, num_tokens)


@pytest.mark.parametrize("vocab_size", [2, 3, 4])
def test_accepts_no_less_than_token_by_token(vocab_size: int) -> None:
    better = 0
    for case in range(24):
        num_nodes = 2 + case % 3
        target, draft = RandomModel(vocab_size, case), RandomModel(vocab_size, 1000 + case)
        kinds = [DRAWN] * num_nodes
        block, tokenwise = (
            exact_outcome(rule, chain(num_nodes), kinds, target, draft, num_nodes + 1)
            for rule in (verify_block, verify_by_rejection)
        )
        assert block.acceptance_length >= tokenwise.acceptance_length - TOLERANCE
        better += block.acceptance_length > tokenwise.acceptance_length + 1e-6
    assert better >= 8  # and mostly more


def test_example_of_the_paper() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two tokens: 11/9 accepted as a block, 10/9 one by one."""
    target, draft = FixedModel([1 / 3, 2 / 3]), FixedModel([2 / 3, 1 / 3])
    block, tokenwise = (
        exact_outcome(rule, chain(2), [DRAWN] * 2, target, draft, 3).acceptance_length - 1
        for rule in (verify_block, verify_by_rejection)
    )
    assert block == pytest.approx(11 / 9, abs=TOLERANCE)
    assert tokenwise == pytest.approx(10 / 9, abs=TOLERANCE)


def test_fixed_chains_are_accepted_as_by_the_walk() -> None:
    for case in range(10):
        target = RandomModel(3, case)
        block, walked = (
            exact_outcome(rule, chain(4), [CHOSEN] * 4, target, target, 5)
            for rule in (verify_block, point_mass_walk)
        )
        assert block.acceptance_length == pytest.approx(walked.acceptance_length, abs=TOLERANCE)


def test_equal_models_accept_everything() -> None:
    model = RandomModel(3, 4)
    outcome = exact_outcome(verify_block, chain(4), [DRAWN] * 4, model, model, 5)
    assert outcome.acceptance_length == pytest.approx(5, abs=TOLERANCE)


def test_ratios_are_capped_on_the_way() -> None:
    target, draft = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    ratios = joint_ratios([1, 0, 1], [draft, draft, None], [target] * 4)
    np.testing.assert_allclose(ratios, [1, 1, 0.4, 0.32])
    assert stop_probability(1.0, 0.3) == 1 and stop_probability(1.0, 0.0) == 0
    assert stop_probability(0.5, 0.25) == pytest.approx(1 / 3)


def test_all_decisions_are_keyed_by_the_first_position() -> None:
    """A later step decides about the same positions again, so it may not meet the same noise."""
    rng = np.random.default_rng(0)
    draft_probs = rng.dirichlet(np.ones(5), 4)
    tree = CandidateTree.from_arrays(
        [int(row.argmax()) for row in draft_probs], chain(4), draft_probs=draft_probs
    )
    target = rng.dirichlet(np.ones(5), 5)
    places: list[tuple[int, int]] = []

    class Recording(PositionChance):
        def decide(self, probability: float, offset: int, attempt: int) -> bool:
            places.append((offset, attempt))
            return False

    verify_block(
        TreeDraft(tree), lambda node: target[node + 1], Recording(NoiseKey(1), 3), lambda *_: True
    )
    assert places == [(0, 4), (0, 3), (0, 2), (0, 1)]


def test_stops_where_it_is_told_to() -> None:
    sure = np.array([0, 1.0])
    draft = TreeDraft(CandidateTree.from_chain([1, 1, 1]))
    sources: list[int] = []

    def emit(token: int, node: int) -> bool:
        sources.append(node)
        return len(sources) < 2

    result = verify_block(draft, lambda node: sure, PositionChance(NoiseKey(0), 0), emit)
    assert (result.token_ids, result.accepted, sources) == ([1, 1], [0, 1], [ROOT, 0])


def test_refuses_trees() -> None:
    draft = TreeDraft(CandidateTree.from_arrays([0, 1], [ROOT, ROOT]))
    with pytest.raises(ValueError, match="expected a chain, got 2 children"):
        verify_block(
            draft, lambda node: np.array([1.0]), PositionChance(NoiseKey(0), 0), lambda *_: True
        )
