"""``freedraft generate``: one prompt, one answer, and what speculation did for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._cli_common import (
    choose_drafter,
    compile_drafter,
    fail,
    load,
    messages,
    output,
    prompt_token_ids,
)
from ._cli_stream import StepPrinter

if TYPE_CHECKING:
    from .integrations.generation.results import GenerationResult


def generate(
    prompt_file: Annotated[
        str, typer.Option(metavar="FILE|-", help="Text file with the prompt; - reads the input.")
    ],
    model: Annotated[
        str,
        typer.Option(help="Folder or hub id; 'default' is SmolLM2-135M-Instruct, fetched once."),
    ] = "default",
    drafter: Annotated[
        str | None,
        typer.Option(
            help="What drafts, by name; 'none' decodes token by token. Default: as the library."
        ),
    ] = None,
    max_nodes: Annotated[int, typer.Option(min=0, help="Most drafted tokens a step.")] = 16,
    cost_gate: Annotated[
        bool,
        typer.Option(help="Verify only what pays at the step times measured, or all that fits."),
    ] = True,
    calibration: Annotated[
        str | None,
        typer.Option(help="Step times to begin with: a calibration file, or a ready-made curve."),
    ] = None,
    fast_path: Annotated[
        bool,
        typer.Option(
            "--fast-path", help="On a CPU: packed layers, much faster, equal up to rounding."
        ),
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the most likely token, more samples.")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Sample among the k most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Sample among this share.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Drop tokens below this part of the best one's."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 0; more than 1 discourages what was said.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of sampling: the same tokens with any drafter and with none."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Prompt as a user's turn, or as it is. Default: a turn if the model has them.",
            show_default=False,
        ),
    ] = None,
    show_drafts: Annotated[
        bool,
        typer.Option(
            "--show-drafts", help="Colour drafted tokens; with --json, list what each step did."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
) -> None:
    """Answer one prompt; the model checks every drafted token, so the text is its own.

    Limits of sampling that are not given are those of the model's generation config.
    """
    options = _options(temperature, top_k, top_p, min_p, repetition_penalty)
    prompt = _read_prompt(prompt_file)
    drafter = choose_drafter(drafter)
    target, tokenizer = load(model, dtype)
    input_ids = prompt_token_ids(tokenizer, prompt, chat)
    from .integrations.generation import generate as run
    from .integrations.generation.results import GenerationResult
    from .verifier.cpu.fast_path import enable_cpu_fast_path

    compile_drafter(drafter)
    if fast_path:
        enable_cpu_fast_path(target, allow_extra_memory=True)
    printer = None if as_json else StepPrinter(tokenizer, output, show_drafts)
    try:
        result = run(
            target,
            input_ids,
            tokenizer=tokenizer,
            drafter=drafter,
            max_nodes=max_nodes,
            cost_gate=cost_gate,
            calibration=calibration,
            seed=seed,
            on_step=printer,
            return_dict=True,
            max_new_tokens=max_new_tokens,
            **options,
        )
    except ValueError as error:  # what was asked for does not fit the model
        fail(str(error))
    assert isinstance(result, GenerationResult)  # asked for with return_dict
    if printer is None:
        answer = {"model": model, "drafter": drafter, "prompt_tokens": input_ids.shape[1]}
        typer.echo(json.dumps(answer | _to_json(result, show_drafts), indent=2))
    else:
        printer.finish()
        messages.print(_summary(result), style="dim", highlight=False)


def _options(
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
) -> dict[str, Any]:
    """Return the generation options that were given, checked against each other."""
    limits = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    given: dict[str, Any] = {name: v for name, v in limits.items() if v is not None}
    if temperature == 0.0:
        if given:
            flags = ", ".join("--" + name.replace("_", "-") for name in given)
            fail(f"expected --temperature above 0 beside {flags}, got 0, which does not sample")
        given["do_sample"] = False
    else:
        given |= {"do_sample": True, "temperature": temperature}
    if repetition_penalty is not None:
        if repetition_penalty <= 0.0:
            fail(f"expected --repetition-penalty above 0, got {repetition_penalty}")
        given["repetition_penalty"] = repetition_penalty
    return given


def _read_prompt(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        prompt = data.decode("utf-8")
    except OSError as error:
        fail(f"expected --prompt-file to be a readable file, got {name}: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"expected a prompt in UTF-8, got {name} with another byte at {error.start}")
    if not prompt.strip():
        fail(f"expected a prompt with text, got an empty one from {name}")
    return prompt


def _to_json(result: GenerationResult, show_drafts: bool) -> dict[str, object]:
    assert result.texts is not None  # a tokenizer was given
    answer: dict[str, object] = {
        "text": result.texts[0],
        "token_ids": result.token_ids[0],
        "finish_reason": result.finish_reasons[0],
        "statistics": result.statistics.to_dict(),
    }
    if show_drafts:
        answer["steps"] = [
            {
                "token_ids": list(step.token_ids),
                "num_accepted": step.num_accepted,
                "num_drafted": step.num_drafted,
            }
            for step in result.steps
        ]
    return answer


def _summary(result: GenerationResult) -> str:
    counts = result.statistics
    return (
        f"{counts.emitted} tokens in {counts.seconds:.2f} s ({counts.tokens_per_second:.1f} "
        f"tokens/s), {counts.tokens_per_step:.2f} a step over {counts.steps} steps; "
        f"{counts.accepted} of {counts.drafted} drafted tokens accepted "
        f"({counts.acceptance_rate:.0%}); ended by {result.finish_reasons[0]}"
    )
