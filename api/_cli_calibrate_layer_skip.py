"""``freedraft calibrate layer-skip``: which sub-layers to leave out for drafting."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ._cli_common import StageBars, fail, load, messages, output

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from .workbench.layer_skip_costs import LayerSkipTimes
    from .workbench.layer_skip_search import Candidate, ScoredText, SearchResult

_STAGES = {"time": "timing layers", "search": "searching"}
_MAX_TOKENS = 384  # of a text; its last part is scored
_SCORED = 64


def layer_skip(
    texts: Annotated[
        Path,
        typer.Option(
            help="Traces (JSONL with prompt and response) or one plain text, of the kind that "
            "the model will write."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="A folder or hub id; 'default' is the embedded model.")
    ] = "default",
    minutes: Annotated[float, typer.Option(help="Time for the search.", min=0.0)] = 10.0,
    max_texts: Annotated[int, typer.Option(help="Texts that are used.", min=1)] = 8,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    fast_path: Annotated[
        bool, typer.Option("--fast-path", help="On a CPU: time the packed layers.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; by default the cached one of this model on this machine."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Find the attentions and MLPs that a draft can do without, for a model and its texts."""
    loaded, tokenizer = load(model, dtype)
    if fast_path:
        from .verifier.cpu.fast_path import enable_cpu_fast_path

        messages.print(*enable_cpu_fast_path(loaded).lines(), sep="\n")
    try:
        scored = _scored_texts(texts, tokenizer, max_texts)
        with StageBars(_STAGES) as bars:
            times, result = _search(loaded, scored, 60 * minutes, bars)
    except (OSError, ValueError) as error:
        fail(str(error))
    path, content = _save(loaded, times, result, out, texts)
    if as_json:
        sys.stdout.write(json.dumps(content) + "\n")
        return
    _print_table(result, loaded, path)


def _search(
    model: PreTrainedModel, texts: list[ScoredText], seconds: float, bars: StageBars
) -> tuple[LayerSkipTimes, SearchResult]:
    from .workbench.layer_skip_costs import measure_times
    from .workbench.layer_skip_search import AcceptanceMeter, search_skip_set

    bars("time", 0, None)
    times = measure_times(model, list(texts[0].token_ids))
    bars("time", 1, 1)
    meter = AcceptanceMeter(model, texts)
    result = search_skip_set(
        meter,
        times.costs,
        times.step_costs,
        max_seconds=seconds,
        progress=lambda share: bars("search", round(1000 * share), 1000),
    )
    return times, result


def _scored_texts(
    path: Path, tokenizer: PreTrainedTokenizerBase, max_texts: int
) -> list[ScoredText]:
    """Return texts whose last tokens are scored: of responses, or of the parts of a text."""
    from .workbench.layer_skip_search import ScoredText
    from .workbench.traces import read_traces

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    pieces: list[list[int]] = []
    if path.suffix == ".jsonl":
        for trace in read_traces(path)[:max_texts]:
            response = encode(trace.response)[: _MAX_TOKENS // 2]
            prompt = encode(trace.prompt)[-(_MAX_TOKENS - len(response)) :]
            pieces.append(prompt + response)
    else:
        tokens = encode(path.read_text(encoding="utf-8"))
        pieces = [tokens[i : i + _MAX_TOKENS] for i in range(0, len(tokens), _MAX_TOKENS)]
    texts = [
        ScoredText(piece, min(_SCORED, len(piece) // 2))
        for piece in pieces[:max_texts]
        if len(piece) >= 8
    ]
    if not texts:
        raise ValueError(f"expected texts of at least 8 tokens in {path}, got none")
    return texts


def _save(
    model: PreTrainedModel,
    times: LayerSkipTimes,
    result: SearchResult,
    out: Path | None,
    texts: Path,
) -> tuple[Path, dict[str, Any]]:
    from datetime import date

    import torch
    import transformers

    from .integrations.layer_skip_file import (
        SkipRecord,
        machine_name,
        model_fingerprint,
        save_skip_record,
        skip_record_path,
    )

    path = skip_record_path(model) if out is None else out
    about = {
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "texts": texts.name,
        "step_ms": round(1000 * times.step_seconds, 3),
        "step_costs": [round(cost, 4) for cost in times.step_costs],
        "trials": result.num_trials,
        "seconds": round(result.seconds, 1),
        "uniform_speedup": round(result.uniform.speedup, 4),
    }
    best = result.best
    record = SkipRecord(
        model_fingerprint(model),
        machine_name(model),
        best.skip,
        times.costs,
        best.acceptance,
        best.speedup,
        best.depth,
        about,
    )
    try:
        save_skip_record(record, path)
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", code=1)
    content = {
        "path": str(path),
        "skip": best.skip.to_dict(),
        "acceptance": best.acceptance,
        "draft_cost": best.draft_cost,
        "speedup": best.speedup,
        "depth": best.depth,
        "pays": record.pays,
        "machine": record.machine,
        **about,
    }
    return path, content


def _print_table(result: SearchResult, model: PreTrainedModel, path: Path) -> None:
    num_layers = model.config.get_text_config(decoder=True).num_hidden_layers
    table = Table("set", "left out", "accepted", "cost", "drafted", "speed-up", box=None)
    rows: dict[str, Candidate] = {"best": result.best, "equal distances": result.uniform}
    for name, candidate in rows.items():
        table.add_row(
            name,
            f"{candidate.skip.share(num_layers):.0%}",
            f"{candidate.acceptance:.2f}",
            f"{candidate.draft_cost:.2f}",
            str(candidate.depth),
            f"{candidate.speedup:.2f}x",
        )
    output.print(table)
    output.print(f"{result.num_trials} sets tried in {result.seconds:.0f} s; {path}")
    if result.best.speedup <= 1:
        output.print("No set makes this model faster here; the drafter's gate will leave it off.")
