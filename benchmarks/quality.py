"""How many tokens a step does each drafter reach on recorded responses, and how far is the oracle?

    python benchmarks/quality.py TRACES.jsonl... --tokenizer FOLDER --out RESULT.json

Every drafter of the catalog is replayed with every node budget, warm (one drafter over a file's
requests, in order) and cold (a fresh one for each request). ``--part held-out`` replays the last
third of each file, which no constant was chosen on; ``--part tuning`` the first two thirds.

The last-token oracle drafts one chain a step: the continuation of that earlier occurrence of the
last token that turns out to be right for longest, at most as many tokens as the budget. It knows
the future, so no single chain from a place of the last token can do better; a tree, or a drafter
that finds places by other means, can.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer

from freedraft.drafters.catalog import create_drafter
from freedraft.workbench.replay import replay_traces
from freedraft.workbench.traces import TokenTrace, read_traces, tokenize_traces

IntArray = npt.NDArray[np.int32]

SEPARATOR = -1
"""Stands between requests and matches nothing."""


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def oracle_steps(
    tokens: IntArray, earlier: IntArray, floor: int, begin: int, stop: int, max_nodes: int
) -> int:
    """Return the steps in which the oracle emits ``tokens[begin:stop]``.

    Args:
        tokens: ``(size,)`` int32, all requests so far.
        earlier: ``(size,)`` int32, the place before each place with the same token, or -1.
        floor: places before it are not looked at.
        begin: where the response begins.
        stop: where it ends.
        max_nodes: longest chain of a step.
    """
    steps = 0
    position = begin
    while position < stop:
        best = 0
        limit = min(max_nodes, stop - position)
        place = earlier[position - 1]
        while place >= floor and best < limit:
            length = 0
            while (
                length < limit
                and place + 1 + length < position
                and tokens[place + 1 + length] == tokens[position + length]
            ):
                length += 1
            best = max(best, length)
            place = earlier[place]
        position += best + 1
        steps += 1
    return steps


def oracle(traces: Sequence[TokenTrace], max_nodes: Sequence[int], warm: bool) -> dict[str, float]:
    """Return the oracle's tokens per step for each budget."""
    parts: list[IntArray] = []
    spans: list[tuple[int, int, int]] = []
    size = 0
    for trace in traces:
        prompt = trace.prompt_ids if trace.prompt_ids.size else np.zeros(1, np.int32)
        begin = size + 1 + prompt.size
        spans.append((0 if warm else size + 1, begin, begin + trace.response_ids.size))
        parts += [np.array([SEPARATOR], np.int32), prompt, trace.response_ids]
        size = begin + trace.response_ids.size
    tokens = np.concatenate(parts)
    earlier = np.full(tokens.size, -1, np.int32)
    latest: dict[int, int] = {}
    for place, token in enumerate(tokens.tolist()):
        if token >= 0:
            earlier[place] = latest.get(token, -1)
            latest[token] = place
    total = sum(trace.response_ids.size for trace in traces)
    return {
        str(nodes): total / sum(oracle_steps(tokens, earlier, *span, nodes) for span in spans)
        for nodes in max_nodes
    }


def part_of(traces: list[TokenTrace], part: str) -> list[TokenTrace]:
    """Return all traces, the first two thirds or the last third of them."""
    cut = 2 * len(traces) // 3
    return {"all": traces, "tuning": traces[:cut], "held-out": traces[cut:]}[part]


def measure(
    file: str,
    traces: list[TokenTrace],
    drafters: Sequence[str],
    max_nodes: Sequence[int],
    modes: Sequence[str],
) -> list[dict[str, object]]:
    """Replay one file with each drafter, budget and mode."""
    rows: list[dict[str, object]] = []
    for mode in modes:
        best = oracle(traces, max_nodes, mode == "warm")
        for name in drafters:
            for nodes in max_nodes:
                result = replay_traces(
                    traces,
                    partial(create_drafter, name),
                    max_nodes=nodes,
                    warm=mode == "warm",
                    file=file,
                )
                share = result.tokens_per_step / best[str(nodes)]
                rows.append(
                    {
                        **result.to_dict(),
                        "oracle_tokens_per_step": best[str(nodes)],
                        "oracle_share": share,
                    }
                )
                print(
                    f"{file:18} {mode} {name:7} {nodes:3} nodes: {result.tokens_per_step:6.3f} "
                    f"tokens, {result.drafted_per_step:5.1f} drafted a step, {share:.3f} of the "
                    f"oracle, calibration {result.calibration_error:.3f}",
                    flush=True,
                )
    return rows


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--drafters", default="ngram,suffix,edit,blend")
    parser.add_argument("--max-nodes", default="4,8,16,32,64")
    parser.add_argument("--modes", default="warm,cold")
    parser.add_argument("--part", choices=("all", "tuning", "held-out"), default="all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    encode = partial(tokenizer.encode, add_special_tokens=False, verbose=False)
    rows: list[dict[str, object]] = []
    for path in options.traces:
        traces = part_of(list(tokenize_traces(read_traces(path), encode)), options.part)
        rows += measure(
            path.name,
            traces,
            options.drafters.split(","),
            [int(nodes) for nodes in options.max_nodes.split(",")],
            options.modes.split(","),
        )
        if options.out:
            write(options.out, options.part, rows)


def write(path: Path, part: str, rows: list[dict[str, object]]) -> None:
    """Write what was measured so far."""
    result = {
        "question": "tokens per step of each drafter on recorded responses, and of the oracle",
        "part": part,
        "results": rows,
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared: times are not quiet",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
