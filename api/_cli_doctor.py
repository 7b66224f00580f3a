"""``freedraft doctor``: what is installed, what would work, and why the rest would not."""

from __future__ import annotations

import json
import operator
import platform
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from . import __version__
from ._cli_common import output

_PACKAGES = ("numba", "numpy", "torch", "transformers", "gguf")
_COMPARE = {">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that freedraft can speed up.

    Attributes:
        name: as users know it.
        package: its distribution.
        registers_as: how it is used; None while this version of freedraft has no adapter.
    """

    name: str
    package: str
    registers_as: str | None = None


ENGINES = (
    Engine("transformers", "transformers", "freedraft.generate, freedraft.custom_generate"),
    Engine("vLLM", "vllm"),
    Engine("SGLang", "sglang"),
    Engine("TensorRT-LLM", "tensorrt_llm"),
    Engine("llama.cpp", "llama-cpp-python"),
)


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the doctor found out about an engine.

    Attributes:
        name: of the engine.
        installed: its version, or None.
        registers_as: how it would be used, or None when it would not work.
        reason: why it would not work, or None.
    """

    name: str
    installed: str | None
    registers_as: str | None
    reason: str | None


def doctor(
    verify: Annotated[
        bool, typer.Option("--verify", help="Also check the cached default model's hashes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Show what is installed, which engines freedraft would work with, and why not."""
    from .integrations.default_model import default_model_folder, default_model_problem

    problem = default_model_problem(hashes=verify)
    cache_path, cache_note = _numba_cache()
    report = {
        "freedraft": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "device": _device(),
        "cpu_fast_path": _cpu_fast_path(),
        "kernel_cache": {"folder": cache_path, "note": cache_note},
        "default_model": {
            "folder": str(default_model_folder()),
            "cached": problem is None,
            "note": problem,
        },
        "engines": [asdict(engine_state(engine)) for engine in ENGINES],
    }
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_report(report)


def installed_version(package: str) -> str | None:
    """Return the version of a distribution without importing it, None when it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def engine_state(engine: Engine) -> EngineState:
    """Find out whether ``engine`` is installed in a release that works, without importing it."""
    installed = installed_version(engine.package)
    if installed is None:
        return EngineState(engine.name, None, None, f"{engine.package} is not installed")
    wanted = supported_versions(engine.package)
    reason = None
    if not all(_COMPARE[sign](_release(installed), _release(limit)) for sign, limit in wanted):
        limits = " and ".join(f"{sign} {limit}" for sign, limit in wanted)
        reason = f"expected {engine.package} {limits}, got {installed}"
    elif engine.registers_as is None:
        reason = f"freedraft {__version__} has no adapter for it yet"
    registers_as = engine.registers_as if reason is None else None
    return EngineState(engine.name, installed, registers_as, reason)


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


def _device() -> dict[str, object]:
    """Return what torch would compute on."""
    try:
        import torch
    except ImportError as error:
        return {"name": None, "note": f"torch cannot be imported: {error}"}
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"name": ", ".join(names), "note": None}
    return {"name": "cpu", "note": f"{torch.get_num_threads()} threads, no CUDA device"}


def _cpu_fast_path() -> dict[str, object]:
    """Return whether models on the CPU can be given faster layers and, if not, why."""
    try:
        from .verifier.cpu.fast_path import cpu_fast_path_problem
    except ImportError as error:
        return {"available": False, "note": f"torch or transformers cannot be imported: {error}"}
    problem = cpu_fast_path_problem()
    return {"available": problem is None, "note": problem}


def _numba_cache() -> tuple[str | None, str | None]:
    """Return the folder of compiled kernels and, when there is none, why."""
    from .drafters._jit import kernel
    from .drafters.base import check_budget

    # Numba looks for a folder when a function is decorated; nothing is compiled here.
    statistics = getattr(kernel(check_budget), "stats", None)
    if statistics is None:
        return None, "the compiler is switched off (NUMBA_DISABLE_JIT)"
    if statistics.cache_path is None:
        return None, "no writable folder: kernels are compiled again in each process"
    return str(statistics.cache_path), None


def _print_report(report: dict[str, Any]) -> None:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name in ("freedraft", "python", "platform"):
        facts.add_row(name, report[name])
    for name, found in report["packages"].items():
        facts.add_row(name, found or Text("missing", "yellow"))
    device, cache, model = report["device"], report["kernel_cache"], report["default_model"]
    facts.add_row("device", _with_note(device["name"], device["note"]))
    fast_path = report["cpu_fast_path"]
    facts.add_row(
        "CPU fast path",
        _with_note("available" if fast_path["available"] else None, fast_path["note"]),
    )
    facts.add_row("kernel cache", _with_note(cache["folder"], cache["note"]))
    facts.add_row("default model", Text(model["note"] or model["folder"]))
    output.print(facts)
    engines = Table()
    for column in ("engine", "installed", "would register as", "why not"):
        engines.add_column(column, overflow="fold")
    for state in report["engines"]:
        engines.add_row(*(Text(value or "-") for value in state.values()))
    output.print(engines)


def _with_note(value: str | None, note: str | None) -> Text:
    return Text(f"{value or 'none'} ({note})" if note else str(value))
