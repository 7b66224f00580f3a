"""What does a draft model bring, beside drafters that need none?

There is one real model at hand, so it is shown from two sides:

    python benchmarks/draft_model.py scripted --traces FOLDER
        SmolLM2-135M drafts for larger models that answer as recorded: a scripted target, greedy.
    python benchmarks/draft_model.py sibling
        SmolLM2-135M is the target, and a copy with its layers' weights rounded to 4 bits drafts:
        real distributions on both sides, greedy and at temperature 0.8, chosen and drawn.
    python benchmarks/draft_model.py model_free
        The same target and prompts, and drafters without a model.

All count; speeds are predicted. The draft cost of `scripted` is the ratio of the parameters to
read (135 million for 7.6 billion, 0.018); that of `sibling` is 1 as both models are of one size,
and 0.1 for a draft model of a tenth of it. "Measured" uses the step times of layer_skip.json (this
machine), "flat" steps that cost the same up to 64 nodes, as on a data-centre GPU. Adds to
results/draft_model.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from model_drafting_runs import (
    GREEDY,
    SAMPLING,
    ForwardCounter,
    Run,
    load_for_benchmark,
    machine,
    plain_texts,
    print_rows,
    read_prompts,
    read_results,
    run_arm,
    update_results,
)
from torch import nn

import freedraft
from freedraft.drafters import Drafter
from freedraft.drafters.draft_model import DraftModelDrafter, VocabularyMap
from freedraft.drafters.model_drafting import ModelDraftConfig
from freedraft.drafters.ngram import NgramDrafter
from freedraft.integrations.default_model import load_model
from freedraft.verifier import TreeForward
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path
from freedraft.verifier.tree_growth import TreeGrowth
from freedraft.workbench.replay import replay_traces
from freedraft.workbench.traces import TokenTrace, read_traces

NAME = "draft_model.json"
SCRIPTED_COST = 0.1345 / 7.6
SIBLING_COST = 0.1
MAX_NODES = 16
FULL: dict[str, Any] = {
    "confidence": 0.0,
    "gate": False,
}
SHAPES = {
    "chain of 4": ModelDraftConfig(max_depth=4, **FULL),
    "chain of 8, stopping": ModelDraftConfig(max_depth=8, target_acceptance=0.7, gate=False),
    "tree": ModelDraftConfig(max_depth=4, width=3, branches=2, **FULL),
}
DRAWN = {
    "drawn chain of 4": ModelDraftConfig(max_depth=4, temperature=0.8, **FULL),
    "drawn tree": ModelDraftConfig(max_depth=4, width=2, branches=2, temperature=0.8, **FULL),
}
DECODINGS: dict[str, tuple[dict[str, Any], dict[str, ModelDraftConfig]]] = {
    "greedy": (GREEDY, {shape: SHAPES[shape] for shape in ("chain of 4", "tree")}),
    "temperature 0.8": (SAMPLING, {"chain of 4": SHAPES["chain of 4"], **DRAWN}),
}
COLUMNS = (
    "workload",
    "decoding",
    "arm",
    "tokens_per_step",
    "drafted_per_step",
    "draft_cost_per_step",
    "speedup_measured",
    "speedup_flat",
)
MODEL_FREE = ("ngram", "suffix", "recycling", "lookahead")
SOURCES = {"edit": "edit_block.jsonl", "rag": "rag.jsonl", "chat": "chat.jsonl"}


def drafter_of(
    model: Any, vocabulary: VocabularyMap, config: ModelDraftConfig
) -> DraftModelDrafter:
    return DraftModelDrafter(lambda: TreeGrowth(model, TreeForward(model)), vocabulary, config)


def scripted(args: argparse.Namespace) -> None:
    model, tokenizer = load_for_benchmark(args.model)
    size = model.config.vocab_size
    vocabulary = VocabularyMap.identity(size, size)
    steps = read_results("layer_skip.json")["times"]["step_costs"]
    drafters: dict[str, Callable[[], Drafter]] = {
        "ngram": NgramDrafter,
        "blend": partial(freedraft.create_drafter, "blend"),
        **{
            f"draft model, {shape}": partial(drafter_of, model, vocabulary, config)
            for shape, config in SHAPES.items()
        },
    }
    rows: list[dict[str, Any]] = []
    for workload, file in SOURCES.items():
        traces = read_token_traces(Path(args.traces) / file, tokenizer, args)
        for arm, make_drafter in drafters.items():
            with ForwardCounter() as forwards, torch.no_grad():
                result = replay_traces(traces, make_drafter, max_nodes=MAX_NODES, warm=False)
            run = Run(
                result.steps,
                result.tokens,
                round(result.drafted_per_step * result.steps),
                result.tokens - result.steps,
                forwards.count,
                None,
            )
            row = {"workload": workload, "decoding": "scripted", "arm": arm}
            rows.append(row | run.row(SCRIPTED_COST, steps) | {"calib": result.calibration_error})
            update_results(NAME, {"machine": machine(), "scripted": rows})
            print_rows(rows[-1:], COLUMNS)


def read_token_traces(path: Path, tokenizer: Any, args: argparse.Namespace) -> list[TokenTrace]:
    """Return the first traces, the prompt as a user's turn, both sides cut to a length."""
    traces = []
    for trace in read_traces(path)[:: args.stride][: args.num_traces]:
        turn = [{"role": "user", "content": trace.prompt}]
        text = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
        prompt = tokenizer.encode(text, add_special_tokens=False)[-args.max_prompt :]
        response = tokenizer.encode(trace.response, add_special_tokens=False)
        ids = [torch.tensor(part).int().numpy() for part in (prompt, response[: args.new_tokens])]
        traces.append(TokenTrace(trace.trace_id, trace.workload, trace.session, *ids))
    return traces


