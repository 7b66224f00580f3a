"""How long does a proposer take a step inside vLLM, with many long requests at once?

Real vLLM on the CPU with a tiny random model, so that 64 requests of 32,768 tokens fit: what is
timed is the proposer's call in the runner, which does not depend on the model. The prompts are real
text (this repository's), tokenized by the given tokenizer, and share all but their last tokens, so
that prefix caching computes them once. One process a method, one after the other.

    python benchmarks/vllm_propose_time.py --tokenizer FOLDER --json FILE

Run it with the Python that has vLLM and freedraft.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm_worker import ENVIRONMENT, METHODS

ROOT = Path(__file__).parents[1]
SHARED = {"freedraft": {"budget": "full"}}
CASES: dict[str, dict[str, Any]] = {
    "ngram 5-5": METHODS["ngram 5-5"],
    "ngram 2-5": METHODS["ngram 2-5"],
    "freedraft ngram": {
        **METHODS["freedraft"],
        "additional_config": {"freedraft": {"budget": "full", "drafter": "ngram"}},
    },
    "freedraft blend": {**METHODS["freedraft"], "additional_config": SHARED},
    "freedraft blend, measured": {**METHODS["freedraft"], "additional_config": {"freedraft": {}}},
}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def text_tokens(tokenizer: str, num_tokens: int) -> list[int]:
    """Return that many tokens of this repository's Python files, over again if need be."""
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json")).encode
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        for path in sorted(ROOT.glob("*/*.py")):
            tokens += encode(path.read_text(encoding="utf-8")).ids
            if len(tokens) >= num_tokens:
                break
    return tokens[:num_tokens]


def run_case(case: str, tokenizer: str, batch: int, context: int, num_steps: int) -> dict[str, Any]:
    """Return the proposer's times in one engine."""
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_num_seqs=batch,
            max_model_len=context + num_steps + 64,
            max_num_batched_tokens=8192,
            enable_prefix_caching=True,
            **CASES[case],
        )
    core = llm.llm_engine.engine_core.engine_core
    drafter = core.model_executor.driver_worker.worker.model_runner.drafter
    propose, times = drafter.propose, []

    def timed(*arguments: Any, **named: Any) -> Any:
        rows = next(a for a in arguments if isinstance(a, list))
        started_at, cpu_at = time.perf_counter(), time.thread_time()
        drafts = propose(*arguments, **named)
        cpu_seconds = time.thread_time() - cpu_at
        seconds = time.perf_counter() - started_at
        num_rows = sum(1 for row in rows if row)
        times.append((num_rows, seconds, cpu_seconds, sum(map(len, drafts))))
        return drafts

    drafter.propose = timed
    base = text_tokens(tokenizer, context)
    tail = 64
    prompts = [
        {"prompt_token_ids": base[: context - tail] + base[row * tail : (row + 1) * tail]}
        for row in range(batch)
    ]
    parameters = SamplingParams(
        temperature=0, max_tokens=num_steps, ignore_eos=True, detokenize=False
    )
    llm.generate(prompts[:1], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
    times.clear()
    llm.generate(prompts, parameters, use_tqdm=False)
    full = [call for call in times if call[0] == batch]
    milliseconds = sorted(1000 * seconds for _, seconds, _, _ in full)
    # of the calling thread: Numba's kernels run in it, and other work on the machine disturbs less
    cpu_milliseconds = sorted(1000 * cpu_seconds for _, _, cpu_seconds, _ in full)
    return {
        "steps": len(full),
        "median_ms": round(statistics.median(milliseconds), 3),
        "p90_ms": round(milliseconds[int(0.9 * len(milliseconds))], 3),
        "max_ms": round(milliseconds[-1], 3),
        "median_cpu_ms": round(statistics.median(cpu_milliseconds), 3),
        "max_cpu_ms": round(cpu_milliseconds[-1], 3),
        "drafted_per_request": round(sum(call[3] for call in full) / len(full) / batch, 2),
        "slowest_call_with_prompts_ms": round(1000 * max(call[1] for call in times), 1),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=CASES, help="this case, in this process")
    arguments = parser.parse_args()
    sizes = (arguments.batch, arguments.context, arguments.steps)
    if arguments.one:
        print("RESULT " + json.dumps(run_case(arguments.one, arguments.tokenizer, *sizes)))
        return
    report: dict[str, Any] = {"batch": arguments.batch, "context": arguments.context, "cases": {}}
    for case in arguments.cases:
        command = [sys.executable, __file__, "--tokenizer", arguments.tokenizer, "--one", case]
        command += ["--batch", str(sizes[0]), "--context", str(sizes[1]), "--steps", str(sizes[2])]
        environment = {**os.environ, **ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1"}
        output = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        line = next(line for line in output.splitlines() if line.startswith("RESULT "))
        report["cases"][case] = json.loads(line.removeprefix("RESULT "))
        print(case, report["cases"][case], flush=True)
    report["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    report["date"] = time.strftime("%Y-%m-%d")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
