from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from freedraft import create_drafter
from freedraft.cli import app
from freedraft.integrations.budget import BudgetConfig, Calibration
from freedraft.integrations.budget.calibration_file import MEASURED
from freedraft.workbench.replay.result import ReplayResult, replay_traces
from freedraft.workbench.schedules import (
    ENGINES,
    choose_schedule,
    engine_form,
    read_replay,
    schedule_of,
)
from freedraft.workbench.schedules.engine_forms import ranges
from freedraft.workbench.traces import TokenTrace

SCHEDULE = {1: 16, 8: 4, 32: 0}


def results(*budgets: int) -> list[ReplayResult]:
    """Replay a text that is copied in part."""
    generator = np.random.default_rng(1)
    prompt = generator.integers(0, 90, 120).astype(np.int32)
    response = np.concatenate([prompt[20:50], generator.integers(0, 90, 20), prompt[60:100]])
    trace = TokenTrace("a", "edit", None, prompt, response.astype(np.int32))
    return [
        replay_traces([trace], lambda: create_drafter("ngram"), max_nodes=nodes)
        for nodes in budgets
    ]


def saturating(threshold: int) -> Calibration:
    """Return times that are flat up to a number of tokens in the step, then proportional."""
    batches, nodes = (1, 2, 4, 8, 16, 32, 64, 128), tuple(range(0, 33))
    tokens = np.outer(batches, 1 + np.array(nodes))
    seconds = 0.01 * np.maximum(1.0, tokens / threshold)
    return Calibration("m", "vllm", "d", MEASURED, (1,), batches, nodes, seconds[None])


def test_the_schedule_drafts_less_at_higher_load_and_nothing_in_the_end() -> None:
    choices = choose_schedule(results(2, 8), saturating(64), [1, 2, 4, 8, 16, 32, 64, 128])
    nodes = [choice.nodes for choice in choices]
    assert nodes[0] == 8 and nodes[-1] == 0
    assert nodes == sorted(nodes, reverse=True)
    assert all(choice.speedup >= 1 for choice in choices)
    assert choices[-1].speedups[8] < 1  # where it would lose is told
    for choice in choices:
        if choice.nodes:
            assert choice.speedup == max(choice.speedups.values())
    schedule = schedule_of(choices)
    assert schedule[1] == 8
    BudgetConfig(schedule=schedule)  # the budget takes it


def test_a_schedule_of_constant_choices_has_one_entry() -> None:
    choices = choose_schedule(results(8), saturating(10**6), [1, 8])
    assert schedule_of(choices) == {1: 8}
    with pytest.raises(ValueError, match="expected results of a replay"):
        choose_schedule([], saturating(64))


def test_vllm_gets_inclusive_ranges() -> None:
    text = engine_form("vllm", SCHEDULE, 256)
    config = json.loads(text.removeprefix("--speculative-config ").strip("'"))
    expected = [[1, 7, 16], [8, 31, 4], [32, 256, 0]]
    assert config["num_speculative_tokens_per_batch_size"] == expected
    assert config["num_speculative_tokens"] == 16


def older(schedule: dict[int, int], batch: int) -> int:
    """Read a TensorRT-LLM schedule as older releases do."""
    return schedule[max(key for key in schedule if key <= batch)]


def newer(schedule: dict[int, int], batch: int) -> int:
    """Read a TensorRT-LLM schedule as newer releases do."""
    return schedule[min(key for key in schedule if key >= batch)]


def test_tensorrt_llm_gets_the_same_schedule_in_both_meanings() -> None:
    lines = engine_form("tensorrt-llm", SCHEDULE, 256).splitlines()
    first, second = (
        ast.literal_eval(line.partition("=")[2]) for line in lines if "schedule=" in line
    )
    for batch in range(1, 257):
        wanted = BudgetConfig(schedule=SCHEDULE).scheduled_nodes(batch)
        assert older(first, batch) == newer(second, batch) == wanted
    assert lines[-1] == "max_draft_len=16"


def test_the_other_engines() -> None:
    assert json.loads(engine_form("freedraft", SCHEDULE, 64)) == {
        "schedule": {"1": 16, "8": 4, "32": 0}
    }
    assert engine_form("llama-cpp", SCHEDULE, 64) == "LlamaDraftConfig(max_length=16)"
    assert "no draft model" in engine_form("llama-cpp", {1: 0}, 64)
    sglang = engine_form("sglang", SCHEDULE, 64).splitlines()
    assert json.loads(next(line for line in sglang if line.startswith("{")))["8"] == {
        "candidate_steps": [4]
    }
    assert sglang[-1] == "--speculative-num-draft-tokens 17"
    assert "leave" in engine_form("sglang", {1: 0}, 64)


@pytest.mark.parametrize("engine", ENGINES)
def test_off_at_every_load_can_be_said(engine: str) -> None:
    assert engine_form(engine, {1: 0}, 8)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="expected an engine among vllm"):
        engine_form("abacus", SCHEDULE, 256)
    with pytest.raises(ValueError, match="max_requests of at least 32"):
        engine_form("vllm", SCHEDULE, 16)
    with pytest.raises(ValueError, match="maps 1 and larger"):
        engine_form("vllm", {8: 4}, 16)
    assert ranges({1: 3}, 9) == [(1, 9, 3)]


def write_replay(path: Path) -> Path:
    rows = [result.to_dict() for result in results(2, 8)]
    path.write_text(json.dumps({"results": rows}))
    return path


def test_the_replay_file_gives_back_its_results(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "replay.json")
    read = read_replay(path)
    direct = results(2, 8)
    loads = [1, 16]
    assert [c.nodes for c in choose_schedule(read, saturating(64), loads)] == [
        c.nodes for c in choose_schedule(direct, saturating(64), loads)
    ]
    assert [result.tokens_per_step for result in read] == [r.tokens_per_step for r in direct]
    with pytest.raises(ValueError, match="expected the drafter among ngram, got 'suffix'"):
        read_replay(path, "suffix")
    path.write_text('{"results": [{}]}')
    with pytest.raises(ValueError, match="expected the JSON of 'freedraft replay --json'"):
        read_replay(path)


def test_the_command_prints_settings_only(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "replay.json")
    saturating(64).save(tmp_path / "times.json")
    options = ["--engine", "vllm", "--calibration", str(tmp_path / "times.json")]
    result = CliRunner().invoke(app, ["schedule", str(path), *options])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("--speculative-config '{")
    assert "Predicted speed-up by load" in result.stderr
    missing = CliRunner().invoke(app, ["schedule", str(tmp_path / "none.json")])
    assert missing.exit_code == 2
