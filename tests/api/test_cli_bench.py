"""``freedraft bench`` and ``freedraft simulate`` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_files import write_model
from typer.testing import CliRunner

from freedraft import cli

LOGS = [
    {"id": str(i), "workload": "edit", "prompt": f"{text}\n\n", "response": f"{text} {text}"}
    for i, text in enumerate(["for step in steps: run(step)", "one two three one two three"])
]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("again and again and again\n---\nrun(step)\nrun(step)\n")
    return str(path)


@pytest.fixture
def logs(tmp_path: Path) -> str:
    path = tmp_path / "logs.jsonl"
    path.write_text("\n".join(map(json.dumps, LOGS)))
    return str(path)


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, args, env={"COLUMNS": "200"})
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    out, err = (re.sub(r"\x1b\[[\d;?]*\w", "", part) for part in (result.stdout, result.stderr))
    return result.exit_code, out, err


def test_bench_shows_a_table_and_writes_numbers_and_picture(
    model_folder: str, prompts: str, tmp_path: Path
) -> None:
    args = ["bench", "--model", model_folder, "--prompts", prompts, "--drafter", "ngram,suffix"]
    args += ["--max-new-tokens", "12", "--rounds", "1", "--warmups", "0", "--no-cost-gate"]
    pytest.importorskip("matplotlib")
    numbers, picture = tmp_path / "n.json", tmp_path / "p.png"
    code, out, err = run(*args, "--json", str(numbers), "--plot", str(picture))
    assert code == 0, err
    for word in ("plain", "prompt lookup", "ngram", "suffix", "2 of 2", "1.00x"):
        assert word in out
    content = json.loads(numbers.read_text())
    assert content["settings"]["drafters"] == ["ngram", "suffix"]
    assert content["arms"]["ngram"]["same_text"] == 2
    assert picture.stat().st_size > 1000


def test_bench_prints_only_json_when_asked(model_folder: str, prompts: str) -> None:
    args = ("bench", "--model", model_folder, "--prompts", prompts, "--drafter", "ngram")
    code, out, err = run(*args, "--max-new-tokens", "4", "--rounds", "1", "--json", "-")
    assert code == 0, err
    assert list(json.loads(out)["arms"]) == ["plain", "prompt lookup", "ngram"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--prompts", "missing.txt"), "missing.txt: cannot be read"),
        (("--drafter", "oracle"), "expected different drafters"),
        (("--engine", "onnx"), "expected an engine among"),
        (("--url", "localhost"), "expected a URL"),
        (("--url", "http://127.0.0.1:9/v1"), "list its models"),
        (("--url", "http://127.0.0.1:9", "--rates", "fast"), "fast"),
        (("--url", "a=http://h", "--url", "a=http://g"), "different names"),
    ],
)
def test_bench_says_what_is_wrong(prompts: str, args: tuple[str, ...], message: str) -> None:
    given = args if args[0] == "--prompts" else ("--prompts", prompts, *args)
    code, _, err = run("bench", *given)
    assert code in (1, 2) and message in err


def test_simulate_finds_the_best_schedule_by_rate(
    model_folder: str, logs: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "p.png"
    args = ["simulate", logs, "--tokenizer", model_folder, "--drafter", "ngram", "--requests", "12"]
    args += ["--schedule", "off", "--schedule", "8", "--schedule", "auto", "--plot", str(picture)]
    code, out, err = run(*args, "--device", "l4", "--shape", "qwen3-4b", "--rates", "0.5,50")
    assert code == 0, err
    assert "Qwen3-4B, bf16 on NVIDIA L4 (computed from data sheets)" in out
    assert picture.stat().st_size > 1000
    code, out, err = run(*args, "--json", "-")
    content = json.loads(out)
    assert len(content["results"]) == 3 * 6 and len(content["best"]) == 6
    assert {row["policy"] for row in content["best"]} <= {"K=8", "auto"}
    by_name = {row["policy"]: row for row in content["results"]}
    assert by_name["off"]["tokens_per_step"] == 1.0 < by_name["K=8"]["tokens_per_step"]


def test_simulate_takes_a_calibration(model_folder: str, logs: str, tmp_path: Path) -> None:
    from freedraft.integrations.budget.data_sheets import data_sheet_calibration

    data_sheet_calibration("a100").save(tmp_path / "c.json")
    args = ("simulate", logs, "--tokenizer", model_folder, "--drafter", "ngram", "--json", "-")
    args += ("--requests", "6", "--rates", "3", "--calibration", str(tmp_path / "c.json"))
    code, out, err = run(*args, "--trees")
    assert code == 0, err
    assert "A100" in json.loads(out)["title"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--device", "abacus"), "expected --device among"),
        (("--shape", "gpt-17"), "expected llama-3.1-8b"),
        (("--shape", "llama-3.3-70b"), "memory for the weights"),
        (("--schedule", "sometimes"), "expected off, auto"),
        (("--rates", "0"), "rate above 0"),
        (("--calibration", "missing.json"), "missing.json"),
        (("--tokenizer", "none"), "expected token ids"),
        (("--kv-tokens", "16"), "expected requests of at most 16 tokens"),
    ],
)
def test_simulate_says_what_is_wrong(
    model_folder: str, logs: str, args: tuple[str, ...], message: str
) -> None:
    given = args if "--tokenizer" in args else (*args, "--tokenizer", model_folder)
    code, _, err = run("simulate", logs, "--drafter", "ngram", "--requests", "4", *given)
    assert code in (1, 2) and message in err
