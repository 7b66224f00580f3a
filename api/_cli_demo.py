"""``freedraft demo``: the default model answers three prompts, then the four ways are compared."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._cli_common import (
    choose_drafter,
    compile_drafter,
    fail,
    load,
    messages,
    output,
    prompt_token_ids,
    run_bars,
)
from ._cli_stream import DRAFTED_STYLE, StepPrinter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .workbench.comparison import ArmResult, Comparison
    from .workbench.demo_prompts import DemoPrompt


def demo(
    all_prompts: Annotated[
        bool, typer.Option("--all", help="Six prompts: three edits, two RAG answers, one chat.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This prompt; may be repeated.")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option(help="What drafts, by name. Default: as the library.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
    rounds: Annotated[
        int, typer.Option(min=1, help="Runs of each way, interleaved; medians are shown.")
    ] = 1,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="OUT|-", help="Write the numbers to a file, or - to print."),
    ] = None,
) -> None:
    """Show speculation at work: drafted tokens in green, then times beside transformers'."""
    prompts = _choose_prompts(all_prompts, only)
    drafter = choose_drafter(drafter)
    if json_out not in (None, "-") and not Path(str(json_out)).absolute().parent.is_dir():
        fail(f"expected --json to be a file in a folder that exists, got {json_out}")
    model, tokenizer = load("default", "float32")
    fast_model, _ = load("default", "float32")
    from .integrations.default_model import MODEL_TITLE
    from .verifier.cpu.fast_path import enable_cpu_fast_path
    from .workbench.comparison import Comparison

    compile_drafter(drafter)
    fast_path = enable_cpu_fast_path(fast_model, allow_extra_memory=True)
    comparison = Comparison(
        model,
        drafter,
        max_new_tokens,
        fast_model=fast_model if fast_path.enabled else None,
    )
    console = messages if json_out == "-" else output
    console.print(
        f"{MODEL_TITLE}, float32, greedy, drafter [bold]{drafter}[/]. It is a small model: "
        f"watch its speed, not its wit.\n[{DRAFTED_STYLE}]Green[/]: tokens that were drafted and "
        "that the model confirmed."
    )
    answers = {}
    for prompt in prompts:
        answers[prompt.name] = _show_prompt(console, comparison, tokenizer, prompt, rounds)
    if len(answers) > 1:
        console.print(_closing_line(answers))
    if json_out is not None:
        _write_json(json_out, answers, drafter, max_new_tokens)


def _choose_prompts(all_prompts: bool, only: list[str] | None) -> list[DemoPrompt]:
    from .workbench.demo_prompts import DEFAULT_PROMPTS, DEMO_PROMPTS

    if all_prompts and only:
        fail("expected --all or --only, got both")
    by_name = {prompt.name: prompt for prompt in DEMO_PROMPTS}
    unknown = [name for name in only or () if name not in by_name]
    if unknown:
        fail(f"expected --only to be one of {', '.join(by_name)}, got {unknown[0]!r}")
    names = by_name if all_prompts else (only or DEFAULT_PROMPTS)
    return [by_name[name] for name in dict.fromkeys(names)]


def _show_prompt(
    console: Console,
    comparison: Comparison,
    tokenizer: PreTrainedTokenizerBase,
    prompt: DemoPrompt,
    num_rounds: int,
) -> list[ArmResult]:
    """Stream the answer of freedraft once, then time all ways and print their table."""
    from .workbench.comparison import FREEDRAFT

    console.rule(f"[bold]{prompt.name}[/] ({prompt.workload})")
    console.print(prompt.text.splitlines()[0], style="italic dim", markup=False, highlight=False)
    console.print()
    input_ids = prompt_token_ids(tokenizer, prompt.text, chat=True)
    printer = StepPrinter(tokenizer, console, show_drafts=True)
    # Printing costs time, so this run is not among those that are timed; it warms all up instead.
    comparison.run_once(FREEDRAFT, input_ids, printer)
    printer.finish()
    console.print()
    with run_bars(transient=True) as bars:
        task = bars.add_task(f"timing {prompt.name}", total=num_rounds * len(comparison.arms))
        results = comparison.compare(input_ids, num_rounds, lambda: bars.advance(task))
    console.print(_table(results, num_rounds))
    return results


def _table(results: list[ArmResult], num_rounds: int) -> Table:
    title = f"{results[0].num_tokens} tokens, "
    title += "one run each" if num_rounds == 1 else f"medians of {num_rounds} interleaved runs"
    table = Table(title=title, title_justify="left", title_style="dim")
    table.add_column("")
    for column in ("tokens/s", "tokens/step", "accepted", "speed-up", "same text"):
        table.add_column(column, justify="right")
    for result in results:
        accepted = f"{result.accepted} of {result.drafted}" if result.drafted else "-"
        same = "yes" if result.same_text else f"[red]no, from token {result.num_equal}[/]"
        table.add_row(
            result.name,
            f"{result.tokens_per_second:.1f}",
            f"{result.tokens_per_step:.2f}",
            accepted,
            f"{result.speedup:.2f}x",
            same,
            style="bold" if result is results[-1] else None,
        )
    return table


def _closing_line(answers: dict[str, list[ArmResult]]) -> str:
    """Return the geometric means over the prompts."""
    from .workbench.comparison import FAST_PATH, FREEDRAFT, PROMPT_LOOKUP

    speedups: dict[str, list[float]] = {}
    for results in answers.values():
        for result in results:
            speedups.setdefault(result.name, []).append(result.speedup)
    means = [
        f"{arm} [bold]{statistics.geometric_mean(speedups[arm]):.2f}x[/]"
        for arm in (PROMPT_LOOKUP, FREEDRAFT, FAST_PATH)
        if arm in speedups
    ]
    return f"Geometric means over {len(answers)} prompts, of generate: {'; '.join(means)}."


def _write_json(
    target: str, answers: dict[str, list[ArmResult]], drafter: str, max_new_tokens: int
) -> None:
    import torch

    packages = ("freedraft", "torch", "transformers", "numba")
    report = {
        "machine": {
            "platform": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in packages},
        "settings": {
            "model": "default",
            "dtype": "float32",
            "drafter": drafter,
            "max_new_tokens": max_new_tokens,
        },
        "prompts": {name: [asdict(result) for result in all] for name, all in answers.items()},
    }
    text = json.dumps(report, indent=2)
    if target == "-":
        typer.echo(text)
    else:
        Path(target).write_text(text + "\n", encoding="utf-8")
        messages.print(f"numbers written to {escape(target)}", style="dim", highlight=False)
