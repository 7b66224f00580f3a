"""Is the speed-up that replay and measured step times predict the one that is then measured?

Twelve prompts, three drafters, no cost gate, decoded greedily by the default model in float32 on
stock transformers. Predicted: N_emit * T_1 / (T_draft + T_verify(n)) over the steps of a replay of
the response, with step times measured by themselves between the runs. Measured: time from the first
token to the last, plain over drafted, medians of interleaved rounds. Both on one clock: the wall's,
or (on a machine that other jobs share) the processor time of one thread. Stages, each to be run
alone:

    OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 python benchmarks/predicted_vs_measured.py times
    ... predicted_vs_measured.py run --seconds 300     (both again until it says that all are done)
    ... predicted_vs_measured.py report                (no timing of the model; draft times are)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import freedraft
from freedraft import CandidateTree
from freedraft.drafters import create_drafter
from freedraft.integrations.budget.calibration_file import MEASURED, Calibration
from freedraft.integrations.budget.monotone import isotonic
from freedraft.integrations.default_model import load_model
from freedraft.verifier import TreeForward
from freedraft.workbench.bench.interleave import rotated, run_interleaved
from freedraft.workbench.bench.prediction import predict
from freedraft.workbench.bench.prompts import read_prompts
from freedraft.workbench.bench.run import Run
from freedraft.workbench.bench.transformers_arms import FreedraftArm
from freedraft.workbench.recorded_steps import record_steps

HERE = Path(__file__).parent
PROMPTS = HERE / "bench_prompts.jsonl"
DRAFTERS = ("ngram", "suffix", "blend")
PLAIN = "plain"
CONTEXTS = (128, 256, 512)
NODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
PERCENT = 25
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on and with."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "freedraft": freedraft.__version__,
        "date": date.today().isoformat(),
    }


def measure_times(arguments: argparse.Namespace, model: Any) -> None:
    """Time the steps of one request at each context, the numbers of nodes in turn; keep all times.

    The times of several calls add up: where other jobs slow the machine down now and then, calls
    between the runs of the prompts see the same of it as these do.
    """
    clock = CLOCKS[arguments.clock]
    taken = json.loads(arguments.samples.read_text()) if arguments.samples.exists() else {}
    generator = torch.Generator().manual_seed(0)
    for context in CONTEXTS:
        prompt = torch.randint(100, 40000, (context,), generator=generator).tolist()
        kept = taken.setdefault(str(context), {str(nodes): [] for nodes in NODES})
        target = TreeForward(model, capacity=context + 64 + (arguments.repeats + 1) * len(NODES))
        target.prefill([prompt])
        for repeat in range(arguments.repeats + 1):  # the first round warms up
            for nodes in rotated(NODES, 3 * repeat):
                tree = CandidateTree.from_chain(list(range(200, 200 + nodes)))
                begin = clock()
                target.forward([tree], [7]).argmax(-1).tolist()
                target.commit([[]])
                if repeat:
                    kept[str(nodes)].append(clock() - begin)
    arguments.samples.write_text(json.dumps(taken))


def calibration_of(arguments: argparse.Namespace) -> Calibration:
    """Return the lower quartiles of the times, made monotone, as a calibration.

    Other jobs can only make a step longer, so the lower quartile is what a step takes by itself.
    """
    taken = json.loads(arguments.samples.read_text())
    rows = [
        isotonic([np.percentile(taken[str(context)][str(nodes)], PERCENT) for nodes in NODES])
        for context in CONTEXTS
    ]
    return Calibration(
        "default",
        "transformers",
        f"{machine()['processor']}, {torch.get_num_threads()} threads",
        MEASURED,
        CONTEXTS,
        (1,),
        NODES,
        np.maximum.accumulate(np.array(rows)[:, None], axis=0),
        about=machine() | {"repeats": len(taken[str(CONTEXTS[0])]["0"]), "clock": arguments.clock},
    )


def run_prompts(arguments: argparse.Namespace, model: Any, prompts: dict[str, list[int]]) -> None:
    """Time the prompts that are not in the runs' file yet, as many as the seconds allow."""
    done = json.loads(arguments.runs.read_text()) if arguments.runs.exists() else {}
    arms = [
        FreedraftArm(
            drafter or PLAIN,
            model,
            drafter,
            max_nodes=arguments.max_nodes,
            cost_gate=False,
            clock=CLOCKS[arguments.clock],
        )
        for drafter in (None, *DRAFTERS)
    ]
    begin = time.perf_counter()
    for name, prompt_ids in prompts.items():
        if name in done or time.perf_counter() - begin > arguments.seconds:
            continue
        runs = run_interleaved(
            arms,
            prompt_ids,
            arguments.max_new_tokens,
            num_rounds=arguments.rounds,
            num_warmups=0 if done else 1,
            after_run=lambda: None,
        )
        done[name] = {arm: [asdict(run) for run in of_arm] for arm, of_arm in runs.items()}
        arguments.runs.write_text(json.dumps(done))
        print(name, {arm: round(decode_seconds(r), 2) for arm, r in runs.items()}, flush=True)
    print(f"{len(done)} of {len(prompts)} prompts are done")


