"""The whole replay: reading, tasks in processes, going on after a crash, the command's options."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_files import byte_tokenizer
from typer.testing import CliRunner

from freedraft import cli
from freedraft.integrations.budget import Calibration, load_calibration
from freedraft.workbench.logs import LogError
from freedraft.workbench.replay import ReplayResult
from freedraft.workbench.replay import run as run_module
from freedraft.workbench.replay.encoder import IdsOnly, TokenizerEncoder
from freedraft.workbench.replay.plan import TASK_TOKENS, ReplayOptions, group_requests, list_tasks
from freedraft.workbench.replay.prediction import mean_context, predict
from freedraft.workbench.replay.prepare import LogOptions
from freedraft.workbench.replay.run import ReplayRun, StateError, run_replay
from freedraft.workbench.replay.store import ROW
from freedraft.workbench.replay.tally import Tally
from freedraft.workbench.replay.walk import AS_LOGGED

CLOCKED = ("_us_", "memory")
"""What two runs do not share: names that contain one of these."""


def write_log(path: Path, num_requests: int, namespaces: int = 1, seed: int = 0) -> Path:
    """Write a log of token ids with repeats inside and between requests."""
    rng = random.Random(seed)
    phrases = [[rng.randrange(50) for _ in range(12)] for _ in range(6)]
    lines = []
    for number in range(num_requests):
        prompt, response = ([t for _ in range(4) for t in rng.choice(phrases)] for _ in range(2))
        record = {
            "prompt_ids": prompt,
            "response_ids": response,
            "namespace": f"n{number % namespaces}",
            "workload": f"w{number % 2}",
        }
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def counts(results: Sequence[ReplayResult]) -> list[dict[str, Any]]:
    return [
        {
            key: value
            for key, value in result.to_dict().items()
            if not any(name in key for name in CLOCKED)
        }
        for result in results
    ]


def replay(
    paths: Sequence[Path],
    folder: Path,
    options: ReplayOptions | None = None,
    reading: LogOptions | None = None,
    processes: int = 1,
) -> ReplayRun:
    folder.mkdir(exist_ok=True)
    options = options or ReplayOptions(("ngram", "suffix"), (2, 6))
    return run_replay(
        paths, folder, IdsOnly(), reading or LogOptions(), options, processes=processes
    )


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", 12, namespaces=3)
    alone = replay([log], tmp_path / "a")
    together = replay([log], tmp_path / "b", processes=2)
    assert counts(alone.results) == counts(together.results)
    assert [(r.drafter, r.max_nodes) for r in alone.results] == [
        ("ngram", 2),
        ("ngram", 6),
        ("suffix", 2),
        ("suffix", 6),
    ]
    assert all(result.requests == 12 and result.workload == "w0,w1" for result in alone.results)


def test_namespaces_learn_apart(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", 12, namespaces=12)
    options = ReplayOptions(("suffix",), (6,))
    apart = replay([log], tmp_path / "a", options).results[0]
    shared = replay([log], tmp_path / "b", options, LogOptions(namespace_by="none")).results[0]
    cold = replay([log], tmp_path / "c", ReplayOptions(("suffix",), (6,), warm=False)).results[0]
    assert shared.steps < apart.steps
    assert apart.steps == cold.steps
    assert (apart.warm, cold.warm) == (True, False)


class KilledError(Exception):
    """Stands for a signal."""


@pytest.mark.parametrize("after", [0, 1, 3])
def test_killed_and_taken_up_gives_the_same_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    logs = [write_log(tmp_path / f"{n}.jsonl", 6, seed=n) for n in range(2)]
    whole = replay(logs, tmp_path / "whole")
    done: list[str] = []
    run_task = run_module._run_task

    def die(task: Any, *args: Any) -> Tally:
        if len(done) == after:
            raise KilledError
        done.append(task.key)
        return run_task(task, *args)

    monkeypatch.setattr(run_module, "_run_task", die)
    with pytest.raises(KilledError):
        replay(logs, tmp_path / "state")

    def live(task: Any, *args: Any) -> Tally:
        done.append(task.key)
        return run_task(task, *args)

    monkeypatch.setattr(run_module, "_run_task", live)
    resumed = replay(logs, tmp_path / "state")
    assert counts(resumed.results) == counts(whole.results)
    assert resumed.files == whole.files
    assert len(done) == len(set(done)) == 8  # nothing twice


def test_killed_while_reading_goes_on_with_the_next_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [write_log(tmp_path / f"{n}.jsonl", 4, seed=n) for n in range(3)]
    whole = replay(logs, tmp_path / "whole")
    broken = logs[1].read_text(encoding="utf-8")
    stat = logs[1].stat()
    logs[1].write_text(broken[:-20] + "x" * 20, encoding="utf-8")  # fails after some requests
    os.utime(logs[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(LogError, match=r"1\.jsonl:4"):
        replay(logs, tmp_path / "state")
    logs[1].write_text(broken, encoding="utf-8")
    os.utime(logs[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert counts(replay(logs, tmp_path / "state").results) == counts(whole.results)


def test_a_folder_of_another_replay_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", 2)
    replay([log], tmp_path / "state")
    with pytest.raises(StateError, match="another's: reading was"):
        replay([log], tmp_path / "state", reading=LogOptions(skip_broken=True))
    write_log(log, 3)
    with pytest.raises(StateError, match="another's: logs was"):
        replay([log], tmp_path / "state")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").write_text("mine")
    with pytest.raises(StateError, match="expected an empty folder or a replay's state"):
        replay([log], tmp_path / "home")


def rows_of(*requests: tuple[int, int, float, float]) -> Any:
    """Return a table of (namespace, response tokens, arrival, finish)."""
    rows = np.zeros(len(requests), ROW)
    for row, (namespace, response, arrival, finish) in zip(rows, requests, strict=True):
        row["namespace"], row["response"] = namespace, response
        row["arrival"], row["finish"] = arrival, finish
    return rows


def test_lanes_are_in_order_of_arrival() -> None:
    options = ReplayOptions(("ngram",), (4,))
    nan = float("nan")
    rows = rows_of((0, 5, 3.0, 4.0), (1, 5, 1.0, 2.0), (0, 5, 2.0, 9.0))
    (group,) = group_requests(rows, ["d/f.jsonl"], options)
    assert [lane.tolist() for lane in group.lanes] == [[2, 0], [1]]
    assert (group.name, group.concurrency, group.tokens) == ("f.jsonl", AS_LOGGED, 15)
    rows["finish"][0] = nan
    assert group_requests(rows, ["f"], options)[0].concurrency == 1
    rows["arrival"][0] = nan
    (group,) = group_requests(rows, ["f"], options)
    assert [lane.tolist() for lane in group.lanes] == [[0, 2], [1]]
    rows["file"] = [0, 1, 1]
    assert len(group_requests(rows, ["f", "g"], options)) == 2
    joined = group_requests(rows, ["f", "g"], ReplayOptions(("ngram",), (4,), join=True))
    assert [one.name for one in joined] == ["f + g"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, TASK_TOKENS // 2)), min_size=1, max_size=30
    ),
    st.booleans(),
)
@settings(max_examples=40)
def test_tasks_hold_each_request_once(requests: list[tuple[int, int]], warm: bool) -> None:
    nan = float("nan")
    rows = rows_of(*((namespace, tokens, nan, nan) for namespace, tokens in requests))
    options = ReplayOptions(("ngram", "edit"), (4, 8), warm=warm)
    groups = group_requests(rows, ["f"], options)
    tasks = list_tasks(rows, groups, options)
    assert len({task.key for task in tasks}) == len(tasks)
    for drafter in options.drafters:
        for budget in options.budgets:
            own = [t for t in tasks if (t.drafter, t.max_nodes) == (drafter, budget)]
            held = [lane.tolist() for task in own for lane in task.lanes]
            assert sorted(n for lane in held for n in lane) == list(range(len(requests)))
            if warm:
                assert len(held) == len({namespace for namespace, _ in requests})
            assert sum(sum(task.tokens) for task in own) == sum(t for _, t in requests)


def test_bad_settings_are_named(tmp_path: Path) -> None:
    for options in ({"budgets": (-1,)}, {"concurrency": 0}, {"drafters": ()}):
        with pytest.raises(ValueError, match="expected"):
            ReplayOptions(**({"drafters": ("ngram",), "budgets": (1,)} | options))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="namespaces by log, session"):
        LogOptions(namespace_by="user")
    (tmp_path / "e.jsonl").write_text("\n")
    with pytest.raises(LogError, match="expected at least one request, got none in 0 lines"):
        replay([tmp_path / "e.jsonl"], tmp_path / "s")
    (tmp_path / "t.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    with pytest.raises(LogError, match=r"t\.jsonl:1: expected token ids since there is no token"):
        replay([tmp_path / "t.jsonl"], tmp_path / "s2")


# -- log-probabilities


def test_logged_tokens_are_the_responses_tokens(tmp_path: Path) -> None:
    encoder = TokenizerEncoder(byte_tokenizer(), "bytes")
    content = [
        {"token": t, "logprob": -0.5, "top_logprobs": [{"token": "?", "logprob": -1.2}]}
        for t in "abab"
    ]
    fits = {
        "request": {"messages": [{"role": "user", "content": "x"}]},
        "response": {
            "choices": [{"message": {"content": "abab"}, "logprobs": {"content": content}}]
        },
    }
    foreign = json.loads(json.dumps(fits).replace('"b"', '"no such token"'))
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(fits) + "\n" + json.dumps(foreign) + "\n")
    (tmp_path / "s").mkdir()
    run = run_replay([path], tmp_path / "s", encoder, LogOptions(), ReplayOptions(("ngram",), (3,)))
    assert run.files[0].without_logprobs == 1
    (result,) = run.results
    assert result.expected_tokens_per_step is not None
    assert 1 <= result.expected_tokens_per_step[0] <= result.expected_tokens_per_step[1]
    assert result.tokens == 8 and result.tally.sampling.steps > 0


# -- predictions


def flat_calibration(engine: str) -> Calibration:
    """Return step times of 1 ms, and 0.1 ms for each drafted token of each request."""
    nodes = (0, 1, 64)
    seconds = np.array([[[0.001 + 0.0001 * n * b for n in nodes] for b in (1, 4)]])
    return Calibration("m", engine, "d", "measured", (100,), (1, 4), nodes, seconds)


def result_of(steps_by_drafted: list[int], tokens: int) -> ReplayResult:
    tally = Tally(len(steps_by_drafted) - 1)
    tally.steps_by_drafted[:] = steps_by_drafted
    tally.total.steps, tally.total.tokens, tally.total.requests = sum(steps_by_drafted), tokens, 1
    return ReplayResult.from_tally(tally, file="f", drafter="d", warm=True)


def test_predictions_are_the_expected_times() -> None:
    result = result_of([3, 0, 1], 8)  # 2 tokens a step; three in four steps draft nothing
    for engine in ("vllm", "transformers"):
        one, four = predict(result, flat_calibration(engine), (1, 4))
        assert one.plain_seconds == pytest.approx(0.001)
        assert one.verify_seconds == pytest.approx(0.75 * 0.001 + 0.25 * 0.0012)
        assert one.speedup == pytest.approx(2 * 0.001 / one.verify_seconds)
        if engine == "vllm":  # the sum of four requests: 4 x 0.5 nodes
            assert four.verify_seconds == pytest.approx(0.001 + 0.0001 * 4 * 0.5)
        else:  # the widest of four requests, for all of them
            widest = 2 * (1 - 0.75**4)
            assert four.verify_seconds == pytest.approx(0.001 + 0.0001 * 4 * widest)
    assert mean_context(result) == 4


def test_predictions_count_the_drafting() -> None:
    result = result_of([0, 4], 8)
    slow = dataclasses.replace(result, draft_us_mean=500.0)
    fast, late = (predict(one, load_calibration("a100"), (8,))[0] for one in (result, slow))
    assert late.draft_seconds == pytest.approx(8 * 500e-6)
    assert late.speedup < fast.speedup


# -- the command


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> str:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def run_command(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["replay", *args])
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_broken_lines_end_the_command_or_are_counted(tmp_path: Path, tokenizer_folder: str) -> None:
    log = tmp_path / "mixed.jsonl"
    good = json.dumps({"prompt": "p", "response": "abcabcabc"})
    empty = json.dumps({"prompt": "p", "response": ""})
    log.write_bytes("\n".join([good, good[:-9], empty, good]).encode() + b"\n\xff\n")
    args = (str(log), "--tokenizer", tokenizer_folder, "--drafter", "ngram", "--processes", "1")
    code, _, err = run_command(*args)
    assert code == 2 and "mixed.jsonl:2: expected one JSON object" in err.replace("\n", "")
    code, out, err = run_command(*args, "--skip-broken", "--json", "-")
    assert code == 0
    content = json.loads(out)
    assert content["files"][0]["skipped"] == {"cut off": 1, "empty response": 1, "encoding": 1}
    assert content["files"][0]["requests"] == content["results"][0]["requests"] == 2
    assert content["calibration"]["source"] == "computed from data sheets"
    assert len(content["results"][0]["predictions"]) == 8
    told = err.replace("\n", "")
    assert "skipped 3 broken lines (1 cut off, 1 empty response, 1 encoding)" in told
    assert "mixed.jsonl:3: expected a response, got an empty one" in told


def test_the_command_joins_logs_and_keeps_state(tmp_path: Path) -> None:
    logs = [str(write_log(tmp_path / f"{n}.jsonl", 3, seed=n)) for n in range(2)]
    args = (*logs, "--tokenizer", "none", "--drafter", "ngram", "--join", "--processes", "1")
    args = (*args, "--state", str(tmp_path / "state"), "--concurrency", "2", "--json", "-")
    code, first, err = run_command(*args)
    assert code == 0, err
    (result,) = json.loads(first)["results"]
    assert (result["file"], result["requests"]) == ("0.jsonl + 1.jsonl", 6)
    assert result["concurrency"] == 2
    code, second, _ = run_command(*args)
    assert second == first  # even the times: nothing was measured anew


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--format", "csv"), "expected --format among auto, pairs"),
        (("--namespace-by", "user"), "expected namespaces by log, session"),
        (("--calibration", "abacus"), "expected a calibration file or one of"),
        (("--tokenizer", "none"), "expected token ids since there is no tokenizer"),
    ],
)
def test_the_command_names_bad_options(
    tmp_path: Path, tokenizer_folder: str, args: tuple[str, ...], message: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt": "p", "response": "r"}\n')
    code, out, err = run_command(str(log), "--tokenizer", tokenizer_folder, *args)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", "")
