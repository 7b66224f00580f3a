"""What do the arms for text that repeats nothing bring beside retrieval, by a replay?

    python benchmarks/cold_start.py MODEL --prompts FILE.jsonl --costs COSTS --records DIR --out OUT

Once, a model answers every prompt (id, workload, prompt), greedily and at temperature 0.8 with a
fixed seed, and one forward over each answer says which tokens it held likely at every place
(``--records``). Then each arm is replayed: the walk takes the recorded answer, and the feedback
names the likely tokens at the accepted nodes. At rejected nodes nothing is known, so for the
recycling drafter, which learns there too, the numbers are lower bounds; ``cold_start_live.py`` runs
some of them with the model. An arm's drafter is kept over a workload's prompts, in order. What the
file holds already is not run again.

Conditions: ``flat`` verifies all of at most 64 nodes, as where a step costs the same up to 64;
``measured`` cuts each tree to what pays at the step times of ``forward_cost.py`` (``--costs``).
Predicted speed-up = tokens T(1) / (time of the verified steps + time of drafting).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cold_start_arms import ARMS, CONDITIONS, MAX_NODES, MODES, NEW_TOKENS, read_costs, summary

from freedraft.drafters import CandidateTree, Drafter, Feedback
from freedraft.drafters.tree import accepted_path
from freedraft.integrations.budget import choose_num_nodes

NUM_TOP = 16
REPLAYED = (
    "ngram",
    "suffix",
    "edit",
    "recycling",
    "recycling + ngram",
    "blend",
    "ngram + runner_up",
    "suffix + runner_up",
    "blend + runner_up",
)


@dataclass(frozen=True)
class Record:
    """One answer.

    Attributes:
        token_ids: ``(length,)`` int32, prompt and answer.
        num_prompt: tokens of the prompt.
        top_ids: ``(length, NUM_TOP)`` int32, the most likely tokens after each token.
        top_logprobs: ``(length, NUM_TOP)`` float32.
    """

    token_ids: npt.NDArray[np.int32]
    num_prompt: int
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]


def record(model: Any, ids: Any, mode: str) -> Record:
    """Answer a prompt, and read what the model held likely at each place of the answer."""
    import torch

    import freedraft

    sequences = freedraft.generate(model, ids, max_new_tokens=NEW_TOKENS, **MODES[mode])
    assert isinstance(sequences, torch.Tensor)
    with torch.no_grad():
        logits = model(input_ids=sequences).logits[0]
    top = logits.topk(NUM_TOP, -1)
    logprobs = top.values - logits.logsumexp(-1, keepdim=True)
    return Record(
        sequences[0].int().numpy(), ids.shape[1], top.indices.int().numpy(), logprobs.numpy()
    )


def load_model(folder: str) -> tuple[Any, Any]:
    """Return the model and its tokenizer; imported here, since a replay needs neither."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path

    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    enable_cpu_fast_path(model)
    return model, AutoTokenizer.from_pretrained(folder)


def read_records(folder: Path, model_folder: str, prompts: Any) -> dict[tuple[str, str], Record]:
    """Return the record of each (mode, prompt id); what is missing is made with the model."""
    folder.mkdir(parents=True, exist_ok=True)
    records, loaded = {}, None
    for mode in MODES:
        for prompt in prompts:
            file = folder / f"{prompt['id']}_{mode.replace(' ', '_')}.npz"
            if not file.exists():
                from cold_start_live import prompt_ids

                loaded = loaded or load_model(model_folder)
                made = record(loaded[0], prompt_ids(loaded[1], prompt["prompt"]), mode)
                np.savez(file, **vars(made))
            arrays = np.load(file)
            records[mode, prompt["id"]] = Record(
                arrays["token_ids"],
                int(arrays["num_prompt"]),
                arrays["top_ids"],
                arrays["top_logprobs"],
            )
    return records


