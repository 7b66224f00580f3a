"""``freedraft simulate``: which schedule of drafted tokens is best at which load of a server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ._cli_common import fail, load_tokenizer, output, run_bars

if TYPE_CHECKING:
    from .workbench.simulation.acceptance import AcceptanceTable
    from .workbench.simulation.result import SimulationResult
    from .workbench.simulation.step_times import MeasuredTimes, RooflineTimes
    from .workbench.simulation.sweep import SweepConfig

DEFAULT_SCHEDULES = ("off", "4", "16", "1:16,8:8,32:4,64:0", "auto")


def simulate(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Logs in any form that 'freedraft replay' reads."),
    ],
    device: Annotated[
        str, typer.Option(help="h200, h100, a100 or l4, as its data sheet describes it.")
    ] = "h100",
    devices: Annotated[int, typer.Option(min=1, help="Devices that share each step.")] = 1,
    shape: Annotated[
        str,
        typer.Option(help="The served model: llama-3.1-8b, qwen3-30b-a3b, ... or a config.json."),
    ] = "llama-3.1-8b",
    calibration: Annotated[
        Path | None,
        typer.Option(help="Measured step times of 'freedraft calibrate' in place of a data sheet."),
    ] = None,
    drafter: Annotated[
        str | None, typer.Option(help="What drafts, by name. Default: as the library.")
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="off, auto, a number, or 1:16,8:4,32:0; may be repeated."),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(help="Requests a second, by commas. Default: shares of plain's capacity."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Arrivals of each simulation.")] = 500,
    max_nodes: Annotated[
        int, typer.Option(min=1, max=255, help="Most drafted tokens of a request.")
    ] = 16,
    trees: Annotated[
        bool, typer.Option("--trees/--chains", help="Verify trees, or chains as vLLM does.")
    ] = False,
    max_requests: Annotated[int, typer.Option(min=1, help="Running at once.")] = 256,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Of one step, prompts too.")] = 8192,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="That fit into the cache. Default: as memory allows.")
    ] = None,
    slo_ttft: Annotated[float, typer.Option(help="Seconds to the first token of a good one.")] = 1,
    slo_tpot: Annotated[float, typer.Option(help="Milliseconds a token of a good one.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer's id or folder; 'default': the embedded model's.")
    ] = "default",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Pass over broken lines of the logs.")
    ] = False,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="OUT|-", help="Write JSON to a file, or to the output."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture into this file.")] = None,
) -> None:
    """Simulate a server under load, with the drafts that recorded traffic would have had."""
    from .workbench.request_times import Objective
    from .workbench.simulation.policy import parse_schedule
    from .workbench.simulation.server import ServerConfig
    from .workbench.simulation.sweep import LOADS, SweepConfig, plain_capacity, sweep

    try:
        policies = [parse_schedule(text) for text in schedule or DEFAULT_SCHEDULES]
        wanted = None if rates is None else [float(rate) for rate in rates.split(",")]
        times, title, fits = _times(device, devices, shape, calibration)
        server = ServerConfig(max_requests, max_step_tokens, kv_tokens or fits)
        config = SweepConfig(requests, seed, Objective(slo_ttft, slo_tpot / 1e3), server)
        tables = _tables(files, tokenizer, drafter, requests, max_nodes, trees, skip_broken)
        if wanted is None:
            capacity = plain_capacity(tables, times, config)
            wanted = [float(f"{load * capacity:.3g}") for load in LOADS]
        with run_bars(transient=True) as bars:
            task = bars.add_task("simulating", total=len(wanted) * len(policies))
            results = sweep(tables, times, policies, wanted, config, lambda: bars.advance(task))
        if plot is not None:
            from .workbench.simulation.picture import draw_sweep

            draw_sweep(results, config.objective, title, plot)
    except ValueError as error:
        fail(str(error))
    except ImportError as error:
        fail(f'expected matplotlib for --plot: pip install "freedraft[plot]" ({error})', code=1)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}", code=1)
    _report(results, title, config, json_out)


def _times(
    device: str, devices: int, shape: str, calibration: Path | None
) -> tuple[RooflineTimes | MeasuredTimes, str, int]:
    """Return the step times, what they are of, and the tokens that fit into the cache."""
    from .integrations.budget.calibration_file import read_calibration
    from .integrations.budget.data_sheets import DEVICES
    from .workbench.simulation.server import ServerConfig
    from .workbench.simulation.shapes import model_shape
    from .workbench.simulation.step_times import MeasuredTimes, RooflineTimes

    if calibration is not None:
        curve = read_calibration(calibration)
        title = f"{curve.model} on {curve.device} ({curve.source})"
        return MeasuredTimes.of_calibration(curve), title, ServerConfig().kv_tokens
    if device not in DEVICES:
        raise ValueError(f"expected --device among {', '.join(DEVICES)}, got {device!r}")
    times = RooflineTimes(DEVICES[device], model_shape(shape), devices)
    count = f"{devices} x " if devices > 1 else ""
    title = f"{times.model.name} on {count}{times.device.name} (computed from data sheets)"
    return times, title, times.kv_tokens()


def _tables(
    files: Sequence[Path],
    tokenizer: str,
    drafter: str | None,
    most: int,
    max_nodes: int,
    trees: bool,
    skip_broken: bool,
) -> list[AcceptanceTable]:
    from .drafters import DEFAULT_DRAFTER, create_drafter
    from .workbench.replay.encoder import IdsOnly, TokenizerEncoder
    from .workbench.simulation.from_logs import read_requests, tabulate_requests

    encoder = (
        IdsOnly() if tokenizer == "none" else TokenizerEncoder(load_tokenizer(tokenizer), tokenizer)
    )
    pairs = read_requests(files, encoder, most, skip_broken)
    source = create_drafter(DEFAULT_DRAFTER if drafter is None else drafter)
    with run_bars(transient=True) as bars:
        task = bars.add_task(f"drafting for {len(pairs)} requests", total=len(pairs))
        return tabulate_requests(
            pairs,
            source,
            max_nodes=max_nodes,
            chains=not trees,
            on_request=lambda: bars.advance(task),
        )


def _report(
    results: Sequence[SimulationResult], title: str, config: SweepConfig, json_out: str | None
) -> None:
    from .workbench.simulation.sweep import best_by_rate

    best = best_by_rate(results)
    content = {
        "title": title,
        "config": asdict(config),
        "results": [result.to_dict() for result in results],
        "best": [{"rate": rate, "policy": result.policy} for rate, result in best.items()],
    }
    text = json.dumps(content, indent=1)
    if json_out == "-":
        sys.stdout.write(text + "\n")
        return
    if json_out is not None:
        try:
            Path(json_out).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"{json_out}: {error.strerror or error}")
    output.print(_table(results, title, best))


def _table(
    results: Sequence[SimulationResult], title: str, best: dict[float, SimulationResult]
) -> Table:
    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    for column in ("rate/s", "schedule"):
        table.add_column(column, no_wrap=True)
    for column in ("tok/s", "good/s", "TTFT p99", "TPOT p50", "latency", "tok/step"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        level = result.level
        table.add_row(
            f"{result.rate:g}",
            result.policy,
            f"{level.throughput:.0f}",
            f"{level.goodput:.2f}",
            f"{level.ttft_p99:.2f} s",
            f"{level.tpot_p50 * 1e3:.1f} ms",
            f"{level.latency_mean:.2f} s",
            f"{result.tokens_per_step:.2f}",
            style="bold green" if result is best[result.rate] else None,
        )
    table.caption = "Green: the least mean latency at that rate; the fewest drafts within 1 %."
    return table
