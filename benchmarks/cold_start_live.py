"""What do the arms for text that repeats nothing bring, each verified by a real model?

    python benchmarks/cold_start_live.py MODEL --prompts FILE.jsonl --costs COSTS --out OUT

Every prompt (id, workload, prompt) is answered greedily and at temperature 0.8 with a fixed seed,
once an arm; an arm's drafter is kept over the prompts of a workload, in order. All arms must give
the same text, but for drafts that were drawn. Two conditions: ``flat`` verifies all of at most 64
nodes, as where a step costs the same up to 64 nodes; ``measured`` cuts each tree to what pays at
the step times of ``forward_cost.py`` (``--costs``). Predicted speed-up = emitted tokens T(1) /
(time of the verified steps + time of drafting). What the file holds already is not run again.

Slow on a CPU; ``cold_start.py`` replays what a model said once, which is a lower bound for arms
that learn from rejected nodes too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cold_start_arms import ARMS, CONDITIONS, MAX_NODES, MODES, NEW_TOKENS, read_costs, summary
from forward_cost import processor
from transformers import AutoModelForCausalLM, AutoTokenizer

import freedraft
from freedraft.drafters import CandidateTree, Drafter, Feedback, RequestId
from freedraft.drafters.base import SendsProbes, TakesVocabSize, WantsTopIds
from freedraft.integrations.budget import choose_num_nodes
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path


class Watched:
    """A drafter whose trees are cut to what pays at given step times, and whose time is taken."""

    def __init__(self, drafter: Drafter, costs: Sequence[float] | None) -> None:
        self._drafter = drafter
        self._costs = costs
        self._spent = 0.0
        self.seconds: list[float] = []  # a step: observe, extend and the propose that follows

    name = "watched"

    @property
    def num_top_ids(self) -> int:
        return self._drafter.num_top_ids if isinstance(self._drafter, WantsTopIds) else 0

    def set_vocab_size(self, vocab_size: int) -> None:
        if isinstance(self._drafter, TakesVocabSize):
            self._drafter.set_vocab_size(vocab_size)

    def start(self, request_id: RequestId, prompt_ids: Any, namespace: str = "") -> None:
        self._drafter.start(request_id, prompt_ids, namespace)

    def extend(self, request_id: RequestId, token_ids: Any) -> None:
        begin = time.perf_counter()
        self._drafter.extend(request_id, token_ids)
        self._spent += time.perf_counter() - begin

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        begin = time.perf_counter()
        self._drafter.observe(request_id, tree, feedback)
        self._spent += time.perf_counter() - begin

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        begin = time.perf_counter()
        trees = self._drafter.propose(request_ids, max_nodes, max_depth)
        self.seconds.append(self._spent + time.perf_counter() - begin)
        self._spent = 0.0
        return [self._cut(tree) for tree in trees]

    def _cut(self, tree: CandidateTree) -> CandidateTree:
        if self._costs is None or tree.draft_probs is not None:
            return tree
        return tree.cut(choose_num_nodes(tree.probs, 1, self._costs[: tree.num_nodes + 1]))

    @property
    def num_probes(self) -> int:
        return self._drafter.num_probes if isinstance(self._drafter, SendsProbes) else 0

    def add_probes(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: Any,
    ) -> list[CandidateTree]:
        if not isinstance(self._drafter, SendsProbes):
            return list(trees)
        begin = time.perf_counter()
        added = self._drafter.add_probes(request_ids, trees, max_nodes, max_depths, costs)
        self.seconds[-1] += time.perf_counter() - begin
        return added

    def truncate(self, request_id: RequestId, length: int) -> None:
        self._drafter.truncate(request_id, length)

    def stop(self, request_id: RequestId) -> None:
        self._drafter.stop(request_id)


def prompt_ids(tokenizer: Any, text: str) -> torch.Tensor:
    """Return ``(1, length)`` ids of a chat with one user turn."""
    encoded = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids: torch.Tensor = encoded["input_ids"]
    return ids


def run(
    model: Any,
    ids: torch.Tensor,
    drafter: Drafter,
    costs: list[float] | None,
    mode: str,
    new_tokens: int = NEW_TOKENS,
) -> tuple[dict[str, Any], list[int]]:
    """Answer one prompt; return what it took, and the tokens."""
    watched = Watched(drafter, costs)
    result = freedraft.generate(
        model,
        ids,
        drafter=watched,
        max_nodes=MAX_NODES,
        cost_gate=False,
        max_new_tokens=new_tokens,
        return_dict=True,
        **MODES[mode],
    )
    assert isinstance(result, freedraft.GenerationResult)
    assert result.statistics.switched_off == 0
    nodes = [step.num_drafted for step in result.steps]
    return {
        "tokens": result.statistics.emitted,
        "steps": result.statistics.steps,
        "nodes": nodes,
        "accepted": result.statistics.accepted,
        "draft_us": statistics.median(watched.seconds) * 1e6 if watched.seconds else 0.0,
    }, result.token_ids[0]


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--conditions", nargs="+", default=CONDITIONS, choices=CONDITIONS)
    parser.add_argument("--workloads", nargs="+", default=["chat", "edit", "rag"])
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    enable_cpu_fast_path(model)
    costs, first = read_costs(arguments.costs)
    prompts = [json.loads(line) for line in arguments.prompts.read_text().splitlines()]
    report: dict[str, Any] = {"runs": {}}
    if arguments.out.exists():
        report = json.loads(arguments.out.read_text())
    report |= {
        "machine": processor(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "costs": dict(enumerate(np.round(costs, 3).tolist())),
        "first_ms": first * 1e3,
    }
    runs, texts = report["runs"], report.setdefault("texts", {})
    for arm in arguments.arms:
        for mode in arguments.modes:
            for condition in arguments.conditions:
                for workload in arguments.workloads:
                    drafter = ARMS[arm]()
                    key = f"{arm} | {mode} | {condition} | {workload}"
                    if key in runs:
                        continue
                    rows = []
                    for prompt in [p for p in prompts if p["workload"] == workload]:
                        ids = prompt_ids(tokenizer, prompt["prompt"])
                        gate = costs if condition == "measured" else None
                        row, tokens = run(model, ids, drafter, gate, mode)
                        if arm != "stochastic_ngram":  # its own text, of the same distribution
                            known = texts.setdefault(f"{prompt['id']} | {mode}", tokens)
                            row["same_text"] = tokens == known
                        rows.append(row | {"id": prompt["id"]})
                    runs[key] = {"summary": summary(rows, costs, first), "rows": rows}
                    print(
                        key,
                        runs[key]["summary"],
                        all(r.get("same_text", True) for r in rows),
                        flush=True,
                    )
                    arguments.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
