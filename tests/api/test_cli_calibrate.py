from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_files import write_model
from typer.testing import CliRunner

from freedraft.cli import app
from freedraft.integrations.budget import read_calibration

SHORT = ["--contexts", "8,16", "--batches", "1,2", "--nodes", "0,1,3", "--rounds", "2"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


def test_a_model_is_calibrated_into_a_file(model_folder: str, tmp_path: Path) -> None:
    out = tmp_path / "times.json"
    options = ["--model", model_folder, *SHORT, "--drafter", "ngram", "--out", str(out)]
    result = CliRunner().invoke(app, ["calibrate", *options])
    assert result.exit_code == 0, result.output
    calibration = read_calibration(out)
    assert (calibration.contexts, calibration.batches, calibration.nodes) == (
        (8, 16),
        (1, 2),
        (0, 1, 3),
    )
    assert calibration.engine == "transformers"
    assert set(calibration.draft_seconds) == {"ngram"}
    assert calibration.about["fast_path"] is False
    assert "drafting with ngram" in result.output


def test_the_file_can_be_printed(model_folder: str, tmp_path: Path) -> None:
    options = ["--model", model_folder, *SHORT, "--drafter", "ngram", "--json"]
    result = CliRunner().invoke(app, ["calibrate", *options])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["format"] == "freedraft-calibration"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "abacus"], "expected --engine to be one of"),
        (["--batches", "1,x"], "whole numbers"),
        (["--nodes", "3,1"], "increasing nodes"),
        (["--engine", "llama-cpp", "--model", "none.gguf"], "expected --model to be a GGUF file"),
        (["--engine", "vllm"], "expected --model with a folder or hub id"),
    ],
)
def test_mistakes_are_named(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["calibrate", *options])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
