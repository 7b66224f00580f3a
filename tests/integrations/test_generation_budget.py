"""The budget inside generate: where drafts do not pay nothing is verified, and back again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import tiny_llama

import freedraft
from freedraft import GenerationResult
from freedraft.integrations.budget import Calibration, CalibrationError
from freedraft.integrations.budget.calibration_file import MEASURED

MODEL = tiny_llama()
PROMPT = torch.tensor([[5, 9, 7, 3] * 8])


def constant_times(seconds_a_node: float) -> Calibration:
    nodes = (0, 1, 31)
    seconds = 0.001 + seconds_a_node * np.array(nodes)
    return Calibration("m", "e", "d", MEASURED, (1,), (1,), nodes, seconds.reshape(1, 1, 3))


def run(**options: object) -> GenerationResult:
    result = freedraft.generate(  # type: ignore[call-overload]
        MODEL,
        PROMPT,
        drafter="ngram",
        max_new_tokens=40,
        do_sample=False,
        return_dict=True,
        **options,
    )
    assert isinstance(result, GenerationResult)
    return result


def test_a_calibration_decides_the_first_steps_and_never_the_text(tmp_path: Path) -> None:
    free, dear = constant_times(0.0), constant_times(0.1)
    dear.save(tmp_path / "dear.json")
    plain = run(cost_gate=False)
    generous = run(calibration=free)
    frugal = run(calibration=tmp_path / "dear.json")
    assert generous.token_ids == frugal.token_ids == plain.token_ids
    assert generous.statistics.drafted > 0
    assert frugal.statistics.drafted == 0
    assert run(calibration="h100").token_ids == plain.token_ids


def test_a_calibration_that_is_none_is_named() -> None:
    with pytest.raises(CalibrationError, match="expected a calibration file or one of h200"):
        run(calibration="nowhere.json")
