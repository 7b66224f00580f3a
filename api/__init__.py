"""freedraft: model-free speculative decoding.

Names are loaded when they are first used, so that ``import freedraft`` imports neither torch nor
an engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drafters import DRAFTER_NAMES, CandidateTree, Drafter, Feedback, create_drafter
    from .integrations.generation import custom_generate, generate
    from .integrations.results import GenerationResult
    from .integrations.statistics import GenerationStatistics, StepReport

__version__ = "0.1.0"

_MODULE_OF = {
    "CandidateTree": ".drafters",
    "DRAFTER_NAMES": ".drafters",
    "Drafter": ".drafters",
    "Feedback": ".drafters",
    "GenerationResult": ".integrations.results",
    "GenerationStatistics": ".integrations.statistics",
    "StepReport": ".integrations.statistics",
    "create_drafter": ".drafters",
    "custom_generate": ".integrations.generation",
    "generate": ".integrations.generation",
}

__all__ = [
    "DRAFTER_NAMES",
    "CandidateTree",
    "Drafter",
    "Feedback",
    "GenerationResult",
    "GenerationStatistics",
    "StepReport",
    "__version__",
    "create_drafter",
    "custom_generate",
    "generate",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
