"""Does a model draft for itself with layers left out, and would that pay?

In pieces (several at once, if you like), each of which adds to results/layer_skip.json:

    python benchmarks/layer_skip.py times      the sub-layers and steps of 1 to 17 tokens, timed
    python benchmarks/layer_skip.py search     the best set under the measured and under flat times
    python benchmarks/layer_skip.py curve      acceptance and cost against the share left out
    python benchmarks/layer_skip.py arms       generation: tokens a step, predicted speed-up
    python benchmarks/layer_skip.py gate       what the gate does with it, by the clock
    python benchmarks/layer_skip.py plot       docs/images/layer_skip.png of curve

`times` and `gate` want a machine for themselves; the others count. "Measured" predicts with this
machine's times, "flat" with steps that cost the same up to 64 nodes, as on a data-centre GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

from model_drafting_runs import (
    GREEDY,
    SAMPLING,
    load_for_benchmark,
    machine,
    plain_texts,
    print_rows,
    read_prompts,
    read_results,
    run_arm,
    update_results,
)

import freedraft
from freedraft.drafters import Drafter
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.layer_skip import LayerSkipConfig, LayerSkipDrafter, SkipSet
from freedraft.drafters.layer_skip.objective import SubLayerCosts, predicted_speedup
from freedraft.drafters.model_drafting import ModelDraftConfig
from freedraft.drafters.ngram import NgramDrafter
from freedraft.workbench.layer_skip_costs import measure_times
from freedraft.workbench.layer_skip_search import (
    AcceptanceMeter,
    Candidate,
    ScoredText,
    search_skip_set,
)

NAME = "layer_skip.json"
MAX_NODES = 16
FLAT = (1.0,) * (MAX_NODES + 1)
SCORED = 48
CHAIN = ModelDraftConfig(max_depth=4, confidence=0.4, gate=False)
TREE = ModelDraftConfig(max_depth=3, width=2, branches=2, confidence=0.2, gate=False)
DRAWN = ModelDraftConfig(max_depth=4, confidence=0.4, temperature=0.8, gate=False)
SHAPES = {
    "greedy": (GREEDY, {"chain": CHAIN, "tree": TREE}),
    "temperature 0.8": (SAMPLING, {"chain": CHAIN, "drawn chain": DRAWN}),
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


@cache
def loaded(source: str) -> tuple[Any, Any]:
    return load_for_benchmark(source)


@cache
def texts_of_model(source: str, prompts: str | None) -> list[list[int]]:
    """Return the model's own greedy answers behind their prompts."""
    model, tokenizer = loaded(source)
    texts = []
    for prompt in read_prompts(prompts, tokenizer, []):
        result = freedraft.generate(
            model, prompt.token_ids, max_new_tokens=2 * SCORED, do_sample=False, return_dict=True
        )
        texts.append(prompt.token_ids + result.token_ids[0])
    return texts


def times(args: argparse.Namespace) -> None:
    model, tokenizer = loaded(args.model)
    context = read_prompts(args.prompts, tokenizer, [])[0].token_ids
    measured = measure_times(model, context, max_nodes=MAX_NODES, rounds=25)
    update_results(NAME, {"machine": machine(), "times": asdict(measured)})
    print(measured)


def search(args: argparse.Namespace) -> None:
    """Search on the first half of each answer, judge on the second."""
    model, _ = loaded(args.model)
    texts = texts_of_model(args.model, args.prompts)
    seen = AcceptanceMeter(model, [ScoredText(text[:-SCORED], SCORED) for text in texts])
    held_out = AcceptanceMeter(model, [ScoredText(text, SCORED) for text in texts])
    kept = read_results(NAME)["times"]
    costs = SubLayerCosts(**kept["costs"])

    def judged(candidate: Candidate, step_costs: tuple[float, ...]) -> dict[str, Any]:
        acceptance = held_out.acceptance(candidate.skip)
        speedup, _ = predicted_speedup(acceptance, candidate.draft_cost, step_costs)
        row = {**asdict(candidate), "skip": candidate.skip.to_dict()}
        return row | {"held_out_acceptance": acceptance, "held_out_speedup": speedup}

    found: dict[str, Any] = {}
    for name, step_costs in (("measured", tuple(kept["step_costs"])), ("flat", FLAT)):
        result = search_skip_set(seen, costs, step_costs[:9], max_seconds=30 * args.minutes)
        found[name] = {
            "best": judged(result.best, step_costs[:9]),
            "uniform": judged(result.uniform, step_costs[:9]),
            "trials": result.num_trials,
            "seconds": result.seconds,
            "curve": result.curve,
        }
        update_results(NAME, {"search": found})
        print(name, found[name])


