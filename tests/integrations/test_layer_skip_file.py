"""Skip sets as files: kept for one model on one machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from model_drafter_helpers import deep_llama

import freedraft
from freedraft.drafters.layer_skip import SkipSet
from freedraft.drafters.layer_skip.objective import SubLayerCosts
from freedraft.drafters.model_drafting import ModelDraftConfig
from freedraft.integrations.layer_skip_file import (
    SkipRecord,
    load_skip_record,
    machine_name,
    model_fingerprint,
    save_skip_record,
    skip_record_path,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def record_for(model: object, speedup: float = 1.2) -> SkipRecord:
    return SkipRecord(
        model_fingerprint(model),  # type: ignore[arg-type]
        machine_name(model),  # type: ignore[arg-type]
        SkipSet.of([1, 3], [2]),
        SubLayerCosts(0.05, 0.1, 5),
        0.8,
        speedup,
        3,
        {"date": "2026-01-01"},
    )


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = record_for(deep_llama())
    path = tmp_path / "new" / "record.json"
    save_skip_record(record, path)
    assert load_skip_record(path) == record
    assert record.pays and not record_for(deep_llama(), 0.9).pays
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]


def test_the_cached_record_is_found_by_model_and_machine() -> None:
    model = deep_llama()
    fresh = freedraft.layer_skip_drafter(model)
    assert fresh.config.skip is None and fresh.config.refine_every == 0
    save_skip_record(record_for(model), skip_record_path(model))
    drafter = freedraft.layer_skip_drafter(model)
    assert drafter.config.skip == SkipSet.of([1, 3], [2])
    assert drafter.config.draft.max_depth == 3 and drafter.config.refine_every > 0
    own = freedraft.layer_skip_drafter(model, draft=ModelDraftConfig(max_depth=9))
    assert own.config.draft.max_depth == 9
    assert freedraft.layer_skip_drafter(deep_llama(seed=1)).config.skip is None
    wanted = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=40)
    for chosen in (drafter, "layer_skip"):
        result = freedraft.generate(
            model,
            [1, 2, 3],
            drafter=chosen,
            max_new_tokens=40,
            cost_gate=False,
            return_dict=True,
        )
        assert isinstance(result, freedraft.GenerationResult)
        assert torch.equal(result.sequences, wanted)
        assert result.statistics.drafted > 0 and result.statistics.switched_off == 0


def test_a_record_without_gain_keeps_the_gate_shut() -> None:
    model = deep_llama()
    save_skip_record(record_for(model, speedup=0.8), skip_record_path(model))
    result = freedraft.generate(
        model, [1, 2, 3], drafter="layer_skip", max_new_tokens=60, return_dict=True
    )
    assert isinstance(result, freedraft.GenerationResult)
    assert result.statistics.drafted == 0 and result.statistics.switched_off == 0


def test_a_record_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    save_skip_record(record_for(deep_llama()), path)
    with pytest.raises(ValueError, match="the record of this model"):
        freedraft.layer_skip_drafter(deep_llama(num_layers=4), path)
    with pytest.raises(OSError, match="missing"):
        freedraft.layer_skip_drafter(deep_llama(), tmp_path / "missing.json")


@pytest.mark.parametrize("fault", ["", "{}", "[]", "format", "version", "skip", "layer"])
def test_a_broken_record_is_refused_with_its_name(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "record.json"
    save_skip_record(record_for(deep_llama()), path)
    content = json.loads(path.read_text())
    if fault == "layer":
        content["skip"]["mlp"] = [7]
    elif fault in content:
        content[fault] = "other"
    path.write_text(json.dumps(content) if fault.isalpha() else fault)
    with pytest.raises(ValueError, match=r"layer-skip record in .*record\.json"):
        load_skip_record(path)


def test_models_with_the_same_sizes_are_told_apart_by_their_weights() -> None:
    one, other = deep_llama(), deep_llama()
    assert model_fingerprint(one) == model_fingerprint(other)
    with torch.no_grad():
        other.model.norm.weight.mul_(1.01)
    assert model_fingerprint(one) != model_fingerprint(other)
