"""What the benchmarks of model drafters share: prompts, runs that count forwards, predictions."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import freedraft
from freedraft.drafters import Drafter
from freedraft.integrations.default_model import load_model
from freedraft.verifier.cpu.fast_path import enable_cpu_fast_path
from freedraft.verifier.tree_growth import TreeGrowth
from freedraft.workbench.demo_prompts import DEMO_PROMPTS

RESULTS = Path(__file__).parent / "results"
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 0, "seed": 1}
GREEDY = {"do_sample": False}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a user's turn of the chat template, in tokens."""

    name: str
    workload: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Run:
    """What one drafter did on some prompts.

    Attributes:
        steps: target steps after the prompts' own.
        emitted: tokens that they emitted.
        drafted: nodes that they verified.
        accepted: nodes accepted.
        forwards: forwards of the drafting model.
        same_text: greedy only: whether all texts are those of plain decoding.
    """

    steps: int
    emitted: int
    drafted: int
    accepted: int
    forwards: int
    same_text: bool | None

    def row(self, draft_cost: float, step_costs: Sequence[float]) -> dict[str, Any]:
        """Return the table's row.

        Args:
            draft_cost: time of a draft forward over that of a plain step.
            step_costs: entry n is the time of a step with n nodes over that of a plain step.
        """
        nodes = self.drafted / self.steps
        tokens = self.emitted / self.steps
        drafting = self.forwards / self.steps * draft_cost
        measured = float(np.interp(nodes, np.arange(len(step_costs)), step_costs))
        return {
            "tokens_per_step": tokens,
            "drafted_per_step": nodes,
            "acceptance_rate": self.accepted / max(self.drafted, 1),
            "draft_forwards_per_step": self.forwards / self.steps,
            "draft_cost": draft_cost,
            "draft_cost_per_step": drafting,
            "speedup_measured": tokens / (drafting + measured),
            "speedup_flat": tokens / (drafting + 1),
            "same_text": self.same_text,
        }


def load_for_benchmark(
    source: str,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Return a model in float32 on the CPU fast path, and its tokenizer."""
    model, tokenizer = load_model(source, torch.float32)
    enable_cpu_fast_path(model, allow_extra_memory=True)
    return model, tokenizer


def read_prompts(
    path: str | None, tokenizer: transformers.PreTrainedTokenizerBase, names: Sequence[str]
) -> list[Prompt]:
    """Return prompts of a JSONL file (id, workload, prompt), or the demo's."""
    if path is None:
        rows = [{"id": p.name, "workload": p.workload, "prompt": p.text} for p in DEMO_PROMPTS]
    else:
        rows = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
    prompts = []
    for row in rows:
        if names and row["id"] not in names:
            continue
        turn = [{"role": "user", "content": row["prompt"]}]
        text = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
        ids = tokenizer.encode(text, add_special_tokens=False)
        prompts.append(Prompt(row["id"], row["workload"], ids))
    return prompts


class ForwardCounter:
    """Counts forwards that grow trees, all of which are a drafter's."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> ForwardCounter:
        grow = TreeGrowth.grow
        self._grow = grow

        def counted(growth: TreeGrowth, nodes: Any) -> Any:
            self.count += 1
            return grow(growth, nodes)

        TreeGrowth.grow = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        TreeGrowth.grow = self._grow  # type: ignore[method-assign]


def run_arm(
    model: transformers.PreTrainedModel,
    make_drafter: Callable[[], Drafter],
    prompts: Sequence[Prompt],
    options: dict[str, Any],
    *,
    new_tokens: int,
    max_nodes: int,
    plain: dict[str, list[int]] | None = None,
) -> Run:
    """Decode the prompts with a fresh drafter each, and count.

    Args:
        model: the target.
        make_drafter: returns the drafter.
        prompts: at least one.
        options: of sampling.
        new_tokens: most tokens of an answer.
        max_nodes: most nodes of a step.
        plain: greedy texts by prompt, to compare with.
    """
    total = np.zeros(4, np.int64)
    same = True
    with ForwardCounter() as forwards:
        for prompt in prompts:
            result = freedraft.generate(
                model,
                prompt.token_ids,
                drafter=make_drafter(),
                max_nodes=max_nodes,
                max_new_tokens=new_tokens,
                cost_gate=False,
                return_dict=True,
                **options,
            )
            counts = result.statistics
            assert counts.switched_off == 0
            # the prompt's own step drafts nothing and emits one token
            total += (counts.steps - 1, counts.emitted - 1, counts.drafted, counts.accepted)
            if plain is not None:
                same &= plain[prompt.name] == result.token_ids[0]
    steps, emitted, drafted, accepted = total.tolist()
    return Run(steps, emitted, drafted, accepted, forwards.count, None if plain is None else same)


def plain_texts(
    model: transformers.PreTrainedModel, prompts: Sequence[Prompt], new_tokens: int
) -> dict[str, list[int]]:
    """Return each prompt's greedy text, token by token."""
    texts: dict[str, list[int]] = {}
    for prompt in prompts:
        result = freedraft.generate(
            model,
            prompt.token_ids,
            drafter=None,
            max_new_tokens=new_tokens,
            do_sample=False,
            return_dict=True,
        )
        texts[prompt.name] = result.token_ids[0]
    return texts


def machine() -> dict[str, Any]:
    """Return what the numbers were made on and with."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "freedraft": freedraft.__version__,
        "date": date.today().isoformat(),
    }


def update_results(name: str, part: dict[str, Any]) -> None:
    """Merge a part into a results file, so that a benchmark may be run in pieces."""
    path = RESULTS / name
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(part)
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_results(name: str) -> dict[str, Any]:
    """Return what the earlier pieces have left."""
    content: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return content


def print_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as a table of Markdown."""
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for row in rows:
        cells = [row[column] for column in columns]
        texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print("| " + " | ".join(texts) + " |")