def feedback_of(tree: CandidateTree, path: Sequence[int], stop: int, answer: Record) -> Feedback:
    """Return what is known of a step that ends before place ``stop``: only its accepted nodes.

    Args:
        tree: what was verified.
        path: accepted nodes.
        stop: place after the last emitted token.
        answer: the recorded answer.
    """
    num_emitted = min(len(path) + 1, stop)
    top_ids = np.full((tree.num_nodes + 1, NUM_TOP), -1, np.int32)
    top_logprobs = np.full((tree.num_nodes + 1, NUM_TOP), -50, np.float32)
    for offset, row in enumerate([0, *(node + 1 for node in path)][:num_emitted]):
        place = stop - num_emitted + offset - 1  # the token before the one that was emitted
        top_ids[row], top_logprobs[row] = answer.top_ids[place], answer.top_logprobs[place]
    emitted = answer.token_ids[stop - num_emitted : stop]
    accepted = np.array(path, np.int32)
    return Feedback(emitted, accepted, top_ids[:, 0].copy(), top_ids, top_logprobs)


def steps(
    drafter: Drafter, answer: Record, costs: list[float] | None
) -> Iterator[tuple[int, float]]:
    """Walk one answer; yield each step's verified nodes and its seconds of drafting."""
    place = answer.num_prompt
    length = len(answer.token_ids)
    drafter.start("request", answer.token_ids[:place])
    tree, spent = CandidateTree.empty(), 0.0
    while place < length:
        path = accepted_path(tree, answer.token_ids[place:]).tolist()
        stop = min(place + len(path) + 1, length)
        path = path[: stop - place]
        yield tree.num_nodes, spent
        feedback = feedback_of(tree, path, stop, answer)
        begin = time.perf_counter()
        drafter.observe("request", tree, feedback)
        drafter.extend("request", feedback.token_ids)
        room = length - stop - 1
        (tree,) = drafter.propose(["request"], MAX_NODES, max(0, room))
        spent = time.perf_counter() - begin
        if costs is not None:
            tree = tree.cut(choose_num_nodes(tree.probs, 1, costs[: tree.num_nodes + 1]))
        place = stop
    drafter.stop("request")


def write(
    path: Path, prompts: Any, costs: list[float], first: float, rows: list[dict[str, Any]]
) -> None:
    """Write what has been measured so far."""
    report = {
        "machine": platform.machine(),
        "versions": {"numpy": np.__version__, "numba": version("numba")},
        "date": time.strftime("%Y-%m-%d"),
        "prompts": {prompt["id"]: prompt["workload"] for prompt in prompts},
        "costs": dict(enumerate(np.round(costs, 3).tolist())),
        "first_ms": first * 1e3,
        "rows": rows,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """Record what is missing, replay every arm and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    costs, first = read_costs(arguments.costs)
    prompts = [json.loads(line) for line in arguments.prompts.read_text().splitlines()]
    records = read_records(arguments.records, arguments.model, prompts)
    rows: list[dict[str, Any]] = []
    if arguments.out.exists():
        rows = json.loads(arguments.out.read_text())["rows"]
    done = {(row["workload"], row["mode"], row["condition"], row["arm"]) for row in rows}
    for workload in sorted({prompt["workload"] for prompt in prompts}):
        chosen = [prompt["id"] for prompt in prompts if prompt["workload"] == workload]
        for mode in MODES:
            for condition in CONDITIONS:
                for arm in REPLAYED:
                    if (workload, mode, condition, arm) in done:
                        continue
                    drafter = ARMS[arm]()
                    gate = costs if condition == "measured" else None
                    parts = []
                    for name in chosen:
                        answer = records[mode, name]
                        walked = list(steps(drafter, answer, gate))
                        parts.append(
                            {
                                "tokens": len(answer.token_ids) - answer.num_prompt,
                                "nodes": [nodes for nodes, _ in walked],
                                "draft_us": statistics.median(s for _, s in walked) * 1e6,
                            }
                        )
                    row = {
                        "workload": workload, "mode": mode, "condition": condition, "arm": arm
                    } | summary(parts, costs, first)  # fmt: skip
                    rows.append(row)
                    print(row, flush=True)
                    write(arguments.out, prompts, costs, first, rows)


if __name__ == "__main__":
    main()
