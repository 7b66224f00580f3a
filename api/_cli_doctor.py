"""``freedraft doctor``: what is installed, what would work, and why the rest would not."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from . import __version__
from ._cli_common import output
from ._doctor_engines import engine_state, installed_version

_PACKAGES = ("numba", "numpy", "torch", "transformers", "gguf")


def doctor(
    verify: Annotated[
        bool, typer.Option("--verify", help="Also check the cached default model's hashes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Show what is installed, which engines freedraft would work with, and why not."""
    from .integrations.default_model import default_model_folder, default_model_problem
    from .integrations.engine_support import supported_engines

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
        "engines": [asdict(engine_state(engine)) for engine in supported_engines()],
    }
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_report(report)


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
    engines.add_column("engine", no_wrap=True)
    for column in ("installed", "would register as", "why not", "tested"):
        engines.add_column(column, overflow="fold")
    for state in report["engines"]:
        engines.add_row(*(Text(value or "-") for value in state.values()))
    output.print(engines)


def _with_note(value: str | None, note: str | None) -> Text:
    return Text(f"{value or 'none'} ({note})" if note else str(value))