def curve(args: argparse.Namespace) -> None:
    model, _ = loaded(args.model)
    texts = texts_of_model(args.model, args.prompts)
    meter = AcceptanceMeter(model, [ScoredText(text, SCORED) for text in texts])
    kept = read_results(NAME)
    costs = SubLayerCosts(**kept["times"]["costs"])
    steps = kept["times"]["step_costs"][:9]
    layers = meter.sublayers.num_layers
    families: dict[str, list[SkipSet]] = {
        "layers at equal distances": [SkipSet.uniform(s / 20, layers) for s in range(1, 13)],
        "attentions at equal distances": [
            SkipSet(SkipSet.uniform(s / 10, layers).attention, frozenset()) for s in range(1, 10)
        ],
        "the last layers": [SkipSet.exit_at(n, layers) for n in range(layers - 1, layers // 2, -2)],
        "found, measured times": [skip_of(kept["search"]["measured"]["best"])],
        "found, flat times": [skip_of(kept["search"]["flat"]["best"])],
    }
    rows = []
    for family, sets in families.items():
        for skip in dict.fromkeys(sets):
            acceptance, cost = meter.acceptance(skip), costs.draft_cost(skip)
            rows.append(
                {
                    "family": family,
                    "share": skip.share(layers),
                    "acceptance": acceptance,
                    "cost": cost,
                    "speedup_measured": predicted_speedup(acceptance, cost, steps)[0],
                    "speedup_flat": predicted_speedup(acceptance, cost, FLAT)[0],
                }
            )
    update_results(NAME, {"curve": rows})
    print_rows(rows, tuple(rows[0]))


def skip_of(found: dict[str, Any]) -> SkipSet:
    return SkipSet.of(found["skip"]["attention"], found["skip"]["mlp"])


def arms(args: argparse.Namespace) -> None:
    model, tokenizer = loaded(args.model)
    prompts = read_prompts(args.prompts, tokenizer, args.only)
    kept = read_results(NAME)
    costs = SubLayerCosts(**kept["times"]["costs"])
    found = skip_of(kept["search"]["measured"]["best"])
    rows: list[dict[str, Any]] = kept.get("arms", [])
    done = {(row["workload"], row["decoding"], row["arm"]) for row in rows}
    for workload in dict.fromkeys(prompt.workload for prompt in prompts):
        chosen = [prompt for prompt in prompts if prompt.workload == workload]
        for decoding, (options, shapes) in SHAPES.items():
            plain: dict[str, list[int]] | None = None
            if options is GREEDY:
                plain = plain_texts(model, chosen, args.new_tokens)
            for arm, (make_drafter, cost) in arms_of(shapes, found, costs).items():
                if (workload, decoding, arm) in done:
                    continue
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
                rows.append(row | run.row(cost, kept["times"]["step_costs"]))
                update_results(NAME, {"arms": rows})
                print_rows(rows[-1:], COLUMNS)


def arms_of(
    shapes: dict[str, ModelDraftConfig], found: SkipSet, costs: SubLayerCosts
) -> dict[str, tuple[Callable[[], Drafter], float]]:
    """Return what makes each arm's drafter, and the cost of one of its forwards."""
    layers = costs.num_layers
    sets = {
        "found": found,
        "3 layers of 30": SkipSet.uniform(0.1, layers),
    }
    drafters: dict[str, tuple[Callable[[], Drafter], float]] = {
        "ngram": (NgramDrafter, 0.0),
        "blend": (partial(freedraft.create_drafter, "blend"), 0.0),
    }
    for shape, config in shapes.items():
        for name, skip in sets.items():
            make = partial(LayerSkipDrafter, LayerSkipConfig(skip, config))
            drafters[f"{name}, {shape}"] = (make, costs.draft_cost(skip))

    def cascade() -> Drafter:
        skipper = LayerSkipDrafter(LayerSkipConfig(found, CHAIN))
        # By this clock nothing costs time, so it is always asked; the table predicts its cost.
        return BlendDrafter([NgramDrafter()], fallbacks=[skipper], clock=lambda: 0.0)

    drafters["ngram, then found"] = (cascade, costs.draft_cost(found))
    return drafters


def gate(args: argparse.Namespace) -> None:
    """Plain decoding and layer skip with its gate, in turn; medians of seconds a token."""
    model, tokenizer = loaded(args.model)
    prompt = read_prompts(args.prompts, tokenizer, ["chat"])[0]
    skip = skip_of(read_results(NAME)["search"]["measured"]["best"])
    seconds: dict[str, list[float]] = {"plain": [], "gated": [], "always": []}
    drafted: dict[str, int] = {}
    draft = ModelDraftConfig(max_depth=4)
    for number in range(args.rounds):
        ways: dict[str, Drafter | None] = {
            "plain": None,
            "gated": LayerSkipDrafter(LayerSkipConfig(skip, draft)),
            "always": LayerSkipDrafter(LayerSkipConfig(skip, CHAIN)),
        }
        for way in list(ways)[number % 3 :] + list(ways)[: number % 3]:
            begin = time.perf_counter()
            result = freedraft.generate(
                model,
                prompt.token_ids,
                drafter=ways[way],
                max_new_tokens=args.new_tokens,
                do_sample=False,
                return_dict=True,
            )
            taken = time.perf_counter() - begin
            seconds[way].append(taken / result.statistics.emitted)
            drafted[way] = result.statistics.drafted
    medians = {way: sorted(values)[len(values) // 2] for way, values in seconds.items()}
    part = {
        "seconds_per_token": seconds,
        "drafted": drafted,
        "speedup": {way: medians["plain"] / median for way, median in medians.items()},
        "new_tokens": args.new_tokens,
    }
    update_results(NAME, {"gate": part})
    print(part["speedup"], drafted)


def plot(args: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = read_results(NAME)["curve"]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        shares = [100 * row["share"] for row in own]
        style = "-o" if len(own) > 1 else "D"
        acceptances = [row["acceptance"] for row in own]
        (line,) = axes[0].plot(shares, acceptances, style, markersize=4, label=family)
        if len(own) > 1:
            axes[0].plot(shares, [row["cost"] for row in own], "--", color=line.get_color(), lw=1)
        speedups = [row["speedup_measured"] for row in own]
        axes[1].plot(shares, speedups, style, markersize=4, color=line.get_color())
        flat = [row["speedup_flat"] for row in own]
        axes[1].plot(shares, flat, ":" if len(own) > 1 else "s", color=line.get_color(), ms=4)
    axes[0].set(xlabel="sub-layers left out, %", ylabel="acceptance; dashed: cost of a draft")
    axes[0].legend(fontsize=8)
    axes[1].set(xlabel="sub-layers left out, %", ylabel="predicted speed-up; dotted: flat times")
    axes[1].axhline(1, color="grey", lw=0.8)
    target = Path(__file__).parents[1] / "docs" / "images" / "layer_skip.png"
    figure.savefig(target, dpi=110)


PIECES = {
    "times": times,
    "search": search,
    "curve": curve,
    "arms": arms,
    "gate": gate,
    "plot": plot,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pieces", nargs="+", choices=PIECES)
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", help="JSONL (id, workload, prompt); the demo's if absent")
    parser.add_argument("--only", nargs="*", default=[], help="ids of prompts")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0, help="of two searches together")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for piece in args.pieces:
        PIECES[piece](args)


if __name__ == "__main__":
    main()
