"""freedraft: model-free speculative decoding.

Names are loaded when they are first used, so that ``import freedraft`` imports neither torch nor
an engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drafters import CandidateTree, Drafter, Feedback

__version__ = "0.1.0"

_MODULE_OF = {
    "CandidateTree": ".drafters",
    "Drafter": ".drafters",
    "Feedback": ".drafters",
}

__all__ = [
    "CandidateTree",
    "Drafter",
    "Feedback",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
