"""``freedraft replay``: what drafters would have saved on recorded prompts and responses."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ._cli_common import fail, load_tokenizer, messages, output

if TYPE_CHECKING:
    from .workbench.replay import ReplayResult
    from .workbench.traces import Encode, TokenTrace, Trace


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Traces: JSONL with id, workload, prompt, response and optionally session.",
        ),
    ],
    drafter: Annotated[
        str | None,
        typer.Option(help="Names of drafters, separated by commas. Default: as the library."),
    ] = None,
    max_nodes: Annotated[
        str, typer.Option(help="Numbers of drafted tokens a step, separated by commas.")
    ] = "16",
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer's id or folder; 'default' is the embedded model's.")
    ] = "default",
    warm: Annotated[
        bool,
        typer.Option(
            "--warm/--cold", help="Keep pools over a file's requests, or start each anew."
        ),
    ] = True,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="OUT|-", help="Write JSON to a file, or to the output."),
    ] = None,
) -> None:
    """Replay recorded responses: tokens per step that each drafter would have reached."""
    from .drafters.catalog import DEFAULT_DRAFTER
    from .workbench.traces import TraceError, read_traces

    try:
        budgets = _budgets(max_nodes)
        names = _names(DEFAULT_DRAFTER if drafter is None else drafter)
        recorded = {path: read_traces(path) for path in files}
        encode = _load_encode(tokenizer)
    except (TraceError, ValueError) as error:
        fail(str(error))
    results: list[ReplayResult] = []
    with _progress() as progress:
        for path, traces in recorded.items():
            tokens = _tokens(path.name, traces, encode, progress)
            for name, budget in product(names, budgets):
                results.append(_replay(path.name, tokens, name, budget, warm, progress))
    _report(results, json_out)


def _tokens(
    file: str, traces: Sequence[Trace], encode: Encode, progress: Progress
) -> list[TokenTrace]:
    from .workbench.traces import tokenize_traces

    task = progress.add_task(f"{file}: tokens", total=len(traces))
    tokens: list[TokenTrace] = []
    for trace in tokenize_traces(traces, encode):
        tokens.append(trace)
        progress.advance(task)
    progress.remove_task(task)
    return tokens


def _replay(
    file: str,
    tokens: Sequence[TokenTrace],
    name: str,
    max_nodes: int,
    warm: bool,
    progress: Progress,
) -> ReplayResult:
    from .drafters.catalog import create_drafter
    from .workbench.replay import replay_traces

    task = progress.add_task(f"{file}: {name}, {max_nodes} nodes", total=len(tokens))
    result = replay_traces(
        tokens,
        partial(create_drafter, name),
        max_nodes=max_nodes,
        warm=warm,
        file=file,
        on_request=partial(progress.advance, task),
    )
    progress.remove_task(task)
    return result


def _report(results: Sequence[ReplayResult], json_out: str | None) -> None:
    text = json.dumps({"results": [result.to_dict() for result in results]}, indent=2)
    if json_out == "-":
        sys.stdout.write(text + "\n")
        return
    if json_out is not None:
        try:
            Path(json_out).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"{json_out}: {error.strerror or error}")
    output.print(_table(results))


def _table(results: Sequence[ReplayResult]) -> Table:
    table = Table(
        title="Replay (a step: nodes, tokens, drafted; a call: microseconds)",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in ("file", "drafter"):
        table.add_column(column, no_wrap=True)
    for column in ("nodes", "tokens", "drafted", "accepted", "calib", "propose", "p99", "extend"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            Path(result.file).stem,
            result.drafter,
            str(result.max_nodes),
            f"{result.tokens_per_step:.2f}",
            f"{result.drafted_per_step:.1f}",
            f"{result.acceptance_rate:.0%}",
            f"{result.calibration_error:.3f}",
            f"{result.propose_us_p50:.1f}",
            f"{result.propose_us_p99:.1f}",
            f"{result.extend_us_p50:.1f}",
        )
    return table


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=messages,
        transient=True,
    )


def _names(text: str) -> list[str]:
    from .drafters.catalog import CORPUS_PREFIX, DRAFTER_NAMES, is_drafter_name

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(map(is_drafter_name, names)):
        known = ", ".join((*DRAFTER_NAMES, f"{CORPUS_PREFIX}FILE.pool"))
        raise ValueError(f"expected names among {known} for --drafter, got {text!r}")
    return names


def _budgets(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"expected whole numbers >= 0 for --max-nodes, got {text!r}")
    return [int(part) for part in parts]


def _load_encode(name: str) -> Encode:
    """Return the encoder of a tokenizer by id or folder."""
    tokenizer = load_tokenizer(name)

    def encode(text: str) -> Sequence[int]:
        # verbose=False: a response longer than the model's context is no news here
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    return encode
