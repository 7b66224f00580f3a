"""How many tokens a step does each drafter reach on recorded responses, rivals and oracle included?

    FOLDER/bin/python benchmarks/quality.py TRACES.jsonl... --tokenizer MODEL --out RESULT.json

FOLDER is what ``rivals.sh`` made; with another Python the rivals are left out. Drafters and rivals
are replayed with every node budget, warm (one drafter over a file's requests, in order) and cold
(a fresh one for each request). Each row counts the whole file and, apart, the last third of its
requests, which no constant was chosen on. ``--min-probs`` also proposes only nodes of at least that
path probability, as the cost gate does. What the result file holds already is not measured again,
so that a run can be stopped and taken up; delete the file to begin anew.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import rivals
from transformers import AutoTokenizer

from freedraft.drafters.base import Drafter, Feedback
from freedraft.drafters.calibration import expected_calibration_error
from freedraft.drafters.catalog import create_drafter
from freedraft.drafters.tree import accepted_path
from freedraft.workbench.replay import NUM_BINS
from freedraft.workbench.traces import TokenTrace, read_traces, tokenize_traces

IntArray = npt.NDArray[np.int32]

SEPARATOR = -1
"""Stands between requests and matches nothing."""
ORACLE = "oracle"
PROTOTYPE = "prototype"
"""The sketch behind the design, from the file that ``--prototype`` names."""
OWN = ("blend", "ngram", "suffix", "edit")


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


@dataclass(slots=True)
class Tally:
    """Sums over requests.

    Attributes:
        requests: how many.
        tokens: response tokens.
        steps: target steps, those without a draft included.
        drafted: nodes proposed.
        accepted: nodes that came true.
        probs: path probabilities of the nodes, an array a step.
        hits: whether they came true, an array a step.
    """

    requests: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    probs: list[npt.NDArray[np.float32]] = field(default_factory=list)
    hits: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def report(self, promises: bool) -> dict[str, Any]:
        """Return the sums and what follows from them.

        Args:
            promises: whether the probabilities are those of paths, so that they can be judged.
        """
        steps = max(self.steps, 1)
        result = {
            "requests": self.requests,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": round(self.tokens / steps, 4),
            "drafted_per_step": round(self.drafted / steps, 3),
            "acceptance_rate": round(self.accepted / max(self.drafted, 1), 4),
        }
        return result | (self.calibration() if promises else {})

    def calibration(self) -> dict[str, Any]:
        """Return the expected calibration error, and what it is made of, bin by bin."""
        probs = np.concatenate([np.zeros(0, np.float32), *self.probs])
        hits = np.concatenate([np.zeros(0, np.bool_), *self.hits])
        bins = np.minimum((probs * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        nodes = np.bincount(bins, minlength=NUM_BINS)
        means = {
            name: [
                round(value / count, 4) if count else None
                for value, count in zip(
                    np.bincount(bins, weights=values, minlength=NUM_BINS).tolist(),
                    nodes.tolist(),
                    strict=True,
                )
            ]
            for name, values in (("predicted", probs), ("seen", hits))
        }
        error = round(expected_calibration_error(probs, hits), 4)
        return {"calibration_error": error, "bins": {"nodes": nodes.tolist(), **means}}


@dataclass(frozen=True, slots=True)
class Task:
    """One row to measure."""

    file: str
    mode: str
    drafter: str
    max_nodes: int
    min_prob: float


def oracle(traces: Sequence[TokenTrace], max_nodes: int, warm: bool) -> Iterator[Tally]:
    """Yield the oracle's tally of each request."""
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
    for floor, begin, stop in spans:
        steps = oracle_steps(tokens, earlier, floor, begin, stop, max_nodes)
        yield Tally(1, stop - begin, steps)


