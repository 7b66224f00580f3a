from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freedraft.integrations.budget import (
    READY_MADE,
    Calibration,
    CalibrationError,
    StepCosts,
    load_calibration,
    read_calibration,
)
from freedraft.integrations.budget.calibration_file import DATA_SHEET, MEASURED
from freedraft.integrations.budget.data_sheets import (
    DEVICES,
    LLAMA_8B,
    ModelShape,
    data_sheet_calibration,
    experts_read,
    roofline_seconds,
)


def small() -> Calibration:
    """Return t = context + 10 batch + nodes, in seconds."""
    contexts, batches, nodes = (100, 200), (1, 4), (0, 2, 8)
    seconds = np.add.outer(
        np.add.outer(np.array(contexts, np.float64), 10 * np.array(batches)), np.array(nodes)
    )
    draft = {"ngram": np.array([0.1, 0.4])}
    return Calibration(
        "m", "transformers", "a CPU", MEASURED, contexts, batches, nodes, seconds, draft, {"n": 3}
    )


def test_times_between_the_entries() -> None:
    calibration = small()
    assert calibration.step_seconds(1, 0, 100) == 110
    assert calibration.step_seconds(2.5, [1, 5], 150).tolist() == [176, 180]
    assert calibration.step_seconds(1, 0) == 210  # the middle context, here the second
    assert calibration.step_seconds(1, [8, 10], 5).tolist() == [118, 120]  # the slope goes on
    assert calibration.pooled_seconds(4, 8, 100).tolist() == [140 + n / 4 for n in range(9)]


def test_a_batch_beyond_the_largest_counts_by_its_tokens() -> None:
    calibration = small()
    # 8 requests of 2 tokens are as many as 4 requests of 4
    assert calibration.step_seconds(8, 1, 100) == calibration.step_seconds(4, 3, 100)


def test_draft_times() -> None:
    assert small().draft_time("ngram", 2) == pytest.approx(0.2)
    assert small().draft_time("suffix", 2) == 0.0


def test_the_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    small().save(path)
    assert read_calibration(path).to_dict() == small().to_dict()
    assert load_calibration(path).to_dict() == small().to_dict()
    assert load_calibration(str(path)).to_dict() == small().to_dict()
    assert load_calibration(calibration := small()) is calibration


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "of format 'freedraft-calibration'"),
        ({"version": 2}, "expected version 1, got 2"),
        ({"seconds": "fast"}, "numbers and lists"),
        ({"seconds": [[[1.0]]]}, r"expected seconds of shape \(2, 2, 3\), got \(1, 1, 1\)"),
        ({"nodes": [1, 2, 8]}, "expected nodes to begin with 0"),
        ({"batches": [4, 1]}, "expected increasing batches"),
        ({"contexts": []}, "expected increasing contexts"),
        ({"source": "a friend"}, "expected a source among"),
        ({"draft_seconds": {"ngram": [1.0]}}, "expected 2 draft_seconds of ngram"),
        ({"draft_seconds": [1.0]}, "numbers and lists"),
    ],
)
def test_a_file_that_is_not_sound_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(small().to_dict() | change))
    with pytest.raises(CalibrationError, match=message) as caught:
        read_calibration(path)
    assert str(path) in str(caught.value)


def test_a_missing_field_broken_json_and_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    content = small().to_dict()
    del content["batches"]
    path.write_text(json.dumps(content))
    with pytest.raises(CalibrationError, match="expected the field 'batches'"):
        read_calibration(path)
    path.write_text('{"format": ')
    with pytest.raises(CalibrationError, match="expected JSON"):
        read_calibration(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CalibrationError, match="expected JSON"):
        read_calibration(path)
    with pytest.raises(CalibrationError, match="one of h200, h100, a100, l4, got"):
        load_calibration(tmp_path / "none.json")


def test_falling_and_impossible_times_are_refused() -> None:
    for seconds in ([[[2.0, 1.0]]], [[[0.0, 1.0]]], [[[1.0, np.inf]]]):
        with pytest.raises(CalibrationError, match="expected seconds"):
            Calibration("m", "e", "d", MEASURED, (1,), (1,), (0, 1), np.array(seconds))


@pytest.mark.parametrize("name", READY_MADE)
def test_ready_made_curves_are_labelled_and_make_sense(name: str) -> None:
    calibration = load_calibration(name)
    assert calibration.source == DATA_SHEET
    plain = float(calibration.step_seconds(1, 0, 512))
    device = DEVICES[name]
    weights = LLAMA_8B.num_params * 2 / device.bytes_per_second
    assert weights < plain < 1.5 * weights
    # One request reads so much for so little that a few more tokens are free; many do not.
    assert calibration.step_seconds(1, 15, 512) == pytest.approx(plain)
    assert calibration.step_seconds(256, 15, 512) > 4 * calibration.step_seconds(256, 0, 512)


def test_the_roofline_by_hand() -> None:
    model = ModelShape(
        "toy", num_params=1e9, num_layers=10, num_heads=8, num_kv_heads=2, head_dim=50
    )
    device = DEVICES["l4"]
    assert model.kv_bytes_per_token == 2 * 10 * 2 * 50 * 2
    options = {"bandwidth_efficiency": 1.0, "compute_efficiency": 1.0}
    read = (2e9 + 3 * 100 * 4000) / 0.3e12
    assert roofline_seconds(device, model, 3, 1, 100, **options) == pytest.approx(read)
    computed = 3 * 1001 * (2e9 + 4 * 10 * 8 * 50 * 100) / 121e12
    assert roofline_seconds(device, model, 3, 1000, 100, **options) == pytest.approx(computed)
    with pytest.raises(ValueError, match="expected a device among h200, h100, a100, l4"):
        data_sheet_calibration("abacus")


def test_experts_are_read_as_tokens_choose_them() -> None:
    assert experts_read(8, 2, 1) == pytest.approx(2)
    assert experts_read(8, 2, 2) == pytest.approx(2 + 2 * 6 / 8)
    assert experts_read(8, 2, 1000) == pytest.approx(8)
    assert experts_read(1, 1, [1, 5]).tolist() == [1, 1]
    mixture = ModelShape("moe", 10e9, 10, 8, 2, 50, 2.0, 8e9, 8, 2)
    assert mixture.params_read(1) == pytest.approx(4e9)
    assert mixture.params_computed == pytest.approx(4e9)
    assert mixture.params_read(1000) == pytest.approx(10e9)
    with pytest.raises(ValueError, match=r"expected num_chosen in 1\.\.8, got 9"):
        experts_read(8, 9, 1)


def test_costs_begin_with_the_calibration() -> None:
    costs = StepCosts(small())
    assert costs.relative(1, [1, 2, 9]).tolist() == pytest.approx([1, 211 / 210, 218 / 210])
    assert float(costs.relative(4, 9)) == pytest.approx(248 / 240)
