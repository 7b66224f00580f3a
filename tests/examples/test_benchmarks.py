"""What the benchmarks import exists: they are run by hand, so that nothing else would tell."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each ``from module import name``, anywhere in a script."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module, alias.name


def defined_names(path: Path) -> set[str]:
    """Return the names that a script has at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
    return names


def missing_names(tree: ast.Module) -> list[str]:
    """Return what is imported from freedraft or from another script and is not there."""
    missing = []
    for module, name in imported_names(tree):
        path = FOLDER / f"{module}.py"
        if path.exists():
            found = name in defined_names(path)
        elif module.split(".")[0] == "freedraft":
            found = hasattr(importlib.import_module(module), name) or _is_module(module, name)
        else:
            continue
        if not found:
            missing.append(f"{module}.{name}")
    return missing


def _is_module(package: str, name: str) -> bool:
    try:
        importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{name}":
            raise
        return False
    return True


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    try:
        missing = missing_names(tree)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("freedraft"):
            raise
        pytest.skip(f"{error.name} is not installed")
    assert missing == []


def test_a_name_that_is_gone_is_found() -> None:
    tree = ast.parse(
        "from freedraft.drafters.suffix import SuffixConfig, Gone\n"
        "from freedraft.drafters import suffix, nowhere\n"
        "from pool_upkeep import Clock, Lost\n"
    )
    assert missing_names(tree) == [
        "freedraft.drafters.suffix.Gone",
        "freedraft.drafters.nowhere",
        "pool_upkeep.Lost",
    ]
