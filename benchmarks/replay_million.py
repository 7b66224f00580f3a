"""A million tokens: how long does ``freedraft replay`` take, how much memory, and can it be killed?

    python benchmarks/replay_million.py TRACES.jsonl... --tokenizer MODEL --out RESULT.json
    python benchmarks/replay_million.py ... --parts memory,kill  # where times do not matter

Two logs of at least ``--tokens`` response tokens are made of the traces in a temporary folder:

- ``mixed``: the traces as they are, as text, again and again with other requests' words in between.
- ``hard``: only the traces named chat, as token ids; each copy has its vocabulary shuffled, so that
  copies have the statistics of chat and nothing in common.

``times``: each drafter replays each log as a whole command: start, reading, tokenizing, replay and
report. ``memory``: the largest resident memory for one, two and four times as many tokens.
``kill``: a replay is killed and taken up again until it ends; its counts must be those of a run
that nobody disturbed. What the result file holds already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from freedraft.workbench.traces import TokenTrace, read_traces, tokenize_traces

BUDGET = 16
TIMES = ("_us_", "predictions", "memory")
"""What two runs of the same replay do not share: names that contain one of these."""


def main() -> None:
    """Make the logs, replay them, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--drafters", default="ngram,suffix,blend")
    parser.add_argument("--kill-after", type=float, default=12.0, help="seconds")
    parser.add_argument("--parts", default="times", help="of times, memory and kill")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    parts = args.parts.split(",")
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    result |= {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "freedraft": version("freedraft"),
        "date": time.strftime("%Y-%m-%d"),
        "nodes": BUDGET,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = {path: list(tokenize_traces(read_traces(path), encode)) for path in args.traces}
        logs = {
            "hard": write_hard(folder / "hard.jsonl", tokens, args.tokens, len(tokenizer)),
            "mixed": write_mixed(folder / "mixed.jsonl", tokens, args.traces, args.tokens),
        }
        for log, path in logs.items() if "times" in parts else ():
            for drafter in args.drafters.split(","):
                keep(result, args.out, "runs", f"{log}, {drafter}",
                     partial(time_one, path, drafter, args.tokenizer))  # fmt: skip
        for times in (1, 2, 4) if "memory" in parts else ():
            path = write_mixed(folder / "more.jsonl", tokens, args.traces, times * args.tokens)
            keep(result, args.out, "memory", f"{times} x mixed, ngram",
                 partial(peak_of_one, path, args.tokenizer))  # fmt: skip
        if "kill" in parts:
            keep(result, args.out, "kill", "mixed, ngram and suffix",
                 partial(kill_one, logs["mixed"], args, folder))  # fmt: skip


def keep(
    result: dict[str, Any], out: Path, part: str, key: str, measure: Callable[[], dict[str, Any]]
) -> None:
    """Measure what the result does not hold yet, and write it down."""
    rows = result.setdefault(part, {})
    if key not in rows:
        rows[key] = measure()
        out.write_text(json.dumps(result, indent=2) + "\n")
    print(part, key, rows[key], flush=True)


def write_hard(
    path: Path, tokens: dict[Path, list[TokenTrace]], wanted: int, vocab_size: int
) -> Path:
    """Write shuffled copies of the chat traces as token ids; return the path."""
    chat = [trace for file, traces in tokens.items() if "chat" in file.stem for trace in traces]
    written = 0
    copy = 0
    with path.open("w") as file:
        while written < wanted:
            names = np.random.default_rng(copy).permutation(vocab_size)
            for trace in chat:
                record = {
                    "prompt_ids": names[trace.prompt_ids].tolist(),
                    "response_ids": names[trace.response_ids].tolist(),
                }
                file.write(json.dumps(record) + "\n")
                written += trace.response_ids.size
            copy += 1
    return path


def write_mixed(
    path: Path, tokens: dict[Path, list[TokenTrace]], paths: list[Path], wanted: int
) -> Path:
    """Write the traces as text until there are enough tokens; return the path."""
    written = 0
    with path.open("w") as file:
        while written < wanted:
            for source in paths:
                file.write(source.read_text(encoding="utf-8").rstrip("\n") + "\n")
                written += sum(trace.response_ids.size for trace in tokens[source])
    return path


def command(path: Path, drafter: str, tokenizer: str, *more: str) -> list[str]:
    """Return the command line of one replay."""
    return [
        sys.executable, "-c", "from freedraft.cli import main; main()", "replay", str(path),
        "--drafter", drafter, "--max-nodes", str(BUDGET), "--tokenizer", tokenizer, *more,
    ]  # fmt: skip


def peak_of_one(path: Path, tokenizer: str) -> dict[str, Any]:
    """Return what one command took of memory; its time is not told."""
    found = time_one(path, "ngram", tokenizer)
    return {key: found[key] for key in ("response_tokens", "log_mib", "peak_mib")}


def time_one(path: Path, drafter: str, tokenizer: str) -> dict[str, Any]:
    """Run one command; return its wall time, its peak memory and what it found."""
    begin = time.perf_counter()
    with subprocess.Popen(
        command(path, drafter, tokenizer, "--json", "-"), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(f"expected exit code 0, got {process.returncode}")
    (found,) = json.loads(text)["results"]
    return {
        "seconds": round(seconds, 1),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "response_tokens": found["tokens"],
        "log_mib": round(path.stat().st_size / (1 << 20), 1),
        "steps": found["steps"],
        "tokens_per_step": round(found["tokens_per_step"], 3),
    }


def kill_one(path: Path, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Kill a replay of two drafters, take it up, and compare its counts with an undisturbed one."""
    drafters = "ngram,suffix"
    state = folder / "state"
    more = ("--state", str(state), "--json", "-", "--processes", "1")
    whole = json.loads(
        subprocess.run(
            command(path, drafters, args.tokenizer, "--json", "-"),
            stdout=subprocess.PIPE, check=True,
        ).stdout
    )  # fmt: skip
    kills = 0
    while True:
        with subprocess.Popen(
            command(path, drafters, args.tokenizer, *more), stdout=subprocess.PIPE
        ) as process:
            try:
                out, _ = process.communicate(timeout=args.kill_after * (1 + kills))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
    resumed = json.loads(out)
    return {"kills": kills, "same_counts": counts(whole) == counts(resumed)}


def counts(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results without what a clock or the system told."""
    return [
        {key: value for key, value in row.items() if not any(name in key for name in TIMES)}
        for row in report["results"]
    ]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