def rounded(source: str) -> Any:
    """Return the model with the weights of its layers rounded to 4 bits, by rows."""
    model, _ = load_model(source, torch.float32)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and name != "lm_head":
                scale = module.weight.abs().amax(1, keepdim=True) / 7
                module.weight.copy_((module.weight / scale).round() * scale)
    enable_cpu_fast_path(model, allow_extra_memory=True)
    return model


def sibling(args: argparse.Namespace) -> None:
    model, tokenizer = load_for_benchmark(args.model)
    draft = rounded(args.model)
    prompts = read_prompts(args.prompts, tokenizer, args.only)
    vocabulary = VocabularyMap.identity(model.config.vocab_size, draft.config.vocab_size)
    steps = read_results("layer_skip.json")["times"]["step_costs"]
    rows: list[dict[str, Any]] = []
    for workload in dict.fromkeys(prompt.workload for prompt in prompts):
        chosen = [prompt for prompt in prompts if prompt.workload == workload]
        for decoding, (options, shapes) in DECODINGS.items():
            plain: dict[str, list[int]] | None = None
            if options is GREEDY:
                plain = plain_texts(model, chosen, args.new_tokens)
            drafters: dict[str, Callable[[], Drafter]] = {
                "blend": partial(freedraft.create_drafter, "blend"),
                **{
                    f"draft model, {shape}": partial(drafter_of, draft, vocabulary, config)
                    for shape, config in shapes.items()
                },
            }
            for arm, make_drafter in drafters.items():
                run = run_arm(
                    model,
                    make_drafter,
                    chosen,
                    options,
                    new_tokens=args.new_tokens,
                    max_nodes=MAX_NODES,
                    plain=plain,
                )
                row = {"workload": workload, "decoding": decoding, "arm": arm}
                row |= run.row(SIBLING_COST, steps)
                for times in ("measured", "flat"):
                    same_size = run.row(1.0, steps)[f"speedup_{times}"]
                    row[f"speedup_{times}_same_size"] = same_size
                rows.append(row)
                update_results(NAME, {"machine": machine(), "sibling": rows})
                print_rows(rows[-1:], COLUMNS)


def model_free(args: argparse.Namespace) -> None:
    model, tokenizer = load_for_benchmark(args.model)
    prompts = read_prompts(args.prompts, tokenizer, args.only)
    steps = read_results("layer_skip.json")["times"]["step_costs"]
    rows: list[dict[str, Any]] = []
    for decoding, (options, _) in DECODINGS.items():
        for prompt in prompts:
            plain: dict[str, list[int]] | None = None
            if options is GREEDY:
                plain = plain_texts(model, [prompt], args.new_tokens)
            for arm in MODEL_FREE:
                run = run_arm(
                    model,
                    partial(freedraft.create_drafter, arm),
                    [prompt],
                    options,
                    new_tokens=args.new_tokens,
                    max_nodes=MAX_NODES,
                    plain=plain,
                )
                row = {"workload": prompt.workload, "decoding": decoding, "arm": arm}
                rows.append(row | run.row(0.0, steps))
                update_results(NAME, {"machine": machine(), "model_free": rows})
                print_rows(rows[-1:], COLUMNS)


PIECES = {"scripted": scripted, "sibling": sibling, "model_free": model_free}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pieces", nargs="+", choices=PIECES)
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", help="JSONL (id, workload, prompt); the demo's if absent")
    parser.add_argument("--only", nargs="*", default=[], help="ids of prompts")
    parser.add_argument("--traces", help="folder with edit_block.jsonl, rag.jsonl and chat.jsonl")
    parser.add_argument("--num-traces", type=int, default=3)
    parser.add_argument("--stride", type=int, default=7, help="every so many traces are taken")
    parser.add_argument("--max-prompt", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    for piece in args.pieces:
        PIECES[piece](args)


if __name__ == "__main__":
    main()
