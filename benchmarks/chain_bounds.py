"""How much faster could a drafter make vLLM's prompts than vLLM's own methods do, at the very best?

    RIVALS/bin/python benchmarks/chain_bounds.py --model FOLDER --json chain_bounds.json

A walk over the model's own greedy answers to the prompts of ``vllm_throughput.py``, without vLLM:
each method drafts a chain of at most 16 tokens, the answer says how far it agrees, and a table of
step times what that took. So nothing here scatters with the machine, but freedraft's budget, which
is told step times with noise, as it would measure them; its figures are means of several walks.

``bound`` knows the answer. It may draft whatever followed any earlier place of the last token, as
far as it agrees (and on into its own draft, where the text repeats itself), and stops each draft
where the whole answer takes the least time (dynamic programming). No drafter that copies from such
a place does better, whatever it knows.

Speeds are tokens over the time of as many plain steps, from the first token on. Two tables of step
times: what vLLM 0.32 takes on two cores of an EPYC with SmolLM2-135M in float32, by tokens of a
step, and one in which every step takes the same, as on a large GPU with few requests.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import numpy.typing as npt
import rivals
from vllm_worker import read_prompts

from freedraft.drafters.base import Drafter
from freedraft.integrations.engine_config import (
    SHARE_NOTHING,
    EngineConfig,
    create_engine_budget,
    create_engine_drafter,
)
from freedraft.integrations.request_book import RequestBook

PROMPTS = Path(__file__).with_name("vllm_prompts.jsonl")
MAX_TOKENS = 96
STEP_TIMES = {
    "vLLM on two cores": {1: 1.0, 6: 1.0, 8: 1.05, 12: 1.13, 16: 1.36, 25: 1.56, 40: 2.0},
    "flat": {1: 1.0, 40: 1.0},
}
PLAIN_SECONDS = 0.02  # only ratios matter; a clock has a resolution, so some time must be given
NOISE = 0.05  # of a step's time, as far as others on the machine slow it down
WALKS = 5
STOCK = ("suffix", "ngram 2-5", "ngram 5-5")


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the model's greedy answer, as one text."""

    name: str
    tokens: npt.NDArray[np.int32]
    num_prompt: int

    @property
    def start(self) -> int:
        """Where drafting begins: behind the answer's first token, which the prompt's pass gives."""
        return self.num_prompt + 1


Time = Callable[[int], float]
Speeds = dict[str, float]
"""By the answer's name."""


def generate(model_folder: str) -> list[Answer]:
    """Return the model's answers to the prompts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    answers = []
    for row in read_prompts(PROMPTS):
        chat = [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            text = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_TOKENS)[0]
        size = prompt["input_ids"].shape[1]
        answers.append(Answer(row["id"], text.numpy().astype(np.int32), size))
    return answers


def agreeing(chain: list[int], answer: Answer, place: int) -> int:
    """Return how many tokens of a chain agree with the answer from ``place`` on."""
    count = 0
    for drafted, said in zip(chain, answer.tokens[place:].tolist(), strict=False):
        if drafted != said:
            break
        count += 1
    return count


def walk_stock(
    make: Callable[[], Drafter], answers: list[Answer], most: int, time_of: Time
) -> Speeds:
    """Walk one of vLLM's own methods, which drafts without regard to what a step takes."""
    speeds = {}
    for answer in answers:
        drafter = make()  # cold: it must not know the answers before
        drafter.start(answer.name, answer.tokens[: answer.num_prompt])
        place, taken, stop = answer.num_prompt, 0.0, answer.tokens.size
        drafter.extend(answer.name, answer.tokens[place : answer.start])
        place = answer.start
        while place < stop:
            (tree,) = drafter.propose([answer.name], most, most)
            room = MAX_TOKENS - (place - answer.num_prompt) - 1
            chain = tree.token_ids.tolist()[:room]
            emitted = min(agreeing(chain, answer, place) + 1, stop - place)
            taken += time_of(1 + len(chain))
            drafter.extend(answer.name, answer.tokens[place : place + emitted])
            place += emitted
        speeds[answer.name] = (stop - answer.start) / taken
    return speeds


