"""Does vLLM's server keep well under mixed traffic with freedraft on?

64 streaming requests at once, of all kinds (plain, top_k, top_p, log-probabilities, a JSON schema,
a cache salt, drafts switched off), a quarter of them aborted on the way, in several waves. Then the
server is idle and its counts are read. It must show no error, counts that add up, and a pool within
its bound.

    python benchmarks/vllm_server.py --model FOLDER --json benchmarks/results/vllm_server.json

Run it with the Python that has vLLM and freedraft.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from vllm_worker import ENVIRONMENT, FREEDRAFT, read_prompts

PROMPTS = Path(__file__).with_name("vllm_prompts.jsonl")
PORT = 8123
MEMORY_MIB = 32
NUM_SPECULATIVE_TOKENS = 12
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "top_k": {"temperature": 0.8, "top_k": 20},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "logprobs": {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    "json schema": {
        "temperature": 0,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True},
        },
    },
    "salted": {"temperature": 0, "cache_salt": "tenant"},
    "drafts off": {"temperature": 0, "vllm_xargs": {"freedraft_max_tokens": 0}},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.1, "presence_penalty": 0.2},
}


def start_server(model: str, log: Path, plain: bool) -> subprocess.Popen[bytes]:
    """Start the server; it answers at ``/health`` when it is up."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", "model", "--port", str(PORT), "--dtype", "float32"]
    command += ["--enforce-eager", "--max-num-seqs", "16", "--max-model-len", "2048"]
    if not plain:
        speculative = {"model": FREEDRAFT, "num_speculative_tokens": NUM_SPECULATIVE_TOKENS}
        command += ["--speculative-config", json.dumps(speculative)]
        settings = {"freedraft": {"memory_mib": MEMORY_MIB, "budget": "full"}}
        command += ["--additional-config", json.dumps(settings)]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO"}
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]  # the engine in a process of its own
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)


