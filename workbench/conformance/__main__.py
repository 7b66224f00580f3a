"""``python -m freedraft.workbench.conformance``: the suite from the command line."""

from __future__ import annotations

import json
import platform
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .paths import ALL, PATH_NAMES
from .runner import FAILED, PASSED, SKIPPED, Finding, kind_names, num_checks, run

_MARKS = {PASSED: "[green]ok[/]", SKIPPED: "[dim]-[/]", FAILED: "[bold red]FAILED[/]"}


def main(
    engine: Annotated[
        list[str] | None,
        typer.Option(help=f"A path to check: {', '.join(PATH_NAMES)}, or all. Repeatable."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="The name of a check. Repeatable.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="For vllm a model's folder, for llama-cpp a GGUF file of float32."),
    ] = None,
    json_out: Annotated[
        str | None, typer.Option("--json", help="Write all findings to this file, or - here.")
    ] = None,
    list_kinds: Annotated[bool, typer.Option("--list", help="Name the checks and end.")] = False,
) -> None:
    """Check that what breaks elsewhere does not break here.

    Exits with 1 if a check fails. A check is skipped where an engine cannot be asked; the report
    says why.
    """
    if list_kinds:
        print("\n".join(kind_names()))
        return
    names = _chosen("--engine", engine or [ALL], [*PATH_NAMES, ALL])
    paths = list(PATH_NAMES) if ALL in names else names
    kinds = _chosen("--only", only or [], kind_names())
    console = Console(stderr=json_out == "-")
    findings = _run(console, paths, kinds, model)
    _report(console, findings)
    if json_out is not None:
        text = json.dumps(_document(findings), indent=1)
        if json_out == "-":
            print(text)
        else:
            Path(json_out).write_text(text + "\n")
    if any(finding.result == FAILED for finding in findings):
        raise typer.Exit(1)


def _chosen(option: str, given: list[str], known: list[str]) -> list[str]:
    for name in given:
        if name not in known:
            raise typer.BadParameter(
                f"expected one of {', '.join(known)}, got {name!r}", param_hint=option
            )
    return given


def _run(console: Console, paths: list[str], kinds: list[str], model: str | None) -> list[Finding]:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    findings: list[Finding] = []
    total = None if kinds else num_checks(paths)
    with progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # engines' own; what matters to a check it looks at
        task = progress.add_task("checks", total=total)
        for finding in run(paths, kinds, model):
            findings.append(finding)
            progress.update(task, advance=1, description=f"{finding.path}: {finding.kind}")
    return findings


def _report(console: Console, findings: list[Finding]) -> None:
    paths = list(dict.fromkeys(finding.path for finding in findings))
    by_place = {(finding.kind, finding.path): finding for finding in findings}
    for group in (
        [path for path in paths if "/" not in path],
        [path for path in paths if "/" in path],
    ):
        if not group:
            continue
        table = Table(box=None, pad_edge=False)
        table.add_column("what must be right")
        for path in group:
            table.add_column(path.split("/")[-1], justify="center")
        for kind in dict.fromkeys(f.kind for f in findings if f.path in group):
            marks = [
                _MARKS[by_place[kind, path].result] if (kind, path) in by_place else ""
                for path in group
            ]
            table.add_row(kind, *marks)
        console.print(table)
        console.print()
    for finding in findings:
        if finding.result == FAILED:
            console.print(f"[bold red]FAILED[/] {finding.path}: {finding.kind}", highlight=False)
            console.print(f"  right: {finding.right}", markup=False, highlight=False)
            console.print(f"  {finding.why}", markup=False, highlight=False)
    reasons = dict.fromkeys((f.path, f.kind, f.why) for f in findings if f.result == SKIPPED)
    if reasons:
        console.print("[dim]skipped:[/]")
    for path, kind, why in reasons:
        console.print(f"  {path}: {kind}: {why}", markup=False, highlight=False)
    counts = {r: sum(f.result == r for f in findings) for r in (PASSED, SKIPPED, FAILED)}
    console.print(", ".join(f"{count} {result}" for result, count in counts.items()))


def _document(findings: list[Finding]) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "findings": [finding.to_dict() for finding in findings],
    }


if __name__ == "__main__":
    typer.run(main)
