"""``freedraft replay``: what drafters would have saved on recorded prompts and responses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ._cli_common import fail, load_tokenizer, messages, output

if TYPE_CHECKING:
    from .integrations.budget import Calibration
    from .workbench.replay.encoder import Encoder
    from .workbench.replay.prediction import Prediction
    from .workbench.replay.prepare import FileReport
    from .workbench.replay.result import ReplayResult
    from .workbench.replay.run import ReplayRun

_ALL = "all"
_NO_TOKENIZER = "none"
_STAGES = {"read": "reading and tokenizing", "replay": "replaying"}
_SHOWN_CONCURRENCIES = (1, 8, 32)


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG...",
            help="Logs: JSONL of prompts and responses, chat logs, server logs, spans.",
        ),
    ],
    drafter: Annotated[
        str | None,
        typer.Option(
            help="Names of drafters, separated by commas, or 'all'. Default: as the library."
        ),
    ] = None,
    max_nodes: Annotated[
        str, typer.Option(help="Numbers of drafted tokens a step, separated by commas.")
    ] = "16",
    tokenizer: Annotated[
        str,
        typer.Option(
            help="A tokenizer's id or folder; 'default': the embedded model's; 'none': logs of ids."
        ),
    ] = "default",
    warm: Annotated[
        bool,
        typer.Option("--warm/--cold", help="Keep pools over a log's requests, or start each anew."),
    ] = True,
    log_format: Annotated[
        str, typer.Option("--format", help="auto, pairs, chat, server or spans.")
    ] = "auto",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Pass over broken lines, and count them.")
    ] = False,
    max_line_mib: Annotated[
        int, typer.Option("--max-line-mib", min=1, help="Longer lines are broken.")
    ] = 8,
    namespace_by: Annotated[
        str,
        typer.Option(
            help="Who learns from whom: by log, session, workload, or all together (none)."
        ),
    ] = "log",
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Requests at a time. Default: as the log's times say, else 1."),
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="All logs are one.")] = False,
    calibration: Annotated[
        str,
        typer.Option(help="Step times: a file of 'freedraft calibrate', or a ready-made curve."),
    ] = "a100",
    processes: Annotated[
        int | None, typer.Option(min=1, help="Most processes. Default: one a core.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Keep what is finished in this folder; the same command goes on there."),
    ] = None,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="OUT|-", help="Write JSON to a file, or to the output."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT", help="Write a report for a browser.")
    ] = None,
) -> None:
    """Replay recorded responses: tokens per step that each drafter would have reached."""
    from .integrations.budget import CalibrationError, load_calibration
    from .workbench.logs import LogError
    from .workbench.replay.plan import ReplayOptions
    from .workbench.replay.prepare import LogOptions
    from .workbench.replay.run import StateError, run_replay, state_folder

    try:
        options = ReplayOptions(_names(drafter), _budgets(max_nodes), warm, concurrency, join)
        reading = LogOptions(log_format, skip_broken, max_line_mib << 20, namespace_by)
        _check_format(log_format)
        costs = load_calibration(calibration)
        encoder = _encoder(tokenizer)
        with state_folder(state) as folder, _Bars() as bars:
            run = run_replay(
                files,
                folder,
                encoder,
                reading,
                options,
                processes=processes or os.cpu_count() or 1,
                on_progress=bars,
            )
            if html is not None:
                _write_html(html, run, costs, encoder, folder)
    except (LogError, CalibrationError, StateError, ValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or 'replay'}: {error.strerror or error}", code=1)
    _report(run, costs, json_out)


def _write_html(
    path: Path, run: ReplayRun, costs: Calibration, encoder: Encoder, folder: Path
) -> None:
    from .workbench.replay.store import TokenStore
    from .workbench.report import render_report

    store = TokenStore(folder, [one.file for one in run.files], run.workloads)
    try:
        text = render_report(run.results, run.files, costs, encoder, store)
    finally:
        store.close()
    path.write_text(text, encoding="utf-8")


def _report(run: ReplayRun, costs: Calibration, json_out: str | None) -> None:
    from .workbench.replay.prediction import predict

    predictions = [predict(result, costs) for result in run.results]
    if json_out is not None:
        text = json.dumps(_json(run, predictions, costs), indent=2) + "\n"
        if json_out == "-":
            sys.stdout.write(text)
            _tell_skipped(run.files)
            return
        try:
            Path(json_out).write_text(text, encoding="utf-8")
        except OSError as error:
            fail(f"{json_out}: {error.strerror or error}")
    output.print(_table(run.results))
    output.print(_speedup_table(run.results, predictions, costs))
    _tell_skipped(run.files)


def _json(
    run: ReplayRun, predictions: Sequence[Sequence[Prediction]], costs: Calibration
) -> dict[str, object]:
    from dataclasses import asdict

    results = [
        result.to_dict() | {"predictions": [asdict(one) for one in predicted]}
        for result, predicted in zip(run.results, predictions, strict=True)
    ]
    return {
        "results": results,
        "files": [asdict(report) for report in run.files],
        "calibration": {
            "model": costs.model,
            "engine": costs.engine,
            "device": costs.device,
            "source": costs.source,
        },
    }


def _table(results: Sequence[ReplayResult]) -> Table:
    table = Table(
        title="Replay (a step: nodes, tokens, drafted; a call: microseconds)",
        box=None,
        padding=(0, 1, 0, 0),
    )
    sampled = any(result.expected_tokens_per_step for result in results)
    for column in ("file", "drafter"):
        table.add_column(column, no_wrap=True)
    for column in ("nodes", "tokens", *(["sampled"] if sampled else []), "drafted", "accepted"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("calib", "propose", "p99", "extend"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        expected = result.expected_tokens_per_step
        both = "-" if expected is None else f"{expected[0]:.2f}..{expected[1]:.2f}"
        table.add_row(
            Path(result.file).stem,
            result.drafter,
            str(result.max_nodes),
            f"{result.tokens_per_step:.2f}",
            *([both] if sampled else []),
            f"{result.drafted_per_step:.1f}",
            f"{result.acceptance_rate:.0%}",
            f"{result.calibration_error:.3f}",
            f"{result.propose_us_p50:.1f}",
            f"{result.propose_us_p99:.1f}",
            f"{result.extend_us_p50:.1f}",
        )
    return table


def _speedup_table(
    results: Sequence[ReplayResult],
    predictions: Sequence[Sequence[Prediction]],
    costs: Calibration,
) -> Table:
    """Return the predicted speed-up of each log's best budget a drafter, by load."""
    table = Table(
        title=f"Predicted speed-up, best number of nodes in brackets, 0 = off\n"
        f"({costs.model} on {costs.device}: {costs.source})",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in ("file", "drafter"):
        table.add_column(column, no_wrap=True)
    for load in _SHOWN_CONCURRENCIES:
        table.add_column(f"{load} at once", justify="right", no_wrap=True)
    best: dict[tuple[str, str], dict[int, tuple[float, int]]] = {}
    for result, predicted in zip(results, predictions, strict=True):
        row = best.setdefault((result.file, result.drafter), {})
        for one in predicted:
            row[one.concurrency] = max(
                row.get(one.concurrency, (1.0, 0)), (one.speedup, result.max_nodes)
            )
    for (file, name), row in best.items():
        cells = [f"{row[load][0]:.2f} ({row[load][1]})" for load in _SHOWN_CONCURRENCIES]
        table.add_row(Path(file).stem, name, *cells)
    return table


def _tell_skipped(files: Sequence[FileReport]) -> None:
    """Say what was passed over, beside the results."""
    for report in files:
        notes = [f"{count} {problem}" for problem, count in sorted(report.skipped.items())]
        if notes:
            skipped = sum(report.skipped.values())
            _note(f"{report.file}: skipped {skipped} broken lines ({', '.join(notes)})")
            for example in report.examples:
                _note(f"  {example}")
        if report.unanswered:
            _note(f"{report.file}: {report.unanswered} prompts without a response")
        if report.without_logprobs:
            _note(
                f"{report.file}: {report.without_logprobs} requests whose log-probabilities do not "
                "fit the tokenizer"
            )


def _note(text: str) -> None:
    messages.print(text, markup=False, highlight=False, soft_wrap=True)


class _Bars:
    """One bar a stage with the time left; nothing where nobody watches."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=messages,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(_STAGES[stage], total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)


def _names(text: str | None) -> tuple[str, ...]:
    from .drafters.catalog import CORPUS_PREFIX, DEFAULT_DRAFTER, DRAFTER_NAMES, is_drafter_name

    if text is None:
        return (DEFAULT_DRAFTER,)
    if text == _ALL:
        return DRAFTER_NAMES
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or not all(map(is_drafter_name, names)):
        known = ", ".join((*DRAFTER_NAMES, f"{CORPUS_PREFIX}FILE.pool", _ALL))
        raise ValueError(f"expected names among {known} for --drafter, got {text!r}")
    return names


def _budgets(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"expected whole numbers >= 0 for --max-nodes, got {text!r}")
    return tuple(map(int, parts))


def _check_format(name: str) -> None:
    from .workbench.logs import FORMATS

    if name not in FORMATS:
        raise ValueError(f"expected --format among {', '.join(FORMATS)}, got {name!r}")


def _encoder(name: str) -> Encoder:
    from .workbench.replay.encoder import IdsOnly, TokenizerEncoder

    return IdsOnly() if name == _NO_TOKENIZER else TokenizerEncoder(load_tokenizer(name), name)
