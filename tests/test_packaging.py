"""What installs, under which names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import freedraft

ROOT = Path(__file__).parent.parent


def python(code: str, cwd: Path) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_every_folder_with_an_init_is_listed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapped = {folder: package for package, folder in settings["package-dir"].items()}
    found = {
        str(init.parent.relative_to(ROOT))
        for top in mapped
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert found == set(mapped)
    assert sorted(mapped.values()) == sorted(settings["packages"])


@pytest.mark.parametrize("inside", [True, False])
def test_importing_is_cheap_and_works_from_anywhere(inside: bool, tmp_path: Path) -> None:
    heavy = python(
        "import sys, freedraft, freedraft.cli\n"
        "print([m for m in ('torch', 'transformers', 'numba', 'vllm') if m in sys.modules])",
        ROOT if inside else tmp_path,
    )
    assert heavy == "[]"


def test_all_public_names_load() -> None:
    for name in freedraft.__all__:
        assert getattr(freedraft, name) is not None
    assert dir(freedraft) == sorted(freedraft.__all__)
    with pytest.raises(AttributeError, match="no attribute 'speculate'"):
        _ = freedraft.speculate  # type: ignore[attr-defined]


def test_nothing_else_lands_beside_the_package(tmp_path: Path) -> None:
    for name in ("drafters", "verifier", "integrations", "workbench", "api"):
        run = subprocess.run(
            [sys.executable, "-c", f"import {name}"], cwd=tmp_path, capture_output=True, check=False
        )
        assert run.returncode != 0, name


def test_drafters_know_no_engine() -> None:
    loaded = python(
        "import sys\n"
        "import freedraft\n"
        "for name in freedraft.DRAFTER_NAMES:\n"
        "    freedraft.create_drafter(name)\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])",
        ROOT,
    )
    assert loaded == "[]"
