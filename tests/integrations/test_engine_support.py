"""What adapters declare is so: pages, extras, versions, and the tables made of it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

from freedraft.integrations.engine_support import (
    CHAIN,
    CONTRACT,
    RUN,
    TREE,
    EngineSupport,
    markdown_table,
    supported_engines,
)

ROOT = Path(__file__).parents[2]


def load_script() -> ModuleType:
    path = ROOT / "docs" / "engine_table.py"
    spec = importlib.util.spec_from_file_location("engine_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_have_the_adapters_own_words() -> None:
    script = load_script()
    for name, docs in script.PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text == script.with_table(text, docs), f"run docs/engine_table.py: {name}"
        assert markdown_table(supported_engines(), docs) in text


def test_a_page_that_drifts_is_found() -> None:
    script = load_script()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    drifted = text.replace("| tree |", "| chain |", 1)
    assert drifted != text and script.with_table(drifted, "docs/") == text
    with pytest.raises(ValueError, match="expected the marks"):
        script.with_table("a page without marks", "")


def test_the_five_engines_are_declared() -> None:
    engines = {engine.name: engine for engine in supported_engines()}
    assert list(engines) == ["transformers", "vLLM", "SGLang", "TensorRT-LLM", "llama-cpp-python"]
    assert [engine.shape for engine in engines.values()] == [TREE, CHAIN, TREE, CHAIN, CHAIN]
    for engine in engines.values():
        assert (ROOT / "docs" / engine.page).is_file()
        assert engine.name in (ROOT / "docs" / engine.page).read_text(encoding="utf-8")


def test_what_is_said_to_run_has_a_job() -> None:
    """Each engine that cannot be in the main environment has a step of its own."""
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    scripts = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*_check.sh"))
    targets = {"vLLM": "test-vllm", "SGLang": "test-sglang", "llama-cpp-python": "test-llama-cpp"}
    engines = {engine.name: engine for engine in supported_engines()}
    for name, target in targets.items():
        assert f"make {target}" in steps and f"\n{target}:" in makefile
        assert engines[name].evidence == (CONTRACT if name == "SGLang" else RUN)
        assert f"=={engines[name].version}" in scripts


def test_entry_points_are_installed() -> None:
    for engine in supported_engines():
        if engine.plugin_group:
            (found,) = entry_points(group=engine.plugin_group, name="freedraft")
            module, _, function = found.value.partition(":")
            path = ROOT / "integrations" / f"{module.rpartition('.')[2]}.py"
            assert f"def {function}(" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"shape": "star"}, "expected shape"), ({"evidence": "hearsay"}, "expected evidence among")],
)
def test_words_with_a_meaning_are_checked(change: dict[str, str], message: str) -> None:
    engine: EngineSupport = supported_engines()[0]
    with pytest.raises(ValueError, match=message):
        replace(engine, **change)  # type: ignore[arg-type]


def test_declarations_import_no_engine() -> None:
    program = (
        "import sys\n"
        "from freedraft.integrations.engine_support import supported_engines\n"
        "supported_engines()\n"
        "print(sorted({'torch', 'transformers', 'numba'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
