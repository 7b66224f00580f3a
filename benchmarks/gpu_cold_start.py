"""Do look-ahead and recycling make a real model faster on this GPU, end to end?

    python benchmarks/gpu_cold_start.py --json OUT.json [--model FOLDER] [--prompts FILE.jsonl]
    python benchmarks/gpu_cold_start.py --json OUT.json --small

Greedy answers in bf16, batch of one, on a static cache with ``torch.compile`` in the mode
"reduce-overhead", which records CUDA graphs; where that fails, the error is noted in the file and
all arms run without it. Every arm answers every chat prompt, in turn, in another order each round.
A first round, which compiles, does not count. The speed-up is plain decoding's median time a token
over the arm's, both by the same loop and on the same kind of cache; transformers' own loop is one
more arm. In bf16 near ties may fall otherwise at another width, so that texts can part: the file
says after how many tokens.

Without ``--model`` it is freedraft's default model, when that is in the cache. ``--small`` takes a
random tiny model on a CPU, and the compiler's front end only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_timing import machine
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.generation.configuration_utils import CompileConfig

import freedraft
from freedraft.drafters import Drafter, create_drafter
from freedraft.drafters.blend import BlendDrafter
from freedraft.integrations.default_model import (
    default_model_folder,
    default_model_problem,
    load_model,
)

ARMS: dict[str, Callable[[], Drafter | None]] = {
    "plain": lambda: None,
    "lookahead": lambda: create_drafter("lookahead"),
    "recycling": lambda: create_drafter("recycling"),
    "recycling + ngram": lambda: BlendDrafter(
        [create_drafter("ngram"), create_drafter("recycling")]
    ),
}
TRANSFORMERS = "transformers"
"""The arm of the library's own loop."""
MAX_NODES = 31  # with the root 32 columns, a width for which a graph is recorded


@dataclass(frozen=True)
class Setup:
    """A model, its prompts, and how its steps are run.

    Attributes:
        model: on its device.
        prompts: ``(1, length)`` ids each, by name.
        num_tokens: tokens of an answer at most.
        options: for ``generate``: the cache, and how steps are compiled.
    """

    model: PreTrainedModel
    prompts: dict[str, torch.Tensor]
    num_tokens: int
    options: dict[str, Any]


def small_setup() -> Setup:
    """Return a random model and prompts over few symbols."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    prompts = {name: torch.randint(1, 6, (1, 24)) for name in ("first", "second")}
    compiling = CompileConfig(backend="eager", mode=None)
    return Setup(
        model, prompts, 16, {"cache_implementation": "static", "compile_config": compiling}
    )


def real_setup(folder: str, prompts: Path, num_prompts: int, num_tokens: int) -> Setup:
    """Return a model of a folder in bf16 on the GPU, and the first chat prompts of a file."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = load_model(folder)
    model = model.to(device, torch.bfloat16).eval()
    ids = {}
    for record in map(json.loads, prompts.read_text(encoding="utf-8").splitlines()):
        if record["workload"] == "chat" and len(ids) < num_prompts:
            encoded = tokenizer.apply_chat_template(
                [{"role": "user", "content": record["prompt"]}],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
            ids[record["id"]] = encoded["input_ids"].to(device)
    compiling = CompileConfig(fullgraph=False, dynamic=False, mode="reduce-overhead")
    options = {"cache_implementation": "static", "compile_config": compiling}
    return Setup(model, ids, num_tokens, options)


def answer(setup: Setup, name: str, arm: str) -> dict[str, Any]:
    """Answer one prompt with one arm; its drafter is made before the clock starts."""
    prompt = setup.prompts[name]
    options = setup.options | {"max_new_tokens": setup.num_tokens, "do_sample": False}
    drafter = None if arm == TRANSFORMERS else ARMS[arm]()
    if prompt.is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    if arm == TRANSFORMERS:
        mask = torch.ones_like(prompt)
        sequences = setup.model.generate(prompt, attention_mask=mask, **options)  # type: ignore[operator]
        token_ids, steps = sequences[0, prompt.shape[1] :].tolist(), None
    else:
        result = freedraft.generate(
            setup.model, prompt, drafter=drafter, max_nodes=MAX_NODES, return_dict=True, **options
        )
        token_ids, steps = result.token_ids[0], result.statistics.tokens_per_step
    if prompt.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return {"ms_per_token": seconds / len(token_ids) * 1e3, "tokens_per_step": steps,
            "token_ids": token_ids}  # fmt: skip


def measure(setup: Setup, num_rounds: int) -> list[dict[str, Any]]:
    """Return a row for each prompt and arm, after a round that does not count."""
    arms = [*ARMS, TRANSFORMERS]
    rows = []
    for name in setup.prompts:
        rounds = []
        for number in range(num_rounds + 1):
            shift = number % len(arms)
            order = arms[shift:] + arms[:shift]
            rounds.append({arm: answer(setup, name, arm) for arm in order})
        times = {
            arm: statistics.median(part[arm]["ms_per_token"] for part in rounds[1:]) for arm in arms
        }
        last = rounds[-1]
        for arm in arms:
            pairs = zip(last[arm]["token_ids"], last["plain"]["token_ids"], strict=False)
            rows.append(
                {
                    "prompt": name,
                    "arm": arm,
                    "tokens": len(last[arm]["token_ids"]),
                    "tokens_per_step": last[arm]["tokens_per_step"],
                    "ms_per_token": times[arm],
                    "speedup": times["plain"] / times[arm],
                    "tokens_as_plain": sum(1 for _ in takewhile(lambda p: p[0] == p[1], pairs)),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure, compiled where that works, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where the numbers are written")
    parser.add_argument("--model", help="a folder with model and tokenizer")
    here = Path(__file__).parent
    parser.add_argument("--prompts", type=Path, default=here / "bench_prompts.jsonl")
    parser.add_argument("--num-prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run at all?")
    arguments = parser.parse_args()
    if arguments.small:
        setup = small_setup()
    else:
        folder = arguments.model
        if folder is None:
            problem = default_model_problem()
            if problem is not None:
                print(f"no --model, and the default model cannot be used: {problem}")
                return 1
            folder = str(default_model_folder())
        setup = real_setup(folder, arguments.prompts, arguments.num_prompts, arguments.tokens)
    not_compiled = None
    num_rounds = 1 if arguments.small else arguments.rounds
    try:
        rows = measure(setup, num_rounds)
    except Exception as error:  # the compiler's own are of many kinds; the file tells which
        if arguments.small:
            raise
        not_compiled = f"{type(error).__name__}: {error}"[:500]
        print(f"without the compiler, for it failed: {not_compiled}")
        plain = Setup(setup.model, setup.prompts, setup.num_tokens, {})
        rows = measure(plain, num_rounds)
    result = {
        "machine": machine(setup.model.device),
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "small": arguments.small,
        "dtype": str(setup.model.dtype),
        "max_nodes": MAX_NODES,
        "compile_error": not_compiled,
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
