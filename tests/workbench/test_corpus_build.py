"""Building pools: which files are taken, what goes into the pool, what a kill leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from freedraft.drafters.corpus import CorpusConfig, CorpusDrafter
from freedraft.drafters.corpus.pool_file import verify_pool
from freedraft.workbench.corpus_build import (
    CorpusBuildError,
    PoolTokenizer,
    Stage,
    build_pool,
)
from freedraft.workbench.text_files import UnreadableTextError, list_files, read_text

TOKENIZER = PoolTokenizer(
    "bytes",
    {chr(i): i for i in range(256)},
    lambda texts: [list(text.encode()) for text in texts],
)

REPOSITORY = {
    ".gitignore": "*.log\n!keep.log\nbuild/\n/top.txt\nsub/**/deep.txt\n# text\n\\#odd\ntrail \n",
    "a.py": "a = 1\n",
    "x.log": "x\n",
    "keep.log": "keep\n",
    "top.txt": "top\n",
    "#odd": "odd\n",
    "trail": "trail\n",
    "build/out.txt": "out\n",
    "sub/top.txt": "kept below the top\n",
    "sub/.gitignore": "!x.log\nmore/\n!build/\nlocal\n",
    "sub/x.log": "taken back\n",
    "sub/build/y.txt": "taken back too\n",
    "sub/more/z.txt": "z\n",
    "sub/one/two/deep.txt": "deep\n",
    "sub/one/local": "local\n",
    "sub/one/b.txt": "b\n",
    "local": "not below sub\n",
    "späce name.txt": "name\n",
}


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def names(folder: Path, *paths: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in list_files(paths or (folder,))}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write_files(tmp_path / "repository", REPOSITORY)
    write_files(folder, {".git/HEAD": "ref: refs/heads/main\n", ".git/info/exclude": "excluded\n"})
    return write_files(folder, {"excluded": "no\n", "sub/excluded": "no\n"})


def test_ignore_files_are_honoured(repository: Path) -> None:
    assert names(repository) == {
        ".gitignore",
        "a.py",
        "keep.log",
        "local",
        "späce name.txt",
        "sub/.gitignore",
        "sub/build/y.txt",
        "sub/one/b.txt",
        "sub/top.txt",
        "sub/x.log",
    }


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_lists_the_same_files(tmp_path: Path) -> None:
    folder = write_files(tmp_path, REPOSITORY)
    git = ["git", "-c", "core.excludesFile=", "-C", str(folder)]
    subprocess.run([*git, "init", "--quiet"], check=True, capture_output=True)
    listed = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard", "-z"], check=True, capture_output=True
    )
    assert names(folder) == {name.decode() for name in listed.stdout.split(b"\0") if name}


def test_rules_of_the_folders_above_hold(repository: Path) -> None:
    below = names(repository, repository / "sub")
    assert below == {name for name in names(repository) if name.startswith("sub/")}
    # what is named itself is taken, whatever the rules say
    assert names(repository, repository / "build") == {"build/out.txt"}
    assert names(repository, repository / "x.log") == {"x.log"}


def test_without_a_repository_nothing_above_counts(tmp_path: Path) -> None:
    write_files(tmp_path, {".gitignore": "*.txt\n", "inner/a.txt": "a\n"})
    assert names(tmp_path, tmp_path / "inner") == {"inner/a.txt"}
    assert names(tmp_path) == {".gitignore"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    write_files(tmp_path, {"in/a.txt": "a\n", "out/b.txt": "b\n"})
    (tmp_path / "in/link.txt").symlink_to(tmp_path / "out/b.txt")
    (tmp_path / "in/circle").symlink_to(tmp_path / "in")
    assert names(tmp_path, tmp_path / "in") == {"in/a.txt"}


def test_missing_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(list_files([tmp_path / "nowhere"]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"text\0", "binary"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * 101, "too large"),
    ],
)
def test_what_is_no_document(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UnreadableTextError, match=reason):
        read_text(path, 100)
    with pytest.raises(UnreadableTextError, match="cannot be read"):
        read_text(tmp_path / "missing", 100)


def test_text_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("\ufeffüber\r\nzwei".encode())
    assert read_text(path, 100) == "über\r\nzwei"


def test_pool_holds_the_documents(tmp_path: Path) -> None:
    write_files(
        tmp_path / "in",
        {"b.txt": "second file", "a.txt": "first text", "c/same.txt": "first text", "d": " "},
    )
    (tmp_path / "in/image.png").write_bytes(b"\x89PNG\0\0")
    stages: list[tuple[Stage, int, int | None]] = []
    out = tmp_path / "docs.pool"
    report = build_pool(
        [tmp_path / "in", tmp_path / "in/b.txt"],
        out,
        TOKENIZER,
        progress=lambda *stage: stages.append(stage),
    )
    assert (report.num_documents, report.num_tokens, report.num_text_bytes) == (2, 21, 21)
    assert report.skipped == {"duplicate": 2, "empty": 1, "binary": 1}
    assert report.num_file_bytes == out.stat().st_size
    index, description = verify_pool(out)
    text = index.tokens.tolist()
    assert bytes(t if t >= 0 else 0 for t in text) == b"\0first text\0second file\0"
    assert (description.tokenizer, description.num_documents) == ("bytes", 2)
    assert list(dict.fromkeys(stage for stage, _, _ in stages)) == [
        "list",
        "encode",
        "sort",
        "write",
    ]
    assert ("encode", 6, 6) in stages
    drafter = CorpusDrafter(CorpusConfig(out, description.fingerprint))
    drafter.start("a", list(b"the second"))
    (tree,) = drafter.propose(["a"], 8, 8)
    assert bytes(tree.best_chain().token_ids.tolist()) == b" file"


def test_large_inputs_are_encoded_in_parts(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {f"{i}.txt": f"{i} " * 300_000 for i in range(5)})
    sizes: list[int] = []

    def encode(texts: list[str]) -> list[list[int]]:
        sizes.append(len(texts))
        return [list(text[:10].encode()) for text in texts]

    tokenizer = PoolTokenizer("bytes", {}, encode)
    report = build_pool([tmp_path / "in"], tmp_path / "out.pool", tokenizer)
    assert sizes == [2, 2, 1]
    assert report.num_documents == 5


def test_refusals(tmp_path: Path) -> None:
    out = tmp_path / "out.pool"
    with pytest.raises(CorpusBuildError, match="nowhere"):
        build_pool([tmp_path / "nowhere"], out, TOKENIZER)
    with pytest.raises(CorpusBuildError, match="folder that exists"):
        build_pool([tmp_path], tmp_path / "nowhere/out.pool", TOKENIZER)
    (tmp_path / "binary").write_bytes(b"\0")
    with pytest.raises(CorpusBuildError, match="got none \\(1 binary\\)"):
        build_pool([tmp_path], out, TOKENIZER)
    (tmp_path / "short").write_text("x")
    with pytest.raises(CorpusBuildError, match="at least two tokens"):
        build_pool([tmp_path], out, TOKENIZER)
    assert not out.exists()


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from freedraft.workbench.corpus_build import PoolTokenizer, build_pool

where, source, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

def progress(stage, done, total):
    if stage == where:
        die()

if where == "flush":
    os.fsync = die
if where == "rename":
    Path.replace = die
tokenizer = PoolTokenizer("bytes", {}, lambda texts: [list(t.encode()) for t in texts])
build_pool([source], out, tokenizer, progress=progress)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("where", ["sort", "flush", "rename"])
def test_a_killed_build_leaves_what_was_there(tmp_path: Path, where: str) -> None:
    write_files(tmp_path / "old", {"a.txt": "the old text"})
    write_files(tmp_path / "new", {"a.txt": "the new text"})
    built, missing = tmp_path / "built.pool", tmp_path / "missing.pool"
    build_pool([tmp_path / "old"], built, TOKENIZER)
    before = built.read_bytes()
    for out in (built, missing):
        run = subprocess.run(
            [sys.executable, "-c", KILLED_BUILD, where, str(tmp_path / "new"), str(out)],
            check=False,
        )
        assert run.returncode == -signal.SIGKILL
    assert built.read_bytes() == before
    assert not missing.exists()
    build_pool([tmp_path / "new"], missing, TOKENIZER)
    assert b"new" in bytes(t for t in verify_pool(missing)[0].tokens.tolist() if t >= 0)
