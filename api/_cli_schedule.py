"""``freedraft schedule``: drafted tokens by load, from a replay, in an engine's own words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ._cli_common import fail, messages

if TYPE_CHECKING:
    from .workbench.schedules import LoadChoice


def schedule(
    replay: Annotated[
        Path, typer.Argument(metavar="REPLAY", help="What 'freedraft replay --json' wrote.")
    ],
    engine: Annotated[
        str, typer.Option(help="vllm, sglang, tensorrt-llm, llama-cpp or freedraft.")
    ] = "freedraft",
    calibration: Annotated[
        str,
        typer.Option(help="Step times: a file of 'freedraft calibrate', or a ready-made curve."),
    ] = "h100",
    drafter: Annotated[
        str | None, typer.Option(help="Which of the replay's drafters; its only one if not given.")
    ] = None,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Most running requests of the server.")
    ] = 256,
) -> None:
    """Print how many tokens to draft at which load, none included, and what that gains.

    The settings go to the output, the table of gains and losses beside it. Replay with several
    numbers of nodes (--max-nodes 2,4,8,16): only those are chosen from.
    """
    from .integrations.budget import load_calibration
    from .workbench.schedules import choose_schedule, engine_form, read_replay, schedule_of

    loads = [2**power for power in range(max_requests.bit_length())]
    try:
        costs = load_calibration(calibration)
        choices = choose_schedule(read_replay(replay, drafter), costs, loads)
        settings = engine_form(engine, schedule_of(choices), max_requests)
    except (OSError, ValueError) as error:
        fail(str(error))
    messages.print(_table(choices, f"{costs.device}, {costs.model} ({costs.source})"))
    sys.stdout.write(settings + "\n")


def _table(choices: Sequence[LoadChoice], costs: str) -> Table:
    budgets = list(choices[0].speedups)
    table = Table(title=f"Predicted speed-up by load on {costs}", box=None, padding=(0, 1, 0, 0))
    for column in ("requests", "best", "gain", *(f"{nodes} nodes" for nodes in budgets)):
        table.add_column(column, justify="right", no_wrap=True)
    for choice in choices:
        cells = [
            f"[red]{gain:.2f}[/red]" if gain < 1 else f"{gain:.2f}"
            for gain in choice.speedups.values()
        ]
        table.add_row(str(choice.num_requests), str(choice.nodes), f"{choice.speedup:.2f}", *cells)
    return table