def walk(
    traces: Sequence[TokenTrace],
    make_drafter: Callable[[], Drafter],
    max_nodes: int,
    min_prob: float,
    warm: bool,
) -> Iterator[Tally]:
    """Replay the traces in order and yield the tally of each request."""
    drafter = make_drafter()
    for index, trace in enumerate(traces):
        if index and not warm:
            drafter = make_drafter()
        response = trace.response_ids
        tally = Tally(1, int(response.size))
        drafter.start(index, trace.prompt_ids)
        position = 0
        while position < response.size:
            (tree,) = drafter.propose([index], max_nodes, max_nodes)
            if min_prob > 0:
                tree = tree.keep(np.flatnonzero(tree.probs >= min_prob))
            if tree.num_nodes > max_nodes:
                raise ValueError(f"expected at most {max_nodes} nodes, got {tree.num_nodes}")
            path = accepted_path(tree, response[position:])
            hits = np.zeros(tree.num_nodes, np.bool_)
            hits[path] = True
            tally.probs.append(tree.probs)
            tally.hits.append(hits)
            tally.steps += 1
            tally.drafted += tree.num_nodes
            tally.accepted += path.size
            emitted = response[position : position + path.size + 1]
            choices = np.full(tree.num_nodes + 1, -1, np.int32)
            choices[np.concatenate(([0], path + 1))[: emitted.size]] = emitted
            drafter.observe(index, tree, Feedback(emitted, path, choices))
            drafter.extend(index, emitted)
            position += emitted.size
        drafter.stop(index)
        yield tally


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum."""
    result = Tally()
    for tally in tallies:
        result.requests += tally.requests
        result.tokens += tally.tokens
        result.steps += tally.steps
        result.drafted += tally.drafted
        result.accepted += tally.accepted
        result.probs += tally.probs
        result.hits += tally.hits
    return result


def maker(task: Task, prototype: Path | None) -> Callable[[], Any]:
    """Return what makes the row's drafter."""
    if task.drafter == PROTOTYPE:
        if prototype is None:
            raise ValueError("expected --prototype FILE for the drafter prototype")
        return partial(rivals.Prototype, PROTOTYPE, prototype, task.max_nodes)
    if task.drafter in rivals.RIVALS:
        return partial(rivals.RIVALS[task.drafter], task.max_nodes)
    return partial(create_drafter, task.drafter)


def measure(task: Task, traces: Sequence[TokenTrace], prototype: Path | None) -> dict[str, Any]:
    """Measure one row."""
    warm = task.mode == "warm"
    if task.drafter == ORACLE:
        tallies = list(oracle(traces, task.max_nodes, warm))
    else:
        make = maker(task, prototype)
        tallies = list(walk(traces, make, task.max_nodes, task.min_prob, warm))
    held_out = tallies[2 * len(tallies) // 3 :]
    promises = task.drafter in OWN
    return {
        **asdict(task),
        "all": total(tallies).report(promises),
        "held_out": total(held_out).report(promises),
    }


def plan(options: argparse.Namespace, files: Sequence[str]) -> list[Task]:
    """Return the rows that are asked for, the ones with the most to say first."""
    tasks: list[Task] = []
    for mode in options.modes:
        for max_nodes in sorted(options.max_nodes, key=lambda nodes: abs(nodes - 16)):
            for drafter in options.drafters:
                if mode == "warm" and drafter in rivals.FORGETFUL:
                    continue  # measured cold, which is the same
                cuts = options.min_probs if drafter in OWN else [0.0]
                tasks += [
                    Task(file, mode, drafter, max_nodes, cut) for cut in cuts for file in files
                ]
    return tasks


def load(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an earlier run."""
    return json.loads(path.read_text())["results"] if path.exists() else []


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write what was measured so far."""
    result = {
        "question": "tokens per step of drafters, rivals and the oracle on recorded responses",
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "freedraft": version("freedraft"),
        "rivals": rivals.available(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "results": sorted(
            rows, key=lambda row: [str(row[key]) for key in ("file", "mode", "drafter")]
            + [row["max_nodes"], row["min_prob"]],
        ),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def numbers(text: str) -> list[int]:
    """Return the whole numbers of a list with commas."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--drafters", type=lambda text: text.split(","))
    parser.add_argument("--max-nodes", type=numbers, default=[4, 8, 16, 32, 64])
    parser.add_argument("--min-probs", type=lambda text: [float(x) for x in text.split(",")])
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["warm", "cold"])
    parser.add_argument("--prototype", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sketch = [] if options.prototype is None else [PROTOTYPE]
    options.drafters = options.drafters or [*OWN, *rivals.available(), *sketch, ORACLE]
    options.min_probs = options.min_probs or [0.0]
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    encode = partial(tokenizer.encode, add_special_tokens=False, verbose=False)
    traces = {
        path.name: list(tokenize_traces(read_traces(path), encode)) for path in options.traces
    }
    rows = load(options.out)
    done = {Task(*(row[key] for key in Task.__slots__)) for row in rows}
    tasks = [task for task in plan(options, list(traces)) if task not in done]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        futures = [
            pool.submit(measure, task, traces[task.file], options.prototype) for task in tasks
        ]
        for future in as_completed(futures):
            row = future.result()
            rows.append(row)
            write(options.out, rows)
            print(
                f"{row['file']:18} {row['mode']} {row['drafter']:14} {row['max_nodes']:3} nodes, "
                f"at least {row['min_prob']}: {row['all']['tokens_per_step']:6.3f} tokens, "
                f"{row['all']['drafted_per_step']:5.1f} drafted a step; held out "
                f"{row['held_out']['tokens_per_step']:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