def decode_seconds(runs: list[Run]) -> float:
    """Return the median time from the first token to the last."""
    return statistics.median(run.seconds - run.first_token_seconds for run in runs)


def compare(
    drafter: str,
    prompt_ids: list[int],
    runs: dict[str, list[Run]],
    times: Calibration,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Return the predicted and the measured speed-up of one prompt."""
    steps = record_steps(
        create_drafter(drafter),
        prompt_ids,
        runs[PLAIN][0].token_ids,
        max_nodes=arguments.max_nodes,
        clock=CLOCKS[arguments.clock],
    )
    predicted = predict(steps, times)
    measured = decode_seconds(runs[PLAIN]) / decode_seconds(runs[drafter])
    return {
        "drafter": drafter,
        "tokens": steps.num_tokens,
        "tokens_per_step": (steps.num_tokens - 1) / steps.num_steps,
        "steps_predicted": steps.num_steps,
        "steps_measured": runs[drafter][0].steps - 1,
        "predicted": predicted.speedup,
        "measured": measured,
        "error": predicted.speedup / measured - 1,
        "same_text": all(run.token_ids == runs[PLAIN][0].token_ids for run in runs[drafter]),
        "predicted_seconds": predicted.verify_seconds + predicted.draft_seconds,
        "measured_seconds": decode_seconds(runs[drafter]),
        "plain_predicted_seconds": predicted.plain_seconds,
        "plain_measured_seconds": decode_seconds(runs[PLAIN]),
    }


def report(arguments: argparse.Namespace, prompts: dict[str, list[int]]) -> None:
    """Compare all that was run with what is predicted; write the table and the picture."""
    times = calibration_of(arguments)
    times.save(arguments.times)
    rows = []
    for name, by_arm in json.loads(arguments.runs.read_text()).items():
        runs = {
            arm: [Run(**run | {"token_ids": tuple(run["token_ids"])}) for run in of_arm]
            for arm, of_arm in by_arm.items()
        }
        for drafter in DRAFTERS:
            row = compare(drafter, prompts[name], runs, times, arguments)
            rows.append({"prompt": name, **row})
            print(
                f"{name:>10} {drafter:<7} predicted {row['predicted']:5.2f}x measured "
                f"{row['measured']:5.2f}x error {row['error']:+6.1%} "
                f"{'same text' if row['same_text'] else 'OTHER TEXT'}"
            )
    errors = [abs(row["error"]) for row in rows]
    summary = {
        "pairs": len(rows),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "bias": statistics.median(row["error"] for row in rows),
    }
    print(summary)
    content = {"machine": machine(), "settings": settings(arguments), "summary": summary}
    arguments.json.write_text(json.dumps(content | {"rows": rows}, indent=1) + "\n")
    draw(rows, summary, arguments.plot)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the runs."""
    names = ("max_nodes", "max_new_tokens", "rounds", "clock", "threads")
    return {name: getattr(arguments, name) for name in names} | {"times": arguments.times.name}


def draw(rows: list[dict[str, Any]], summary: dict[str, float], path: Path) -> None:
    """Draw measured over predicted speed-ups."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.6, 5.2), layout="constrained")
    ends = np.array([0.5, 1.15 * max(max(row["predicted"], row["measured"]) for row in rows)])
    axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="0.9", label="within 10 %")
    axes.plot(ends, ends, color="0.5", linewidth=1)
    for drafter, marker in zip(DRAFTERS, "os^", strict=True):
        points = [row for row in rows if row["drafter"] == drafter]
        axes.scatter(
            [row["predicted"] for row in points],
            [row["measured"] for row in points],
            marker=marker,
            alpha=0.8,
            label=drafter,
        )
    axes.set(xlabel="predicted speed-up", ylabel="measured speed-up", xscale="log", yscale="log")
    ticks = [tick for tick in (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8) if tick <= ends[1]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
        axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_title(
        f"{summary['pairs']} pairs: median error {summary['median_error']:.1%}, "
        f"worst {summary['worst_error']:.1%}"
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("times", "run", "report"))
    parser.add_argument("--max-nodes", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=9, help="of each step time")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="start no prompt after that")
    results = HERE / "results"
    parser.add_argument("--times", type=Path, default=results / "predicted_vs_measured_times.json")
    parser.add_argument("--samples", type=Path, default=Path("predicted_vs_measured_times.json"))
    parser.add_argument("--runs", type=Path, default=Path("predicted_vs_measured_runs.json"))
    parser.add_argument("--json", type=Path, default=results / "predicted_vs_measured.json")
    parser.add_argument(
        "--plot", type=Path, default=HERE.parent / "docs/images/predicted-vs-measured.png"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = load_model("default", torch.float32)
    if arguments.stage == "times":
        with torch.inference_mode():
            measure_times(arguments, model)
        return
    prompts = {
        prompt.name: tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}],
            add_generation_prompt=True,
            return_dict=True,
        )["input_ids"]
        for prompt in read_prompts(PROMPTS)
    }
    if arguments.stage == "run":
        run_prompts(arguments, model, prompts)
    else:
        report(arguments, prompts)


if __name__ == "__main__":
    main()
