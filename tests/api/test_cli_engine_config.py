"""``freedraft vllm-config`` prints flags that a shell and vLLM take as they are."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from freedraft.cli import app
from freedraft.integrations.engine_config import EngineConfig

runner = CliRunner()


def flags(*arguments: str) -> dict[str, object]:
    result = runner.invoke(app, ["vllm-config", *arguments])
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout)
    return {name: json.loads(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def test_the_shortest_call_needs_one_flag() -> None:
    assert flags() == {
        "--speculative-config": {
            "model": "freedraft.FreedraftProposer",
            "num_speculative_tokens": 16,
        }
    }


def test_options_become_settings(tmp_path: Path) -> None:
    base = tmp_path / "settings.json"
    base.write_text('{"sharing": "none", "memory_mib": 64}')
    printed = flags(
        "-k", "32", "--settings", str(base), "--memory-mib", "128", "--schedule", "1:16,8:4"
    )
    additional = printed["--additional-config"]
    assert additional == {
        "freedraft": {"memory_mib": 128, "sharing": "none", "schedule": {"1": 16, "8": 4}}
    }
    assert EngineConfig.from_mapping(additional["freedraft"]).schedule == {1: 16, 8: 4}


def test_json_is_for_the_python_class() -> None:
    result = runner.invoke(app, ["vllm-config", "--drafter", "suffix", "--json"])
    assert json.loads(result.stdout)["additional_config"] == {"freedraft": {"drafter": "suffix"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter", "oracle"], "expected a drafter among"),
        (["--schedule", "1-16"], "expected a schedule like"),
        (["--schedule", "2:16"], "expected a schedule that maps 1"),
        (["--pool", "missing.pool"], "expected a file"),
        (["--settings", "missing.json"], "missing.json"),
        (["-k", "0"], "num-speculative-tokens"),
    ],
)
def test_mistakes_end_with_code_2(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["vllm-config", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_printed_name_is_the_proposer() -> None:
    import freedraft
    from freedraft.integrations.vllm_adapter import FreedraftProposer

    assert freedraft.FreedraftProposer is FreedraftProposer
