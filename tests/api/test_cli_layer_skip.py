"""``freedraft calibrate layer-skip`` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_files import write_model
from typer.testing import CliRunner

from freedraft import cli
from freedraft.integrations.layer_skip_file import load_skip_record

SENTENCE = "for step in steps:\n    run(step)\n"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["calibrate", "layer-skip", *args])
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("kind", ["traces", "text"])
def test_a_set_is_found_kept_and_shown(model_folder: str, tmp_path: Path, kind: str) -> None:
    if kind == "traces":
        texts = tmp_path / "texts.jsonl"
        trace = {"id": "1", "workload": "edit", "prompt": SENTENCE, "response": SENTENCE * 3}
        texts.write_text(json.dumps(trace) + "\n")
    else:
        texts = tmp_path / "texts.txt"
        texts.write_text(SENTENCE * 30)
    out = tmp_path / "found" / "set.json"
    options = ["--model", model_folder, "--texts", str(texts), "--minutes", "0", "--out", str(out)]
    code, printed, errors = run(*options, "--json")
    assert code == 0, errors
    shown = json.loads(printed)
    record = load_skip_record(out)
    assert shown["skip"] == record.skip.to_dict() and record.skip.size
    assert shown["path"] == str(out) and shown["pays"] == record.pays
    assert record.speedup >= shown["uniform_speedup"] - 1e-3
    code, printed, _ = run(*options)
    assert code == 0 and "equal distances" in printed and "sets tried" in printed


def test_texts_that_do_not_serve_are_refused(model_folder: str, tmp_path: Path) -> None:
    missing = run("--model", model_folder, "--texts", str(tmp_path / "none.jsonl"))
    assert missing[0] == 2 and "none.jsonl: cannot be read" in missing[2]
    short = tmp_path / "short.txt"
    short.write_text("ab")
    code, _, errors = run("--model", model_folder, "--texts", str(short))
    assert code == 2 and "texts of at least 8 tokens" in errors.replace("\n", " ")