async def wait_until_up(session: aiohttp.ClientSession, seconds: float) -> None:
    """Wait for the server.

    Raises:
        TimeoutError: it did not come up.
    """
    stop_at = time.monotonic() + seconds
    while time.monotonic() < stop_at:
        try:
            async with session.get("/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(1)
    raise TimeoutError("the server did not come up; its log says why")


async def request(
    session: aiohttp.ClientSession, prompt: str, kind: str, max_tokens: int, abort_after: int | None
) -> str:
    """Stream one request; return "done", "aborted", or what went wrong."""
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **KINDS[kind],
    }
    text, usage, events = "", None, 0
    async with session.post("/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            return f"status {answer.status}: {(await answer.text())[:200]}"
        async for line in answer.content:
            if not line.startswith(b"data: ") or b"[DONE]" in line:
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return f"error: {event['error']}"
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
            events += 1
            if abort_after is not None and events >= abort_after:
                return "aborted"
    if usage is None or not 0 < usage["completion_tokens"] <= max_tokens:
        return f"usage {usage}"
    return "done" if kind != "json schema" else check_json(text, usage, max_tokens)


def check_json(text: str, usage: dict[str, int], max_tokens: int) -> str:
    """Return "done" for text of the schema, or text that was cut at its limit."""
    if usage["completion_tokens"] >= max_tokens:
        return "done"
    try:
        value = json.loads(text)
    except ValueError:
        return f"expected JSON, got {text[:80]!r}"
    fits = set(value) == {"name", "count"} and isinstance(value["count"], int)
    return "done" if fits else f"expected the schema, got {text[:80]!r}"


async def read_counts(session: aiohttp.ClientSession) -> dict[str, float]:
    """Return vLLM's and freedraft's counts by name, labels dropped."""
    async with session.get("/metrics") as answer:
        text = await answer.text()
    pattern = r"^((?:freedraft_|vllm:)\w+)(?:\{[^}]*\})? ([\d.e+-]+)$"
    return {name: float(value) for name, value in re.findall(pattern, text, re.MULTILINE)}


def find_problems(counts: dict[str, float], num_aborted: int) -> list[str]:
    """Return which counts do not fit together.

    Args:
        counts: by name.
        num_aborted: requests whose last step vLLM may have left out.
    """
    problems = []
    drafted = counts["freedraft_drafted_tokens_total"]
    accepted = counts["freedraft_accepted_tokens_total"]
    steps = counts["freedraft_steps_total"]
    emitted = counts["freedraft_emitted_tokens_total"]
    if not 0 < accepted <= drafted:
        problems.append(f"expected 0 < accepted <= drafted, got {accepted} and {drafted}")
    if emitted != steps + accepted:
        problems.append(f"expected emitted = steps + accepted, got {emitted}, {steps}, {accepted}")
    for name, ours in {"draft_tokens": drafted, "accepted_tokens": accepted}.items():
        theirs = counts[f"vllm:spec_decode_num_{name}_total"]
        if not 0 <= ours - theirs <= num_aborted * NUM_SPECULATIVE_TOKENS:
            problems.append(f"expected {name} as vLLM counts them, {theirs}, got {ours}")
    if counts["freedraft_switched_off_requests_total"]:
        problems.append("expected no request to be switched off")
    if counts["freedraft_pool_bytes"] > MEMORY_MIB << 20:
        problems.append(
            f"expected a pool of {MEMORY_MIB} MiB, got {counts['freedraft_pool_bytes']}"
        )
    if counts.get("vllm:num_requests_running", 0) or counts.get("vllm:num_requests_waiting", 0):
        problems.append("expected an idle server")
    return problems


async def drive(arguments: argparse.Namespace, plain: bool) -> dict[str, Any]:
    """Send the waves and return what came of them."""
    prompts = [row["prompt"] for row in read_prompts(arguments.prompts)]
    draw = random.Random(7)
    timeout = aiohttp.ClientTimeout(total=1200)
    connector = aiohttp.TCPConnector(limit=0)
    outcomes: Counter[str] = Counter()
    pool_bytes = []
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{PORT}", timeout=timeout, connector=connector
    ) as session:
        await wait_until_up(session, 400)
        for wave in range(arguments.waves):
            jobs = []
            for index in range(arguments.concurrency):
                kind = list(KINDS)[index % len(KINDS)]
                abort_after = draw.randint(1, 12) if index % 4 == wave % 4 else None
                prompt = draw.choice(prompts)
                jobs.append(
                    request(
                        session, prompt, kind, draw.randint(8, arguments.max_tokens), abort_after
                    )
                )
            outcomes.update(await asyncio.gather(*jobs))
            await asyncio.sleep(2)
            counts = await read_counts(session)
            pool_bytes.append(counts.get("freedraft_pool_bytes"))
            print(f"wave {wave}: {dict(outcomes)}, pool {pool_bytes[-1]}", flush=True)
        # one more step, so that the worker hears of the last aborts
        outcomes[await request(session, "Say hello.", "greedy", 8, None)] += 1
        counts = await read_counts(session)
    good = outcomes["done"] + outcomes["aborted"]
    report: dict[str, Any] = {
        "requests": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "pool_bytes": pool_bytes,
        "counts": {
            name: value
            for name, value in counts.items()
            if name.startswith("freedraft_")
            or re.fullmatch(r"vllm:spec_decode_num_[a-z_]+_total", name)
        },
        "problems": [] if plain else find_problems(counts, outcomes["aborted"]),
    }
    if good < report["requests"]:
        report["problems"].append(f"expected no errors, got {report['requests'] - good}")
    return report


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", default=str(PROMPTS))
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--plain", action="store_true", help="without freedraft, to compare")
    parser.add_argument("--log", type=Path, default=Path("vllm_server.log"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    server = start_server(arguments.model, arguments.log, arguments.plain)
    try:
        report = asyncio.run(drive(arguments, arguments.plain))
        report["server_alive"] = server.poll() is None
    finally:
        server.terminate()
        server.wait(timeout=60)
    report["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    report["date"] = time.strftime("%Y-%m-%d")
    print(json.dumps(report, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if report["problems"] or not report["server_alive"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
