"""What model drafters share: draws with their q, trees, the stop by confidence, the pay gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from acceptance_enumeration import Branching, Path, RandomModel, enumerate_outcomes
from torch import Tensor, nn

from freedraft import CandidateTree
from freedraft.drafters import RequestId
from freedraft.drafters.model_drafting import ModelDraftConfig, NewNodes
from freedraft.drafters.model_drafting.choices import (
    SeededDraws,
    choose_children,
    draft_distribution,
    draw_children,
)
from freedraft.drafters.model_drafting.confidence import ConfidenceStop
from freedraft.drafters.model_drafting.expansion import Expansion, RowDraft
from freedraft.drafters.model_drafting.pay_gate import PayGate
from freedraft.drafters.model_drafting.requests import DraftRecord
from freedraft.drafters.tree import FloatArray
from freedraft.verifier.rejection import TreeDraft, verify_by_rejection


class TableRunner:
    """One row of a language model that is a table: a distribution after each path."""

    def __init__(self, model: RandomModel, num_rows: int = 1) -> None:
        self._table = model
        self.request_ids: list[RequestId] = list(range(num_rows))
        self._paths: list[dict[int, Path]] = [{-1: ()} for _ in range(num_rows)]
        self.num_forwards = 0
        self._num_fed = 0

    @property
    def context_lengths(self) -> list[int]:
        return [0] * len(self.request_ids)

    @property
    def model(self) -> nn.Module:
        raise NotImplementedError

    @property
    def max_context(self) -> int:
        return 100

    def grow(self, nodes: Sequence[NewNodes]) -> tuple[Tensor, int]:
        self.num_forwards += 1
        first = self._num_fed
        width = max(len(row.token_ids) for row in nodes)
        self._num_fed += width
        logits = torch.full((len(nodes), width, self._table.vocab_size), torch.nan)
        for row, new in enumerate(nodes):
            for index, (token, parent) in enumerate(zip(new.token_ids, new.parents, strict=True)):
                # The root's token is no part of the path.
                path = () if parent == -1 else (*self._paths[row][parent], token)
                self._paths[row][first + index] = path
                logits[row, index] = torch.from_numpy(self._table(path)).log()
        return logits, first

    def keep(self, numbers: Sequence[Sequence[int]]) -> None:
        raise NotImplementedError

    def rescore(self, recent: Sequence[Sequence[int]]) -> Tensor:
        raise NotImplementedError

    def select(self, rows: Sequence[int]) -> None:
        raise NotImplementedError

    def prefill(self, texts: Sequence[Sequence[int]]) -> None:
        raise NotImplementedError


class EnumeratedDraws:
    """Each token that may be drawn is a branch."""

    def __init__(self, branching: Branching) -> None:
        self._branching = branching

    def draw(self, row: FloatArray) -> int:
        wide = row.astype(np.float64)
        return self._branching.pick((wide / wide.sum()).tolist())


def drawn_tree(
    config: ModelDraftConfig,
    model: RandomModel,
    branching: Branching,
    max_nodes: int,
    min_confidence: float,
) -> CandidateTree:
    draft = RowDraft([0], max_nodes, 2, EnumeratedDraws(branching))
    Expansion(config, lambda chance: chance).run(TableRunner(model), [draft], min_confidence)
    return draft.tree()


def enumerated_error(
    config: ModelDraftConfig,
    seed: int,
    *,
    max_nodes: int = 8,
    min_confidence: float = 0.0,
    spoil: bool = False,
) -> float:
    """Return the largest error of the joint distribution of a step's first two tokens.

    Args:
        config: how the draft is drawn.
        seed: of the target and of the draft model.
        max_nodes: most nodes.
        min_confidence: of the draft.
        spoil: drop drawn nodes that are improbable, which no drafter may do.
    """
    target, draft_model = RandomModel(3, 2 * seed), RandomModel(3, 2 * seed + 1)

    def run(branching: Branching) -> Path:
        tree = drawn_tree(config, draft_model, branching, max_nodes, min_confidence)
        if spoil:
            tree = tree.cut(1)
        emitted: list[int] = []

        def emit(token: int, node: int) -> bool:
            emitted.append(token)
            return len(emitted) < 2

        def target_probs(node: int) -> Any:
            path = () if node < 0 else tuple(int(tree.token_ids[i]) for i in tree.path(node))
            return target(path)

        verify_by_rejection(TreeDraft(tree), target_probs, branching, emit)
        return tuple(emitted)

    mass: dict[Path, float] = {}
    for probability, emitted in enumerate_outcomes(run):
        if len(emitted) == 2:
            mass[emitted] = mass.get(emitted, 0.0) + probability
        else:  # the step ended: plain decoding goes on
            for token, share in enumerate(target(emitted).tolist()):
                mass[(*emitted, token)] = mass.get((*emitted, token), 0.0) + probability * share
    wanted = {(a, b): target(())[a] * target((a,))[b] for a in range(3) for b in range(3)}
    return max(abs(mass.get(path, 0.0) - float(prob)) for path, prob in wanted.items())


SHAPES = {
    "chain": {"max_depth": 2},
    "siblings": {"branches": 2, "max_depth": 1},
    "tree": {"branches": 2, "width": 1, "max_depth": 2},
    "hot": {"temperature": 1.7, "max_depth": 2},
    "top_k": {"top_k": 2, "branches": 2, "max_depth": 1},
    "top_p": {"top_p": 0.7, "max_depth": 2},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_enumerated_drawn_drafts_are_lossless(shape: str, seed: int) -> None:
    config = ModelDraftConfig(**{"temperature": 1.0, **SHAPES[shape]})
    assert enumerated_error(config, seed) < 1e-12


@pytest.mark.parametrize("limits", [{"max_nodes": 2}, {"max_nodes": 3}, {"min_confidence": 0.6}])
def test_enumerated_limits_are_lossless(limits: dict[str, Any]) -> None:
    config = ModelDraftConfig(temperature=1.0, branches=2, width=2, max_depth=2)
    assert enumerated_error(config, 1, **limits) < 1e-12


def test_enumeration_finds_a_cut_by_probability() -> None:
    config = ModelDraftConfig(temperature=1.0, branches=2, max_depth=1)
    assert max(enumerated_error(config, seed) for seed in range(6)) < 1e-12
    assert max(enumerated_error(config, seed, spoil=True) for seed in range(6)) > 1e-2


def test_draft_distribution_is_the_processed_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    config = ModelDraftConfig(temperature=0.5, top_k=3, top_p=0.9)
    weights = np.exp(np.array([4.0, 2.0, 0.0]))
    probs = weights / weights.sum()  # 0.867, 0.117, 0.016: two reach 0.9
    wanted = [probs[0] / probs[:2].sum(), probs[1] / probs[:2].sum(), 0, 0]
    assert draft_distribution(logits, config) == pytest.approx(wanted, abs=1e-7)
    everything = draft_distribution(logits, ModelDraftConfig(temperature=1.0))
    assert everything == pytest.approx(torch.softmax(logits, -1).tolist(), abs=1e-7)


def test_drawn_children_are_distinct_and_say_what_they_were_drawn_from() -> None:
    logits = torch.tensor([0.5, -torch.inf, 2.0, 1.0])
    for seed in range(20):
        children = draw_children(logits, 5, ModelDraftConfig(temperature=1.0), SeededDraws(seed))
        assert sorted(children.token_ids) == [0, 2, 3]
        drawn: list[int] = []
        for token, row in zip(children.token_ids, children.rows, strict=True):
            assert row[token] > 0 and not row[drawn].any()
            assert row.sum() == pytest.approx(1, abs=1e-6)
            drawn.append(token)


def test_draws_follow_the_distribution() -> None:
    row = np.array([0.5, 0.0, 0.3, 0.2], np.float32)
    counts = np.bincount([SeededDraws(9, number).draw(row) for number in range(4000)], minlength=4)
    statistic = sum((counts[i] - 4000 * row[i]) ** 2 / (4000 * row[i]) for i in (0, 2, 3))
    assert counts[1] == 0 and statistic < 13.8  # 0.1 % point of 2 degrees of freedom


def test_chosen_children_are_the_most_likely() -> None:
    children = choose_children(torch.tensor([0.0, 3.0, -torch.inf, 2.0]), 4)
    assert children.token_ids == [1, 3, 0]
    assert children.confidence == children.chances[0] > children.chances[1]


def test_chosen_trees_hold_the_best_paths() -> None:
    model = RandomModel(4, 5)
    config = ModelDraftConfig(max_depth=3, width=4, branches=4)
    draft = RowDraft([0], 12, 3, SeededDraws(0))
    runner = TableRunner(model)
    Expansion(config, lambda chance: chance).run(runner, [draft], 0.0)
    assert runner.num_forwards == 3
    tree = draft.tree().cut(12)
    tree.validate(4)
    every: dict[Path, float] = {(): 1.0}
    for depth in range(3):
        for path in [path for path in every if len(path) == depth]:
            every |= {(*path, token): every[path] * model(path)[token] for token in range(4)}
    best = sorted((p for path, p in every.items() if path), reverse=True)[:12]
    assert sorted(tree.probs.tolist(), reverse=True) == pytest.approx(best, rel=1e-5)


def test_an_unsure_draft_stops_and_a_full_one_does_not_go_on() -> None:
    model = RandomModel(4, 8)
    config = ModelDraftConfig(max_depth=4)
    for threshold, forwards in ((0.0, 4), (0.999, 1)):
        runner = TableRunner(model)
        draft = RowDraft([0], 8, 8, SeededDraws(0))
        Expansion(config, lambda chance: chance).run(runner, [draft], threshold)
        assert runner.num_forwards == forwards
        assert draft.tree().num_nodes == forwards
    runner = TableRunner(model)
    draft = RowDraft([0], 2, 8, SeededDraws(0))
    Expansion(config, lambda chance: chance).run(runner, [draft], 0.0)
    assert draft.tree().num_nodes == runner.num_forwards == 2


def test_rows_draft_side_by_side() -> None:
    model = RandomModel(4, 8)
    config = ModelDraftConfig(max_depth=3, width=2, branches=2)
    alone = RowDraft([0], 9, 3, SeededDraws(0))
    Expansion(config, lambda chance: chance).run(TableRunner(model), [alone], 0.0)
    drafts = [None, RowDraft([0], 9, 3, SeededDraws(0)), RowDraft([0, 0], 9, 1, SeededDraws(0))]
    Expansion(config, lambda chance: chance).run(TableRunner(model, 3), drafts, 0.0)
    assert drafts[1] is not None and drafts[1].tree().draw() == alone.tree().draw()
    assert drafts[2] is not None and drafts[2].tree().num_nodes == 2


def test_the_threshold_follows_what_comes_true() -> None:
    stop = ConfidenceStop(0.5, 0.8)
    for _ in range(20):
        stop.record(0, 4)
    assert stop.threshold > 0.6
    for _ in range(200):
        stop.record(4, 4)
    assert 0 < stop.threshold < 0.1
    never = ConfidenceStop(0.0, 0.8)
    never.record(0, 4)
    assert never.threshold == 0


class Machine:
    """A clock, and steps that take a second without a draft and ``drafted`` seconds with one."""

    def __init__(self, drafted: float, tokens: int, hopeful: bool = True) -> None:
        self.now = 0.0
        self.drafted = drafted
        self.tokens = tokens
        self.gate = PayGate(True, lambda: self.now, hopeful=hopeful)

    def run(self, num_steps: int) -> int:
        """Return how many of the steps were drafted."""
        count = 0
        for _ in range(num_steps):
            on = self.gate.begin_step(1)
            count += on
            self.now += self.drafted if on else 1.0
            self.gate.add_tokens(self.tokens if on else 1)
        return count


def test_the_gate_keeps_drafts_that_pay() -> None:
    machine = Machine(drafted=1.5, tokens=3)
    machine.run(20)
    assert machine.gate.is_on and machine.gate.speedup() == pytest.approx(2)
    assert machine.run(400) > 360


def test_the_gate_stops_drafts_that_do_not_pay_and_tries_again() -> None:
    machine = Machine(drafted=2.5, tokens=2)
    machine.run(20)
    assert not machine.gate.is_on
    drafted = machine.run(5000)
    assert 0 < drafted < 20
    machine.drafted = 1.2  # the text or the machine has changed
    machine.run(4200)
    assert machine.gate.is_on


def test_the_gate_of_a_poor_prospect_opens_late_but_opens() -> None:
    machine = Machine(drafted=1.2, tokens=2, hopeful=False)
    assert machine.run(4000) == 0
    machine.run(200)
    assert machine.gate.is_on


def test_steps_of_another_kind_are_left_out() -> None:
    machine = Machine(drafted=1.5, tokens=3)
    machine.run(3)
    machine.now += 1000  # the caller did something else between two requests
    machine.gate.interrupt()
    machine.run(20)
    assert machine.gate.speedup() == pytest.approx(2)
    assert PayGate(False).begin_step(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_depth": 0}, "max_depth >= 1, got 0"),
        ({"width": 0}, "width >= 1, got 0"),
        ({"branches": 0}, "branches >= 1, got 0"),
        ({"temperature": -1.0}, "temperature >= 0"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p in \(0, 1\]"),
        ({"top_k": 3}, "temperature above 0 beside top_k"),
        ({"seed": -1}, "seed >= 0, got -1"),
        ({"confidence": 1.0}, r"confidence in \[0, 1\)"),
        ({"target_acceptance": 1.0}, r"target_acceptance in \(0, 1\)"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelDraftConfig(**settings)


def test_probabilities_become_honest() -> None:
    record = DraftRecord(ModelDraftConfig())
    record.start(0, [1])
    for number in range(600):  # always says 0.9, is right half of the time
        draft = record.new_draft(0, len(record.texts[0].token_ids) - 1, 4, 4)
        draft.token_ids, draft.parents = [5], [-1]
        draft.chances, draft.probs = [0.9], [record.calibrated(0.9)]
        record.propose(0, draft)
        record.extend(0, [5 if number % 2 else 6])
    assert record.calibrated(0.9) == pytest.approx(0.5, abs=0.08)
    assert record.calibrated(0.0) <= record.calibrated(0.5) <= record.calibrated(1.0)
