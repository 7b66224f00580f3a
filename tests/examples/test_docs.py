"""What README and the pages say is so: snippets run, links lead somewhere, names exist."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from transformers import GenerationConfig

import freedraft
from freedraft.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_TOKENS = 6


@dataclass(frozen=True, slots=True)
class Snippet:
    """Python of a page, and the text block that follows it directly: its output."""

    code: str
    output: str | None


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    found = []
    for number, block in enumerate(blocks):
        if block[1] != "python":
            continue
        output = None
        if number + 1 < len(blocks) and blocks[number + 1][1] == "text":
            after = blocks[number + 1]
            output = None if text[block.end() : after.start()].strip() else after[2]
        found.append(Snippet(block[2], output))
    return found


def needs_model(page: Path) -> bool:
    names = {
        node.id
        for snippet in snippets(page)
        for node in ast.walk(ast.parse(snippet.code))
        if isinstance(node, ast.Name)
    }
    return "model" in names


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def options_of_commands() -> dict[str, set[str]]:
    """Return the long options of each command; a group's commands as "group command".

    A group that does something by itself counts as a command too.
    """
    found: dict[str, set[str]] = {}

    def visit(name: str, command: Any) -> None:
        for sub_name, sub in getattr(command, "commands", {}).items():
            visit(f"{name} {sub_name}".strip(), sub)
        if not hasattr(command, "commands") or (name and command.invoke_without_command):
            flags = [flag for p in command.params for flag in (*p.opts, *p.secondary_opts)]
            found[name] = {flag for flag in flags if flag.startswith("--")}

    visit("", typer.main.get_command(app))
    return found


def pages_with_snippets() -> list[Any]:
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.model] if needs_model(page) else [])
        for page in PAGES
        if snippets(page)
    ]


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every generation of a snippet end soon, through either door."""
    generate = freedraft.generate

    def short(*args: Any, **options: Any) -> Any:
        asked = options.get("max_new_tokens", MAX_TOKENS)
        return generate(*args, **options | {"max_new_tokens": min(asked, MAX_TOKENS)})

    monkeypatch.setattr(freedraft, "generate", short)


@pytest.mark.parametrize("page", pages_with_snippets())
def test_snippets_run_and_print_what_the_page_says(page: Path, few_tokens: None) -> None:
    names: dict[str, object] = {}
    for snippet in snippets(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet.code, str(page), "exec"), names)
        if snippet.output is not None:
            assert printed.getvalue() == snippet.output


def test_there_are_snippets_of_both_kinds() -> None:
    kinds = {needs_model(page) for page in PAGES if snippets(page)}
    assert kinds == {True, False}
    assert sum(s.output is not None for page in PAGES for s in snippets(page)) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles_and_imports_exist(page: Path) -> None:
    for snippet in snippets(page):
        for node in ast.walk(ast.parse(snippet.code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("freedraft"):
                module = importlib.import_module(node.module or "")
                for name in node.names:
                    assert hasattr(module, name.name), f"{page.name}: {name.name}"
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("freedraft.generate"):
                check_keywords({word.arg for word in node.keywords if word.arg})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_use_options_that_exist(path: Path) -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "freedraft.generate"
    ]
    assert calls
    for call in calls:
        check_keywords({word.arg for word in call.keywords if word.arg})


def check_keywords(given: set[str]) -> None:
    own = set(inspect.signature(freedraft.custom_generate).parameters)
    own |= set(inspect.signature(freedraft.generate).parameters)
    known = own | set(vars(GenerationConfig())) | {"attention_mask", "cache"}
    assert given <= known, given - known


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(kept.strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_dotted_names_exist(page: Path) -> None:
    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        if re.fullmatch(r"(?:[\w.]+/)+(?:[\w*]+\.\w+)?", code) and "NAME" not in code:
            folder = code.split("/")[0]
            if folder not in ("freedraft", "~"):
                assert list(ROOT.glob(code)), f"{page.name}: {code}"
        if dotted := re.match(r"freedraft((?:\.\w+)+)", code):
            check_dotted(dotted[1][1:].split("."), page)


def check_dotted(parts: list[str], page: Path) -> None:
    owner: Any = freedraft
    for depth, part in enumerate(parts):
        if not hasattr(owner, part):
            importlib.import_module(".".join(["freedraft", *parts[: depth + 1]]))
        assert hasattr(owner, part), f"{page.name}: freedraft.{'.'.join(parts)}"
        owner = getattr(owner, part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = options_of_commands()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
    for words in re.findall(r"(?<![\w/.-])freedraft ([a-z][^`|\n]*)[`|\n]", text):
        name = next((n for n in commands if f"{words} ".startswith(f"{n} ")), None)
        for option in re.findall(r"--[\w-]+", words if name else ""):
            assert option in commands[name or ""], f"{page.name}: {name} {option}"
    groups = {name.split()[0] for name in commands}
    for name in re.findall(r"`freedraft ([a-z][\w-]*)", text):
        assert name in groups, f"{page.name}: freedraft {name}"


def test_the_command_line_page_has_every_option_and_no_other() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## freedraft ([a-z -]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    commands = options_of_commands()
    assert set(sections) == set(commands)
    for name, section in sections.items():
        rows = re.findall(r"^\| (`--.*?) \|", section, re.MULTILINE)
        assert set(re.findall(r"--[\w-]+", " ".join(rows))) == commands[name] - {"--help"}, name


def test_the_page_on_generate_has_every_argument_and_its_default() -> None:
    text = (ROOT / "docs" / "generate.md").read_text(encoding="utf-8")
    section = text.partition("## Arguments")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|", section, re.MULTILINE))
    parameters = inspect.signature(freedraft.generate).parameters.values()
    wanted = {
        p.name: "" if p.default is p.empty else f"`{p.default!r}`"
        for p in parameters
        if p.kind is not p.VAR_KEYWORD
    }
    assert rows == wanted


def test_the_page_on_generate_has_every_statistic_and_field() -> None:
    text = (ROOT / "docs" / "generate.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)`", text))
    assert set(freedraft.GenerationStatistics().to_dict()) <= told
    assert set(freedraft.GenerationResult.__dataclass_fields__) <= told


def test_every_public_name_is_explained_somewhere() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in freedraft.__all__:
        assert name == "__version__" or name in text, name


def test_readme_claims_no_drafter_that_is_missing() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    states = dict(re.findall(r"^\| `(\w+)` \| .* \| ([\w ]+) \|$", text, re.MULTILINE))
    assert set(states.values()) <= {"here", "next", "not yet"}
    assert {*freedraft.DRAFTER_NAMES} <= set(states)
    for name, state in states.items():
        if state == "here":
            importlib.import_module(f"freedraft.drafters.{name}")


def test_readme_begins_with_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = next(block for block in FENCE.finditer(text))
    commands = [line.split("#")[0].strip() for line in first[2].splitlines()]
    assert commands == ["make demo", "make test"]
