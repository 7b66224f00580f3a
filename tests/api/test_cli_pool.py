"""``freedraft pool``: build, info, verify."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_files import VOCABULARY, byte_tokenizer
from typer.testing import CliRunner

from freedraft import cli


def run(*args: str) -> tuple[int, str, str]:
    """Return exit code, output and messages, without colours."""
    result = CliRunner().invoke(cli.app, ("pool", *args), env={"COLUMNS": "200"})
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    out, err = (re.sub(r"\x1b\[[\d;?]*\w", "", part) for part in (result.stdout, result.stderr))
    return result.exit_code, out, err


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "a.txt").write_text("the first document")
    (folder / "b.txt").write_text("and the second one")
    (folder / "image").write_bytes(b"\0\1")
    (folder / "x.log").write_text("not wanted")
    (folder / ".gitignore").write_text("*.log\n.gitignore\n")
    return folder


@pytest.fixture
def pool(documents: Path, tokenizer: str) -> Path:
    path = documents.parent / "docs [1].pool"
    code, _, err = run("build", str(documents), "--tokenizer", tokenizer, "-o", str(path))
    assert code == 0, err
    return path


def test_build_reports(documents: Path, tokenizer: str, tmp_path: Path) -> None:
    path = tmp_path / "docs.pool"
    args = ("build", str(documents), "--tokenizer", tokenizer, "-o", str(path))
    code, out, err = run(*args)
    assert code == 0, err
    rows = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in out.strip().split("\n"))
    assert rows["documents"] == "2"
    assert rows["left out"] == "1 binary"
    assert rows["tokens"] == "36"
    code, out, _ = run(*args, "--json")
    assert code == 0
    assert json.loads(out) == {
        "path": str(path),
        "num_documents": 2,
        "num_tokens": 36,
        "num_text_bytes": 36,
        "num_file_bytes": path.stat().st_size,
        "skipped": {"binary": 1},
    }


def test_info(pool: Path, tokenizer: str) -> None:
    code, out, err = run("info", str(pool), "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["fingerprint"].startswith(f"{len(VOCABULARY)}:")
    assert (facts["num_documents"], facts["num_tokens"], facts["num_places"]) == (2, 36, 34)
    assert facts["tokenizer"] == tokenizer
    code, out, _ = run("info", str(pool))
    assert code == 0
    assert str(pool) in out  # brackets are no markup
    assert facts["fingerprint"] in out


def test_verify(pool: Path, tokenizer: str, tmp_path: Path) -> None:
    assert run("verify", str(pool))[0] == 0
    code, out, _ = run("verify", str(pool), "--tokenizer", tokenizer)
    assert (code, out.split()[0]) == (0, "good:")
    other = tmp_path / "other"
    bigger = byte_tokenizer()
    bigger.add_tokens(["<more>"])
    bigger.save_pretrained(other)
    code, out, err = run("verify", str(pool), "--tokenizer", str(other))
    assert (code, out) == (1, "")
    assert pool.name in err.replace("\n", "")
    assert f"{len(VOCABULARY) + 1}:" in err


def test_verify_names_each_bad_file(pool: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pool"
    cut.write_bytes(pool.read_bytes()[:-1])
    foreign = tmp_path / "foreign.pool"
    foreign.write_text("something else")
    code, out, err = run("verify", str(cut), str(pool), str(tmp_path / "none.pool"), str(foreign))
    assert code == 1
    assert out.startswith("good: ") and out.count("good") == 1
    for name in ("cut.pool", "none.pool", "foreign.pool"):
        assert name in err.replace("\n", "")
    assert run("info", str(cut))[0] == 1
    assert run("info", str(tmp_path / "none.pool"))[0] == 2


def test_mistakes_are_explained(documents: Path, tokenizer: str, tmp_path: Path) -> None:
    out = str(tmp_path / "docs.pool")
    code, _, err = run("build", str(tmp_path / "none"), "--tokenizer", tokenizer, "-o", out)
    assert code == 2
    assert "expected a file or a folder" in err
    code, _, err = run("build", str(documents), "--tokenizer", str(documents), "-o", out)
    assert code == 2
    assert "expected a tokenizer's id or folder" in err
    code, _, err = run(
        "build", str(documents), "--tokenizer", tokenizer, "-o", str(tmp_path / "none/docs.pool")
    )
    assert code == 2
    assert "folder that exists" in err
    assert run("build", str(documents), "--tokenizer", tokenizer)[0] == 2  # no --out
    assert not Path(out).exists()
