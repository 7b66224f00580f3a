"""Is vLLM's greedy output the same with freedraft in the corners of its scheduler?

Real vLLM on the CPU, float32, each case with and without freedraft in the same configuration:
prompts in chunks, preemption and resumption, prefix caching, the end of the context, numbers of
drafted tokens that depend on the batch, log-probabilities, structured output, stop strings.

    python benchmarks/vllm_cases.py --model FOLDER --json benchmarks/results/vllm_cases.json

Run it with the Python that has vLLM and freedraft.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_worker import FREEDRAFT, EngineProcess, read_prompts

PROMPTS = Path(__file__).with_name("vllm_prompts.jsonl")
NUM_SPECULATIVE_TOKENS = 12
LOGPROB_TOLERANCE = 1e-3  # float32, other batch shapes
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "maxItems": 4}},
    "required": ["names"],
}
BY_BATCH = [[1, 1, 8], [2, 4, 4], [5, 8, 0]]


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration.

    Attributes:
        engine: arguments of ``LLM``.
        sampling: of every request.
        speculative: further keys of the speculative configuration.
        rounds: how often the prompts are sent.
        is_met: names of counts that must not stay 0.
        batch_size: prompts at a time.
    """

    engine: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    rounds: int = 1
    is_met: tuple[str, ...] = ("freedraft_accepted_tokens_total",)
    batch_size: int = 8


CASES = {
    "prompts in chunks": Case({"max_num_batched_tokens": 160, "enable_chunked_prefill": True}),
    "preemption": Case(
        {"num_gpu_blocks_override": 26, "block_size": 128},
        {"max_tokens": 200},
        is_met=("freedraft_accepted_tokens_total", "vllm:num_preemptions_total"),
    ),
    "prefix caching": Case({"enable_prefix_caching": True}, rounds=2),
    "the end of the context": Case({"max_model_len": 512}, {"max_tokens": 400}),
    "numbers by batch": Case(speculative={"num_speculative_tokens_per_batch_size": BY_BATCH}),
    "log-probabilities": Case(sampling={"logprobs": 2}),
    "structured output": Case(sampling={"json_schema": SCHEMA}),
    "stop strings": Case(sampling={"stop": ["return", ". "]}),
    "penalties": Case(sampling={"repetition_penalty": 1.05, "frequency_penalty": 0.1}),
}


def run(case: Case, model: str, prompts: list[str], is_plain: bool, log: Path) -> dict[str, Any]:
    """Return the outputs of one engine, its log-probabilities and its last counts."""
    arguments = dict(case.engine)
    if not is_plain:
        arguments["speculative_config"] = {
            "model": FREEDRAFT,
            "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
            **case.speculative,
        }
        arguments["additional_config"] = {"freedraft": {"budget": "full"}}
    engine = EngineProcess(model, arguments, log)
    sampling = {"temperature": 0.0, "max_tokens": 64, **case.sampling}
    tokens, logprobs, counts = [], [], {}
    for _ in range(case.rounds):
        for start in range(0, len(prompts), case.batch_size):
            part = prompts[start : start + case.batch_size]
            answer = engine.ask(prompts=part, sampling=[sampling] * len(part))
            tokens += [row[0] for row in answer["token_ids"]]
            logprobs += [value for row in answer["logprobs"] for one in row for value in one]
            counts = answer["counts"]
    engine.close()
    return {"token_ids": tokens, "logprobs": logprobs, "counts": counts}


def compare(case: Case, plain: dict[str, Any], drafted: dict[str, Any]) -> dict[str, Any]:
    """Return how many outputs are the same, and what else is wrong."""
    pairs = list(zip(plain["token_ids"], drafted["token_ids"], strict=True))
    same = sum(a == b for a, b in pairs)
    counts = drafted["counts"]
    problems = [f"{name} is 0" for name in case.is_met if not counts.get(name)]
    if same < len(pairs):
        problems.append(f"{len(pairs) - same} outputs differ")
    elif plain["logprobs"]:
        gaps = zip(plain["logprobs"], drafted["logprobs"], strict=True)
        largest = max(abs(a - b) for a, b in gaps)
        if largest > LOGPROB_TOLERANCE:
            problems.append(f"log-probabilities differ by {largest:.2g}")
    if counts["freedraft_switched_off_requests_total"]:
        problems.append("requests were switched off")
    return {
        "outputs": len(pairs),
        "identical": same,
        "drafted": counts["freedraft_drafted_tokens_total"],
        "accepted": counts["freedraft_accepted_tokens_total"],
        "preemptions": counts.get("vllm:num_preemptions_total", 0.0),
        "problems": problems,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", default=str(PROMPTS))
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--logs", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    # four of each kind
    prompts = [row["prompt"] for row in read_prompts(arguments.prompts)][::2]
    report: dict[str, Any] = {"cases": {}}
    if arguments.json and arguments.json.exists():
        report = json.loads(arguments.json.read_text())
    for name in arguments.cases:
        case = CASES[name]
        log = arguments.logs / f"case_{name.replace(' ', '_')}.log"
        plain = run(case, arguments.model, prompts, True, log)
        drafted = run(case, arguments.model, prompts, False, log)
        report["cases"][name] = compare(case, plain, drafted)
        print(name, report["cases"][name], flush=True)
        if arguments.json:
            report["machine"] = platform.machine()
            report["date"] = time.strftime("%Y-%m-%d")
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if any(case["problems"] for case in report["cases"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
