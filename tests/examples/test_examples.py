"""Each example runs as it stands, and its drafter and its claims hold."""

from __future__ import annotations

import functools
import importlib.util
import random
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from tiny_models import random_prompt, tiny_llama

import freedraft

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
FEW = ["--max-new-tokens", "6"]


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def default_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from freedraft.integrations.default_model import load_default_model

    return load_default_model()


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freedraft, "load_default_model", default_model)  # loaded once for all
    load_example(name).main([*arguments, *FEW])


def test_all_examples_are_here() -> None:
    assert EXAMPLES == ["chat", "edit_file", "own_drafter", "rag_answer", "sampling_with_seed"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load_example(name).main(["--help"])
    assert end.value.code == 0
    assert "--max-new-tokens" in capsys.readouterr().out


@pytest.mark.model
def test_edit_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("edit_file", [], monkeypatch)
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "6 tokens in" in captured.err and "a second" in captured.err
    file = tmp_path / "notes.txt"
    file.write_text("one line\n", encoding="utf-8")
    run("edit_file", [str(file), "--task", "Repeat the file."], monkeypatch)
    assert "drafted tokens accepted" in capsys.readouterr().err


@pytest.mark.model
def test_rag_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("rag_answer", [], monkeypatch)
    out = capsys.readouterr().out
    assert out.count("Q: ") == out.count("A: ") == 2
    assert "12 tokens in" in out  # two rows of six
    run("rag_answer", ["--question", "Who may print?"], monkeypatch)
    assert capsys.readouterr().out.count("Q: ") == 1


@pytest.mark.model
def test_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("chat", ["--say", "Name a river.", "--say", "Again."], monkeypatch)
    assert capsys.readouterr().out.count("a step") == 2


def test_chat_reads_what_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["hello ", "more", "", "never read"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    assert list(load_example("chat").turns(None)) == ["hello", "more"]


@pytest.mark.model
def test_sampling_with_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("sampling_with_seed", ["--seed", "1"], monkeypatch)
    out = capsys.readouterr().out
    assert out.count("same tokens: yes") == 3  # none, ngram, suffix


@pytest.mark.model
def test_own_drafter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("own_drafter", [], monkeypatch)
    plain, drafted = capsys.readouterr().out.split("--- ")[1:]
    assert plain.startswith("no drafter") and drafted.startswith("last-place")
    assert plain.splitlines()[1:-1] == drafted.splitlines()[1:-1]  # the text between


def test_own_drafter_keeps_the_contract() -> None:
    drafter = load_example("own_drafter").LastPlaceDrafter()
    assert isinstance(drafter, freedraft.Drafter)
    drafter.start("a", [1, 2, 3, 4, 1, 2])
    assert drafter.propose(["a"], 8, 8)[0].token_ids.tolist() == [3, 4, 1, 2]
    assert drafter.propose(["a"], 8, 3)[0].token_ids.tolist() == [3, 4, 1]
    drafter.extend("a", [3, 9, 1, 2])
    assert drafter.propose(["a"], 2, 8)[0].token_ids.tolist() == [3, 9]  # the later place
    drafter.truncate("a", 6)
    assert drafter.propose(["a"], 2, 8)[0].token_ids.tolist() == [3, 4]
    drafter.start("short", [7])
    assert [tree.num_nodes for tree in drafter.propose(["short", "unknown"], 8, 8)] == [0, 0]
    for request in ("a", "a", "unknown"):
        drafter.stop(request)
        drafter.extend(request, [1])
        drafter.truncate(request, 1)
    assert drafter.propose(["a"], 8, 8)[0].num_nodes == 0


def test_own_drafter_changes_no_text() -> None:
    model = cast(Any, tiny_llama())  # pyright misreads the type of its generate
    drafter = load_example("own_drafter").LastPlaceDrafter()
    rng = random.Random(0)
    drafted = 0
    for _ in range(10):
        prompt = torch.tensor([random_prompt(rng, 16)])
        wanted = model.generate(prompt, max_new_tokens=16, do_sample=False)
        result = freedraft.generate(
            model, prompt, drafter=drafter, max_new_tokens=16, cost_gate=False, return_dict=True
        )
        assert isinstance(result, freedraft.GenerationResult)
        assert torch.equal(result.sequences, wanted)
        assert result.statistics.switched_off == 0
        drafted += result.statistics.drafted
    assert drafted > 0
