"""One vLLM engine in a process of its own, which generates what it is asked to over its pipes.

`EngineProcess` is the asking side; the other side is this file run as a script, by the Python that
has vLLM. Each line in is a job, each line out its answer, both JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FREEDRAFT = "freedraft.integrations.vllm_adapter.FreedraftProposer"
COLD = {"freedraft": {"sharing": "none"}}  # no request learns from another
METHODS: dict[str, dict[str, Any]] = {
    "off": {},
    "ngram 5-5": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 16}},
    "ngram 2-5": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 16,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 5,
        }
    },
    "suffix": {
        "speculative_config": {
            "method": "suffix",
            "num_speculative_tokens": 16,
            "suffix_decoding_max_cached_requests": 0,  # cold, as freedraft is
        }
    },
    "freedraft": {
        "speculative_config": {"model": FREEDRAFT, "num_speculative_tokens": 16},
        "additional_config": COLD,
    },
    "freedraft 32": {
        "speculative_config": {"model": FREEDRAFT, "num_speculative_tokens": 32},
        "additional_config": COLD,
    },
}
"""Arguments of ``LLM`` by method; each drafts from its own request only."""
KEPT_COUNTS = (
    "vllm:num_preemptions_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:generation_tokens_total",
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
}


class EngineProcess:
    """A vLLM engine that another process runs; jobs go to it one at a time."""

    def __init__(self, model: str, arguments: dict[str, Any], log: Path) -> None:
        """Start the process; the first job waits until the engine is up.

        Args:
            model: folder or id of the model.
            arguments: of ``LLM``, beside the model.
            log: where its standard error goes.
        """
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, model, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **ENVIRONMENT},
            )

    def ask(self, **job: Any) -> dict[str, Any]:
        """Return the answer to one job.

        Raises:
            RuntimeError: the engine has died; its log says why.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):  # vLLM prints a thing or two itself
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"the engine ended with {self._process.wait()}")

    def close(self) -> None:
        """End the process; one that has died already is fine."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def read_prompts(path: str | Path) -> list[dict[str, str]]:
    """Return the prompts of a JSONL file: id, workload, prompt."""
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def make_parameters(values: dict[str, Any]) -> Any:
    """Return vLLM's sampling parameters; ``json_schema`` stands for a structured output."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    values = dict(values)
    schema = values.pop("json_schema", None)
    if schema is not None:
        values["structured_outputs"] = StructuredOutputsParams(json=schema)
    return SamplingParams(**values)


def read_counts() -> dict[str, float]:
    """Return this process's counts by name, labels dropped."""
    from prometheus_client import REGISTRY

    counts: dict[str, float] = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith("freedraft_") or sample.name in KEPT_COUNTS:
                counts[sample.name] = counts.get(sample.name, 0.0) + sample.value
    return counts


def chosen_logprobs(outputs: list[Any]) -> list[list[float]]:
    """Return the log-probabilities of the emitted tokens, where they were asked for."""
    return [
        [step[token].logprob for token, step in zip(one.token_ids, one.logprobs, strict=True)]
        for one in outputs
        if one.logprobs
    ]


def decode_seconds(metrics: list[Any]) -> float:
    """Return the time from the first request's first token to the last request's last one."""
    return float(max(m.last_token_ts for m in metrics) - min(m.first_token_ts for m in metrics))


def serve(model: str, arguments: dict[str, Any]) -> None:
    """Answer jobs from standard input until it ends."""
    from vllm import LLM

    base = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_num_seqs": 8,
        "max_model_len": 2048,
        "kv_cache_memory_bytes": 512 << 20,
        "disable_log_stats": False,
        "enable_prefix_caching": False,  # every round computes the whole prompt
    }
    llm = LLM(model, **{**base, **arguments})
    for line in sys.stdin:
        job = json.loads(line)
        chats = [[{"role": "user", "content": prompt}] for prompt in job["prompts"]]
        parameters = [make_parameters(values) for values in job["sampling"]]
        started_at, cpu_at = time.perf_counter(), time.process_time()
        outputs = llm.chat(chats, parameters, use_tqdm=False)
        answer = {
            "seconds": time.perf_counter() - started_at,
            "cpu_seconds": time.process_time() - cpu_at,
            "decode_seconds": decode_seconds([output.metrics for output in outputs]),
            "token_ids": [[list(one.token_ids) for one in output.outputs] for output in outputs],
            "logprobs": [chosen_logprobs(output.outputs) for output in outputs],
            "counts": read_counts(),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
