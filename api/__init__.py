"""freedraft: model-free speculative decoding.

Names are loaded when they are first used, so that ``import freedraft`` imports neither torch nor
an engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drafters import (
        DEFAULT_DRAFTER,
        DRAFTER_NAMES,
        CandidateTree,
        Drafter,
        Feedback,
        create_drafter,
    )
    from .integrations.default_model import load_default_model, load_model
    from .integrations.generation import custom_generate, generate
    from .integrations.generation.results import GenerationResult
    from .integrations.layer_skip_file import layer_skip_drafter
    from .integrations.model_drafters import draft_model_drafter
    from .integrations.statistics import GenerationStatistics, StepReport
    from .integrations.vllm_adapter import FreedraftProposer
    from .verifier.cpu.fast_path import (
        FastPathReport,
        cpu_fast_path,
        disable_cpu_fast_path,
        enable_cpu_fast_path,
    )

__version__ = "0.1.0"

_MODULE_OF = {
    "DEFAULT_DRAFTER": ".drafters",
    "DRAFTER_NAMES": ".drafters",
    "CandidateTree": ".drafters",
    "Drafter": ".drafters",
    "FastPathReport": ".verifier.cpu.fast_path",
    "Feedback": ".drafters",
    "FreedraftProposer": ".integrations.vllm_adapter",
    "GenerationResult": ".integrations.generation.results",
    "GenerationStatistics": ".integrations.statistics",
    "StepReport": ".integrations.statistics",
    "cpu_fast_path": ".verifier.cpu.fast_path",
    "create_drafter": ".drafters",
    "custom_generate": ".integrations.generation",
    "disable_cpu_fast_path": ".verifier.cpu.fast_path",
    "draft_model_drafter": ".integrations.model_drafters",
    "enable_cpu_fast_path": ".verifier.cpu.fast_path",
    "generate": ".integrations.generation",
    "layer_skip_drafter": ".integrations.layer_skip_file",
    "load_default_model": ".integrations.default_model",
    "load_model": ".integrations.default_model",
}

__all__ = [
    "DEFAULT_DRAFTER",
    "DRAFTER_NAMES",
    "CandidateTree",
    "Drafter",
    "FastPathReport",
    "Feedback",
    "FreedraftProposer",
    "GenerationResult",
    "GenerationStatistics",
    "StepReport",
    "__version__",
    "cpu_fast_path",
    "create_drafter",
    "custom_generate",
    "disable_cpu_fast_path",
    "draft_model_drafter",
    "enable_cpu_fast_path",
    "generate",
    "layer_skip_drafter",
    "load_default_model",
    "load_model",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