def walk_freedraft(answers: list[Answer], most: int, time_of: Time, seed: int) -> Speeds:
    """Walk freedraft as it drafts inside vLLM, its budget learning the step times."""
    generator = np.random.default_rng(seed)
    config = EngineConfig(sharing=SHARE_NOTHING)
    drafter, budget = create_engine_drafter(config), create_engine_budget(config, on_cpu=True)
    assert budget is not None
    vocab_size = 1 + max(int(answer.tokens.max()) for answer in answers)
    book = RequestBook(drafter, vocab_size, budget=budget, naps=True)
    speeds = {}
    for answer in answers:
        name, place, taken, stop = answer.name, answer.start, 0.0, answer.tokens.size
        book.sync(name, answer.tokens[:place], name, answer.num_prompt)
        while place < stop:
            left = MAX_TOKENS - (place - answer.num_prompt)
            (chain,) = book.propose_chains([name], [max(min(most, left - 1), 0)], [left])
            place = min(place + agreeing(chain, answer, place) + 1, stop)
            step = time_of(1 + len(chain))
            taken += step
            book.sync(name, answer.tokens[:place], name, answer.num_prompt)
            noise = 1 + NOISE * abs(generator.standard_normal())
            budget.record_step(1, len(chain), PLAIN_SECONDS * step * noise)
        book.release(name)
        speeds[name] = (stop - answer.start) / taken
    return speeds


def bound(answer: Answer, most: int, time_of: Time) -> float:
    """Return the speed of the best chains that follow an earlier place of the last token."""
    tokens, stop = answer.tokens.tolist(), answer.tokens.size
    least = np.zeros(stop + 1)  # time from a place to the end
    for place in range(stop - 1, answer.start - 1, -1):
        longest = 0
        for begin in range(1, place):  # what follows an earlier place begins here
            if tokens[begin - 1] != tokens[place - 1]:
                continue
            length = 0
            while (
                length < most
                and place + length < stop
                and tokens[begin + length] == tokens[place + length]
            ):
                length += 1
            longest = max(longest, length)
        least[place] = min(
            time_of(1 + length) + least[min(place + length + 1, stop)]
            for length in range(longest + 1)
        )
    return float((stop - answer.start) / least[answer.start])


def measure(answers: list[Answer], times: dict[int, float]) -> dict[str, Speeds]:
    """Return the speeds by method at one table of step times."""
    sizes, values = list(times), list(times.values())

    def time_of(num_tokens: int) -> float:
        return float(np.interp(num_tokens, sizes, values))

    stock: dict[str, Callable[[], Drafter]] = {
        "suffix": partial(rivals.Arctic, "suffix", 24, 1.0, tree=False),
        "ngram 2-5": partial(rivals.Vllm, "ngram 2-5", 2, 5, 16),
        "ngram 5-5": partial(rivals.Vllm, "ngram 5-5", 5, 5, 16),
    }
    speeds = {name: walk_stock(stock[name], answers, 16, time_of) for name in STOCK}
    for name, most in (("freedraft", 16), ("freedraft 32", 32)):
        walks = [walk_freedraft(answers, most, time_of, seed) for seed in range(WALKS)]
        speeds[name] = {a.name: float(np.mean([walk[a.name] for walk in walks])) for a in answers}
    for name, most in (("bound", 16), ("bound 32", 32)):
        speeds[name] = {answer.name: bound(answer, most, time_of) for answer in answers}
    return speeds


def summary(speeds: dict[str, Speeds]) -> dict[str, Any]:
    """Return geometric means by workload, and what each prompt has over the best stock method."""
    prompts = list(speeds["bound"])
    workloads = dict.fromkeys(prompt.rstrip("0123456789") for prompt in prompts)
    means = {
        workload: {
            method: geometric_mean([v for p, v in row.items() if p.startswith(workload)])
            for method, row in speeds.items()
        }
        for workload in workloads
    }
    best = {prompt: max(speeds[method][prompt] for method in STOCK) for prompt in prompts}
    over = {
        method: {prompt: row[prompt] / best[prompt] for prompt in prompts}
        for method, row in speeds.items()
        if method not in STOCK
    }
    return {"geometric_means": means, "over_best_stock": over}


def rounded(value: Any) -> Any:
    """Return a nest of dicts with its floats at three decimals."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    """Generate the answers, walk them, print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    answers = generate(options.model)
    result: dict[str, Any] = {
        "question": "speed over plain decoding by prompt, and the most that copying could reach",
        "max_tokens": MAX_TOKENS,
        "step_times": STEP_TIMES,
        "rivals": rivals.available(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    for name, times in STEP_TIMES.items():
        speeds = measure(answers, times)
        result[name] = rounded({"speeds": speeds, **summary(speeds)})
        print(name)
        for workload, row in result[name]["geometric_means"].items():
            print(f"  {workload:6}", ", ".join(f"{m} {v:.2f}" for m, v in row.items()))
        for prompt in speeds["bound"]:
            over = {m: row[prompt] for m, row in result[name]["over_best_stock"].items()}
            print(f"  {prompt:6}", ", ".join(f"{m} {v:.2f}" for m, v in over.items()))
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
