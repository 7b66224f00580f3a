"""``freedraft bench``: speed on this machine beside plain decoding and what else is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ._cli_common import (
    fail,
    load,
    messages,
    output,
    prompt_token_ids,
    run_bars,
)

if TYPE_CHECKING:
    from .workbench.bench.open_loop import LoadResult
    from .workbench.bench.prompts import BenchPrompt
    from .workbench.bench.report import BenchReport
    from .workbench.bench.settings import BenchSettings, OpenEngine


def bench(
    prompts: Annotated[
        Path, typer.Option(help="JSONL with id, workload and prompt, or text parted by '---'.")
    ],
    model: Annotated[
        str, typer.Option(help="A folder, hub id or GGUF file; 'default': the embedded model.")
    ] = "default",
    engine: Annotated[str, typer.Option(help="transformers, vllm or llama-cpp.")] = "transformers",
    drafter: Annotated[
        str | None,
        typer.Option(help="Names of drafters, separated by commas. Default: as the library."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved runs of each way.")] = 3,
    warmups: Annotated[int, typer.Option(min=0, help="Rounds before, which don't count.")] = 1,
    max_nodes: Annotated[int, typer.Option(min=1, help="Most drafted tokens a step.")] = 16,
    cost_gate: Annotated[
        bool, typer.Option("--cost-gate/--no-cost-gate", help="Verify only what pays, or all.")
    ] = True,
    fast_path: Annotated[
        bool, typer.Option("--fast-path", help="Also on the CPU fast path (transformers).")
    ] = False,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    max_context: Annotated[int, typer.Option(min=2, help="Of vllm and llama-cpp.")] = 2048,
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]URL", help="Put load on this server's API instead; may be repeated."
        ),
    ] = None,
    rates: Annotated[str, typer.Option(help="Of --url: requests a second, by commas.")] = "1,2,4,8",
    requests: Annotated[int, typer.Option(min=1, help="Of --url: arrivals at each rate.")] = 100,
    slo_ttft: Annotated[float, typer.Option(help="Seconds to the first token of a good one.")] = 1,
    slo_tpot: Annotated[float, typer.Option(help="Milliseconds a token of a good one.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="OUT|-", help="Write JSON to a file, or to the output."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture into this file.")] = None,
) -> None:
    """Time prompts with and without drafts, in turn; or put open-loop load on servers."""
    from .drafters.catalog import DEFAULT_DRAFTER
    from .workbench.bench.prompts import read_prompts
    from .workbench.bench.settings import BenchSettings, check_names

    try:
        asked = read_prompts(prompts)
        if url:
            limits = (slo_ttft, slo_tpot)
            _bench_servers(
                url, asked, rates, requests, max_new_tokens, seed, limits, json_out, plot
            )
            return
        names = DEFAULT_DRAFTER if drafter is None else drafter
        settings = BenchSettings(
            model,
            engine,
            tuple(name.strip() for name in names.split(",")),
            max_new_tokens,
            rounds,
            warmups,
            max_nodes,
            cost_gate,
            fast_path,
            dtype,
            max_context,
        )
        check_names(settings.drafters)
        report = _run(settings, asked)
    except ValueError as error:
        fail(str(error))
    except ImportError as error:
        fail(f"expected the engine {engine} to be installed, got: {error}", code=1)
    if plot is not None:
        from .workbench.bench.report import draw_benchmark

        _draw(lambda path: draw_benchmark(report, path), plot)
    _write(report.to_dict(), json_out)
    if json_out != "-":
        output.print(_table(report))
        for note in report.notes:
            output.print(f"Not compared: {note}.", markup=False, highlight=False)


def _run(settings: BenchSettings, prompts: Sequence[BenchPrompt]) -> BenchReport:
    from .workbench.bench.report import num_runs, run_benchmark

    engine = _open(settings)
    try:
        with run_bars(transient=True) as bars:
            task = bars.add_task("timing", total=num_runs(engine, len(prompts), settings))
            return run_benchmark(engine, prompts, settings, lambda: bars.advance(task))
    finally:
        for arm in engine.arms:
            arm.close()


def _open(settings: BenchSettings) -> OpenEngine:
    from .workbench.bench.settings import LLAMA_CPP, VLLM

    if settings.engine == VLLM:
        from .workbench.bench.vllm_arms import open_vllm

        return open_vllm(settings)
    if settings.engine == LLAMA_CPP:
        from .workbench.bench.llama_cpp_arms import open_llama_cpp

        return open_llama_cpp(settings)
    target, tokenizer = load(settings.model, settings.dtype)
    fast = load(settings.model, settings.dtype)[0] if settings.fast_path else None
    from .workbench.bench.transformers_arms import open_transformers

    def encode(text: str) -> list[int]:
        ids: list[int] = prompt_token_ids(tokenizer, text, chat=None)[0].tolist()
        return ids

    return open_transformers(settings, target, encode, fast)


def _table(report: BenchReport) -> Table:
    settings = report.settings
    table = Table(
        title=f"{settings.engine}, {len(report.prompts)} prompts, {settings.num_rounds} rounds",
        caption="tokens/s: median / p90; TPOT and TTFT in ms: p50 / p99",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for column in ("tokens/s", "TPOT", "TTFT", "tok/step", "speed-up", "same text"):
        table.add_column(column, justify="right", no_wrap=True)
    for arm in report.arms:
        table.add_row(
            arm.name,
            f"{arm.tokens_per_second_median:.1f} / {arm.tokens_per_second_p90:.1f}",
            _pair(arm.tpot_ms_p50, arm.tpot_ms_p99),
            _pair(arm.ttft_ms_p50, arm.ttft_ms_p99),
            f"{arm.tokens_per_step:.2f}",
            f"{arm.speedup:.2f}x",
            f"{arm.same_text} of {arm.prompts}",
        )
    return table


def _pair(typical: float | None, worst: float | None) -> str:
    return " / ".join("-" if ms is None else f"{ms:.{int(ms < 100)}f}" for ms in (typical, worst))


def _bench_servers(
    urls: Sequence[str],
    prompts: Sequence[BenchPrompt],
    rates: str,
    num_requests: int,
    max_new_tokens: int,
    seed: int,
    limits: tuple[float, float],
    json_out: str | None,
    plot: Path | None,
) -> None:
    from .workbench.bench.open_loop import LoadSettings, draw_load, load_benchmark
    from .workbench.bench.report import machine
    from .workbench.bench.streaming_client import ServerError, StreamingClient
    from .workbench.request_times import Objective

    settings = LoadSettings(
        tuple(float(rate) for rate in rates.split(",")),
        num_requests,
        max_new_tokens,
        seed,
        Objective(limits[0], limits[1] / 1e3),
    )
    named = dict(_split_name(text) for text in urls)
    if len(named) < len(urls):
        raise ValueError(f"expected servers of different names, got {', '.join(urls)}")
    try:
        clients = {name: StreamingClient(address) for name, address in named.items()}
    except ServerError as error:
        fail(str(error), code=1)
    total = len(clients) * len(settings.rates) * num_requests
    with run_bars(transient=True) as bars:
        task = bars.add_task("serving", total=total)
        texts = [prompt.text for prompt in prompts]
        results = load_benchmark(clients, texts, settings, lambda: bars.advance(task))
    if plot is not None:
        _draw(lambda path: draw_load(results, settings, path), plot)
    content = {
        "machine": machine(),
        "servers": named,
        "rates": settings.rates,
        "requests": num_requests,
        "objective": {"ttft_seconds": limits[0], "tpot_seconds": limits[1] / 1e3},
        "results": [result.to_dict() for result in results],
    }
    _write(content, json_out)
    if json_out != "-":
        output.print(_load_table(results, num_requests))


def _split_name(text: str) -> tuple[str, str]:
    name, equals, address = text.partition("=")
    return (name, address) if equals and "/" not in name else (text, text)


def _load_table(results: Sequence[LoadResult], num_requests: int) -> Table:
    table = Table(
        title=f"{num_requests} requests a row",
        caption="TTFT and TPOT in ms: p50 / p99; same: answers with the first server's text",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in ("rate/s", "server"):
        table.add_column(column, no_wrap=True)
    for column in ("tokens/s", "good/s", "TTFT", "TPOT", "failed", "same"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        level = result.level
        shown = ["-"] * 4
        if level is not None:
            shown = [f"{level.throughput:.1f}", f"{level.goodput:.2f}"]
            shown.append(_pair(level.ttft_p50 * 1e3, level.ttft_p99 * 1e3))
            shown.append(_pair(level.tpot_p50 * 1e3, level.tpot_p99 * 1e3))
        table.add_row(
            f"{result.rate:g}", result.server, *shown, str(result.failed), str(result.same_text)
        )
    return table


def _draw(draw: Callable[[Path], None], path: Path) -> None:
    try:
        draw(path)
    except ImportError as error:
        fail(f'expected matplotlib for --plot: pip install "freedraft[plot]" ({error})', code=1)
    except (OSError, ValueError) as error:
        fail(f"expected --plot to be a picture's file name, got {path}: {error}")


def _write(content: dict[str, object], target: str | None) -> None:
    text = json.dumps(content, indent=1)
    if target == "-":
        sys.stdout.write(text + "\n")
    elif target is not None:
        try:
            Path(target).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"{target}: {error.strerror or error}")
        messages.print(f"numbers written to {target}", style="dim", highlight=False, markup=False)
