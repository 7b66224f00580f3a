from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.workbench.calibration import CalibrationPlan, measure_steps, tabulate
from freedraft.workbench.calibration.draft_costs import measure_drafting
from freedraft.workbench.calibration.llama_cpp_timer import LlamaCppTimer
from freedraft.workbench.calibration.measure import monotone_table
from freedraft.workbench.calibration.vllm_proposer import CLASS_PATH, PLAN, PlannedProposer

PLAN_OF_TESTS = CalibrationPlan((10, 20), (1, 2), (0, 1, 4), 3)


def ignore(stage: str, done: int, total: int | None) -> None:
    pass


class PretendTimer:
    """Takes context + 10 batch + nodes seconds, ten times that in every fifth call."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []

    def prepare(self, context: int, batch: int) -> Callable[[int], float]:
        def step(nodes: int) -> float:
            self.calls.append((context, batch, nodes))
            slow = 10 if len(self.calls) % 5 == 0 else 1
            return slow * (context + 10 * batch + nodes)

        return step


def test_medians_forget_slow_steps_and_entries_take_turns() -> None:
    timer = PretendTimer()
    plan = CalibrationPlan((10, 20), (1, 2), (0, 1, 4), 9)
    told: list[tuple[str, int, int | None]] = []
    times = measure_steps(timer, plan, lambda *args: told.append(args))
    assert all(len(values) == 9 for values in times.values())
    rounds = [set(timer.calls[start : start + 12]) for start in range(0, 120, 12)]
    assert all(len(entries) == 12 for entries in rounds)  # each entry once a round
    assert told[-1] == ("measure", 10, 10)
    calibration = tabulate(times, plan, model="m", engine="e", device="d")
    expected = [[[c + 10 * b + n for n in plan.nodes] for b in plan.batches] for c in plan.contexts]
    assert calibration.seconds.tolist() == expected
    assert calibration.about["largest_correction"] == 0.0


@given(st.lists(st.floats(0.1, 10), min_size=12, max_size=12))
def test_the_monotone_table_never_falls_and_leaves_monotone_ones(values: list[float]) -> None:
    table = np.array(values).reshape(2, 2, 3)
    fitted = monotone_table(table)
    assert all((np.diff(fitted, axis=axis) >= 0).all() for axis in range(3))
    assert table.min() - 1e-9 <= fitted.min() and fitted.max() <= table.max() + 1e-9
    assert monotone_table(fitted) == pytest.approx(fitted)


def test_a_fall_is_averaged_not_lifted() -> None:
    assert monotone_table(np.array([[[1.0, 3.0, 2.0, 4.0]]])).tolist() == [[[1.0, 2.5, 2.5, 4.0]]]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (((2, 1), (1,), (0,), 1), "increasing contexts"),
        (((1,), (0,), (0,), 1), "increasing batches from 1"),
        (((1,), (1,), (1, 2), 1), "nodes to begin with 0"),
        (((1,), (1,), (0,), 0), "rounds >= 1"),
    ],
)
def test_plans_are_checked(axes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CalibrationPlan(*axes)  # type: ignore[arg-type]


def test_drafting_is_timed_by_batch() -> None:
    seconds = measure_drafting("ngram", (1, 3), 64, 100)
    assert seconds.shape == (2,)
    assert (seconds > 0).all()


class PretendLlama:
    """Keeps the state that the timer relies on."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.cached: list[int] = []
        self.evaluated: list[tuple[int, int]] = []

    def n_vocab(self) -> int:
        return 50

    def n_ctx(self) -> int:
        return 64

    def reset(self) -> None:
        self.n_tokens = 0

    def eval(self, tokens: list[int]) -> None:
        del self.cached[self.n_tokens :]
        self.cached += tokens
        self.evaluated.append((self.n_tokens, len(tokens)))
        self.n_tokens = len(self.cached)


def test_llama_steps_stand_behind_their_context() -> None:
    llama = PretendLlama()
    times = measure_steps(LlamaCppTimer(llama), CalibrationPlan((8, 20), (1,), (0, 3), 2), ignore)
    assert set(times) == set(itertools.product((8, 20), (1,), (0, 3)))
    for context, nodes in ((8, 0), (8, 3), (20, 0), (20, 3)):
        assert llama.evaluated.count((context, nodes + 1)) >= 3
    with pytest.raises(ValueError, match="expected batches of 1"):
        LlamaCppTimer(llama).prepare(8, 2)
    with pytest.raises(ValueError, match="expected contexts below the engine's 64 tokens, got 64"):
        LlamaCppTimer(llama).prepare(64, 1)


def test_the_proposer_for_vllm_takes_turns_and_writes_down_full_steps(tmp_path: Path) -> None:
    file = tmp_path / "steps.txt"
    settings = {PLAN: {"nodes": [0, 2, 5], "vocab_size": 9, "file": str(file)}}
    proposer = PlannedProposer(SimpleNamespace(additional_config=settings))
    assert proposer.propose([[1], []]) == [[], []]  # a prompt is still read
    drafts = [proposer.propose([[1], [2]], None, slot_mappings=None) for _ in range(6)]
    assert sorted(len(draft[0]) for draft in drafts) == [0, 0, 2, 2, 5, 5]
    assert all(len(first) == len(second) for first, second in drafts)
    assert all(type(token) is int and 0 <= token < 9 for first, _ in drafts for token in first)
    proposer.propose([[1]])  # one request has ended: not a step of two
    lines = [line.split() for line in file.read_text().splitlines()]
    assert [(int(n), int(k)) for n, k, _ in lines] == [(2, len(d[0])) for d in drafts[:5]]
    assert CLASS_PATH == "freedraft.workbench.calibration.vllm_proposer.PlannedProposer"


def test_a_tiny_model_is_timed() -> None:
    pytest.importorskip("transformers")
    from tiny_models import tiny_llama

    from freedraft.workbench.calibration.transformers_timer import TransformersTimer, device_name

    model = tiny_llama()
    timer = TransformersTimer(model, 4, 12)
    times = measure_steps(timer, PLAN_OF_TESTS, ignore)
    assert min(min(values) for values in times.values()) > 0
    calibration = tabulate(times, PLAN_OF_TESTS, model="m", engine="e", device=device_name(model))
    assert calibration.device.endswith("threads")
