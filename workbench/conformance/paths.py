"""The paths by name."""

from __future__ import annotations

from importlib import import_module

from .contract import Path

DRAFTERS_PATH = "drafters"
"""Not an engine: the drafters' own contract."""
_WHERE = {
    "generate": (".path_generate", "GeneratePath"),
    "custom-generate": (".path_generate", "CustomGeneratePath"),
    "vllm": (".path_vllm", "VllmPath"),
    "llama-cpp": (".path_llama_cpp", "LlamaCppPath"),
    "sglang": (".path_sglang", "SglangPath"),
    "tensorrt-llm": (".path_tensorrt_llm", "TensorRtLlmPath"),
}
NEED_MODEL = ("vllm", "llama-cpp")
PATH_NAMES = (*_WHERE, DRAFTERS_PATH)
ALL = "all"


def make_path(name: str, model: str | None = None) -> Path:
    """Return a path, ready to run.

    Args:
        name: one of :data:`PATH_NAMES` but ``"drafters"``.
        model: for the engines that load one: a folder for vLLM, a GGUF file for llama-cpp-python.

    Raises:
        Skipped: what it needs is not installed here; the message says what.
    """
    module, cls = _WHERE[name]
    make = getattr(import_module(module, __package__), cls)
    made: Path = make(model) if name in NEED_MODEL else make()
    return made
