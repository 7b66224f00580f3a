"""``freedraft calibrate``: what a step costs on this machine, by batch, drafted tokens, context."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ._cli_common import StageBars, fail, load, messages, output

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .integrations.budget import Calibration
    from .workbench.calibration import CalibrationPlan

_STAGES = {"prepare": "filling caches", "measure": "timing steps"}
_ENGINES = ("transformers", "vllm", "llama-cpp")


def calibrate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="A folder or hub id ('default' is the embedded model); for llama-cpp a GGUF file."
        ),
    ] = "default",
    engine: Annotated[str, typer.Option(help="transformers, vllm or llama-cpp.")] = "transformers",
    contexts: Annotated[
        str, typer.Option(help="Tokens in each request's cache, separated by commas.")
    ] = "128,1024",
    batches: Annotated[
        str | None,
        typer.Option(help="Requests in a step, separated by commas.", show_default="1,2,4,8"),
    ] = None,
    nodes: Annotated[
        str, typer.Option(help="Drafted tokens of each request, separated by commas, 0 first.")
    ] = "0,1,3,7,15,31",
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each; medians count.")] = 7,
    drafter: Annotated[
        list[str] | None, typer.Option(help="Time this drafter too; may be repeated.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    fast_path: Annotated[
        bool, typer.Option("--fast-path", help="On a CPU: time the packed layers.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file that is written.")] = Path(
        "calibration.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the file instead.")] = False,
) -> None:
    """Measure what target steps cost here, and keep it in a file.

    Read by generate, the engines' adapters, schedule, replay and simulate.
    """
    if context.invoked_subcommand is not None:
        return
    if engine not in _ENGINES:
        fail(f"expected --engine to be one of {', '.join(_ENGINES)}, got {engine!r}")
    from .workbench.calibration import CalibrationPlan, MeasurementError

    usual = "1" if engine == "llama-cpp" else "1,2,4,8"
    try:
        plan = CalibrationPlan(
            _numbers("--contexts", contexts),
            _numbers("--batches", usual if batches is None else batches),
            _numbers("--nodes", nodes),
            rounds,
        )
        with StageBars(_STAGES) as bars:
            calibration = _MEASURE[engine](
                model, dtype, fast_path, plan, drafter or ["blend"], bars
            )
        if not as_json:
            calibration.save(out)
    except (OSError, ValueError) as error:
        fail(str(error))
    except (ImportError, MeasurementError) as error:  # of the engine's package
        fail(str(error), code=1)
    if as_json:
        sys.stdout.write(json.dumps(calibration.to_dict(), indent=1) + "\n")
        return
    output.print(_table(calibration))
    messages.print(f"written to {out}", highlight=False)


def _transformers(
    model: str,
    dtype: str,
    fast_path: bool,
    plan: CalibrationPlan,
    drafters: list[str],
    bars: StageBars,
) -> Calibration:
    loaded, _ = load(model, dtype)
    import torch
    import transformers

    from .verifier.cpu.fast_path import enable_cpu_fast_path
    from .workbench.calibration.measure import measure_steps, tabulate
    from .workbench.calibration.transformers_timer import TransformersTimer, device_name

    if fast_path:
        messages.print(*enable_cpu_fast_path(loaded).lines(), sep="\n")
    timer = TransformersTimer(loaded, plan.nodes[-1], (plan.rounds + 1) * len(plan.nodes))
    times = measure_steps(timer, plan, bars)
    return tabulate(
        times,
        plan,
        model=model,
        engine="transformers",
        device=device_name(loaded),
        draft_seconds=_drafting(drafters, plan, loaded.config.get_text_config().vocab_size),
        about={
            "dtype": dtype,
            "fast_path": fast_path,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    )


def _vllm(
    model: str,
    dtype: str,
    fast_path: bool,
    plan: CalibrationPlan,
    drafters: list[str],
    bars: StageBars,
) -> Calibration:
    if fast_path or model == "default":
        fail("expected --model with a folder or hub id and no --fast-path for vllm")
    from .workbench.calibration.measure import tabulate
    from .workbench.calibration.vllm_steps import measure_vllm

    times, about = measure_vllm(model, dtype, plan, bars)
    vocab_size = int(about.pop("vocab_size"))
    return tabulate(
        times,
        plan,
        model=model,
        engine="vllm",
        device=str(about.pop("device")),
        draft_seconds=_drafting(drafters, plan, vocab_size),
        about=about | {"dtype": dtype},
    )


def _llama_cpp(
    model: str,
    dtype: str,
    fast_path: bool,
    plan: CalibrationPlan,
    drafters: list[str],
    bars: StageBars,
) -> Calibration:
    if fast_path or not Path(model).is_file():
        fail(f"expected --model to be a GGUF file and no --fast-path for llama-cpp, got {model!r}")
    import llama_cpp

    from .workbench.calibration.llama_cpp_timer import LlamaCppTimer
    from .workbench.calibration.measure import measure_steps, processor_name, tabulate

    room = plan.contexts[-1] + plan.nodes[-1] + 1
    llama = llama_cpp.Llama(model, n_ctx=room, logits_all=True, verbose=False)
    times = measure_steps(LlamaCppTimer(llama), plan, bars)
    return tabulate(
        times,
        plan,
        model=Path(model).name,
        engine="llama-cpp",
        device=f"{processor_name()}, {llama.n_threads} threads",
        draft_seconds=_drafting(drafters, plan, int(llama.n_vocab())),
        about={"llama_cpp": llama_cpp.__version__},
    )


_MEASURE = {"transformers": _transformers, "vllm": _vllm, "llama-cpp": _llama_cpp}


def _drafting(
    names: list[str], plan: CalibrationPlan, vocab_size: int
) -> dict[str, npt.NDArray[np.float64]]:
    from .workbench.calibration.draft_costs import measure_drafting

    context = plan.contexts[len(plan.contexts) // 2]
    return {name: measure_drafting(name, plan.batches, context, vocab_size) for name in names}


def _table(calibration: Calibration) -> Table:
    table = Table(
        title=f"{calibration.model}, {calibration.engine}, {calibration.device}: milliseconds of "
        "a step without drafts, and how many times as long with",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in ("context", "batch", "plain", *(f"+{n}" for n in calibration.nodes[1:])):
        table.add_column(column, justify="right")
    for context, rows in zip(calibration.contexts, calibration.seconds, strict=True):
        for batch, row in zip(calibration.batches, rows, strict=True):
            ratios = [f"{second / row[0]:.2f}" for second in row[1:]]
            table.add_row(str(context), str(batch), f"{1e3 * row[0]:.1f}", *ratios)
    for name, seconds in calibration.draft_seconds.items():
        times = ", ".join(
            f"{1e6 * second:.0f} us at {batch}"
            for batch, second in zip(calibration.batches, seconds, strict=True)
        )
        table.caption = f"drafting with {name}, a step: {times}"
    return table


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"expected whole numbers, separated by commas, for {option}, got {text!r}")
    return tuple(map(int, parts))
