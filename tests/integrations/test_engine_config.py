"""Settings from JSON: all of them read, none ignored, mistakes named."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.suffix import SuffixDrafter
from freedraft.integrations.engine_config import (
    EngineConfig,
    create_engine_budget,
    create_engine_drafter,
)

ALL = {
    "drafter": "blend",
    "pools": ["a.pool"],
    "memory_mib": 64,
    "warm_file": "warm.snapshot",
    "save_seconds": 60,
    "sharing": "none",
    "budget": "full",
    "schedule": {"1": 16, "8": 4},
    "calibration": "times.json",
    "placeholder_ids": [7],
    "mend": False,
}


def test_every_setting_is_read_and_written_back() -> None:
    assert set(ALL) == {field.name for field in fields(EngineConfig)}
    config = EngineConfig.from_mapping(ALL)
    assert config.pools == ("a.pool",)
    assert config.schedule == {1: 16, 8: 4}
    assert config.placeholder_ids == (7,)
    again = EngineConfig.from_mapping(json.loads(json.dumps(config.to_mapping())))
    assert again == config
    assert EngineConfig().to_mapping() == {}


def test_settings_come_from_text_files_and_objects(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"drafter": "ngram"}')
    assert EngineConfig.load(path).drafter == "ngram"
    assert EngineConfig.load(' {"drafter": "suffix"}').drafter == "suffix"
    assert EngineConfig.load({"sharing": "none"}).sharing == "none"
    with pytest.raises(FileNotFoundError):
        EngineConfig.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"draftr": "ngram"}, r"expected settings among drafter, .*got 'draftr'"),
        ({"drafter": "oracle"}, r"expected a drafter among .*got 'oracle'"),
        ({"drafter": 3}, r"expected drafter to be a string, got 3"),
        ({"memory_mib": True}, r"expected memory_mib to be an integer, got True"),
        ({"memory_mib": 0}, r"expected memory_mib within 1..8191, got 0"),
        ({"mend": 1}, r"expected mend to be true or false, got 1"),
        ({"sharing": "all"}, r"expected sharing among salt, none, got 'all'"),
        ({"budget": "none"}, r"expected budget among measured, full, got 'none'"),
        ({"save_seconds": 0}, r"expected save_seconds > 0, got 0"),
        ({"schedule": {"2": 4}}, r"expected a schedule that maps 1"),
        ({"schedule": {"many": 4}}, r"expected a schedule of integers"),
        ({"pools": ["a.pool"], "drafter": "ngram"}, r"expected drafter 'blend' beside pools"),
        ({"warm_file": "w", "drafter": "ngram"}, r"expected drafter 'suffix' or 'blend' beside"),
        ({"pools": [1]}, r"expected pools to hold str values, got 1"),
        ({"placeholder_ids": ["x"]}, r"expected placeholder_ids to hold int values, got 'x'"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig.from_mapping(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", r"expected JSON in .*settings"), ("[]", r"expected a JSON object in .*got list")],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        EngineConfig.load(path)


def test_memory_bounds_the_suffix_drafter() -> None:
    drafter = create_engine_drafter(EngineConfig(memory_mib=8))
    assert isinstance(drafter, BlendDrafter)
    (suffix,) = [source for source in drafter.sources if isinstance(source, SuffixDrafter)]
    assert suffix.config.max_bytes == 8 << 20
    assert isinstance(create_engine_drafter(EngineConfig(drafter="suffix")), SuffixDrafter)
    assert create_engine_drafter(EngineConfig(drafter="ngram")).name == "ngram"


def test_budgets_are_those_asked_for() -> None:
    assert create_engine_budget(EngineConfig(budget="full")) is None
    scheduled = create_engine_budget(EngineConfig(budget="full", schedule={1: 3, 4: 0}))
    assert scheduled is not None
    assert scheduled.allowances(["a"], 8) == [3]
    measured = create_engine_budget(EngineConfig())
    assert measured is not None  # drafts are tried before anything is measured
    assert float(measured.costs.relative(1, 17)) < 1.3
    on_cpu = create_engine_budget(EngineConfig(), on_cpu=True)
    assert on_cpu is not None
    assert float(on_cpu.costs.relative(1, 17)) > 1.3, "further tokens are dearer there"


def test_nothing_is_kept_where_nothing_is_shared() -> None:
    drafter = create_engine_drafter(EngineConfig(drafter="suffix", sharing="none"))
    assert isinstance(drafter, SuffixDrafter)
    assert not drafter.config.share_responses
