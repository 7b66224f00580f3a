"""The paths by name."""

from __future__ import annotations

from importlib import import_module

from .contract import Path

DRAFTERS_PATH = "drafters"
"""Not an engine: the drafters' own contract."""
_WHERE = {
    "generate": (".path_generate", "GeneratePath"),
    "custom-generate": (".path_generate", "CustomGeneratePath"),
}
PATH_NAMES = (*_WHERE, DRAFTERS_PATH)
ALL = "all"


def make_path(name: str) -> Path:
    """Return a path, ready to run.

    Args:
        name: one of :data:`PATH_NAMES` but ``"drafters"``.

    Raises:
        Skipped: what it needs is not installed here; the message says what.
    """
    module, cls = _WHERE[name]
    made: Path = getattr(import_module(module, __package__), cls)()
    return made
