"""What does the decode loop itself cost on this GPU, walked on the device and on the host?

    python benchmarks/gpu_decode_loop.py --json out.json [--tokens tokens.jsonl] [--small]

The loop behind ``freedraft.generate`` decodes recorded responses with a Llama-3-8B-shaped model of
transformers with random weights, one row and eight, greedily and sampled, with and without drafts.
Forwards, drafting, walks and caches are real; only the logits are raised at the tokens of the
recorded response, so that acceptance is that of the trace (scripted). Steps run eagerly: what
CUDA graphs save is the matter of ``gpu_end_to_end.py``. The arms of a batch run in turn.

Without ``--tokens`` the responses are synthetic, as in ``gpu_end_to_end.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from gpu_end_to_end import Request, read_requests, synthetic_requests
from gpu_model import TINY, LlamaShape
from gpu_timing import machine
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from freedraft.drafters import CandidateTree, create_drafter
from freedraft.integrations.draft_guard import DraftGuard
from freedraft.integrations.generation.decode_loop import DecodeLoop
from freedraft.integrations.generation.decode_row import StopRules
from freedraft.integrations.generation.device_walk import DeviceWalk
from freedraft.integrations.generation.setup import make_rows
from freedraft.verifier import NoiseKey, TreeForward

MAX_NODES = 31
RAISED = 1e4  # far above any logit of a random model


class ScriptedTarget(TreeForward):
    """A target whose most likely token is the recorded one, on and off the recorded path alike."""

    def __init__(self, model: PreTrainedModel, requests: Sequence[Request], capacity: int) -> None:
        """Take the responses of the rows.

        Args:
            model: what runs.
            requests: one a row.
            capacity: slots that the cache leaves room for.
        """
        super().__init__(model, capacity=capacity)
        self._requests = list(requests)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        logits = super().prefill(prompts)
        self._raise_recorded(logits[:, None], [[0]] * len(prompts), [0] * len(prompts))
        return logits

    def forward(self, trees: Sequence[CandidateTree], root_ids: Sequence[int]) -> Tensor:
        logits = super().forward(trees, root_ids)
        depths = [[0, *tree.depths().tolist()] for tree in trees]
        starts = [
            length + 1 - len(request.prompt_ids)
            for length, request in zip(self.context_lengths, self._requests, strict=True)
        ]
        self._raise_recorded(logits, depths, starts)
        return logits

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self._requests = [self._requests[row] for row in rows]

    def _raise_recorded(
        self, logits: Tensor, depths: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> None:
        """Raise the token that the response has ``depth`` tokens behind ``start``."""
        recorded = torch.zeros(logits.shape[:2], dtype=torch.int64)
        for row, (request, levels, start) in enumerate(
            zip(self._requests, depths, starts, strict=True)
        ):
            tokens = [*request.response_ids[start:], *[0] * (MAX_NODES + 1)]
            recorded[row, : len(levels)] = torch.tensor([tokens[level] for level in levels])
        index = recorded.to(logits.device, non_blocking=True)[..., None]
        logits.scatter_(2, index, RAISED)


def decode(
    model: PreTrainedModel,
    requests: Sequence[Request],
    sampled: bool,
    on_device: bool,
    drafts: bool,
) -> tuple[float, float]:
    """Return the seconds a token of a batch, the prompts' forward left out, and tokens a step."""
    num_new = min(len(request.response_ids) for request in requests)
    prompts = [request.prompt_ids for request in requests]
    longest = max(map(len, prompts))
    input_ids = torch.zeros((len(requests), longest), dtype=torch.int64)
    paddings = [longest - len(prompt) for prompt in prompts]
    for row, prompt in enumerate(prompts):
        input_ids[row, paddings[row] :] = torch.tensor(prompt)
    rows = make_rows(
        input_ids.to(model.device),
        paddings,
        [NoiseKey(7, row) if sampled else None for row in range(len(requests))],
        LogitsProcessorList(
            [TemperatureLogitsWarper(0.8), TopPLogitsWarper(0.95)] if sampled else []
        ),
        StopRules(frozenset(), (), longest + num_new, sys.maxsize),
        GenerationConfig(),
    )
    capacity = longest + num_new + MAX_NODES + 1
    loop = DecodeLoop(
        ScriptedTarget(model, requests, capacity),
        DraftGuard(create_drafter("ngram") if drafts else None, model.config.vocab_size),
        None,
        MAX_NODES,
        device_walk=DeviceWalk(model.device) if on_device else None,
    )
    loop.run(rows, prompts, "")
    for row, request in zip(rows, requests, strict=True):
        assert row.token_ids == request.response_ids[:num_new], "a token that was not recorded"
    done = loop.statistics
    seconds = (done.seconds - done.prefill_seconds) / (num_new * len(requests))
    return seconds, done.tokens_per_step


def build_model(shape: LlamaShape, device: torch.device) -> LlamaForCausalLM:
    """Return a model with random weights, in bf16 on a GPU."""
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=32768,
    )
    with device:
        model = LlamaForCausalLM._from_config(
            config, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
        )
    model.eval()
    return model


def main() -> int:
    """Decode every batch in every arm, and print and write the medians."""
    parser = argparse.ArgumentParser(description="the decode loop on a GPU, scripted acceptance")
    parser.add_argument("--json", type=Path, required=True, help="where the numbers are written")
    parser.add_argument("--tokens", type=Path, help="a file that gpu_end_to_end.py prepare wrote")
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run at all?")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = TINY if arguments.small else LlamaShape()
    num_tokens, num_rounds = (16, 1) if arguments.small else (96, 3)
    torch.manual_seed(0)
    requests = (
        read_requests(arguments.tokens, num_tokens, 2, shape.vocab_size)
        if arguments.tokens
        else synthetic_requests(shape.vocab_size, num_tokens)
    )
    requests = [request for request in requests if len(request.prompt_ids) < 4096]
    rows: list[dict[str, object]] = []
    with torch.no_grad():
        model = build_model(shape, device)
        for batch_size, sampled in product((1, 2) if arguments.small else (1, 8), (False, True)):
            batch = (requests * batch_size)[:batch_size]
            arms = list(product(("host", "device"), (False, True)))
            seconds: dict[tuple[str, bool], list[float]] = {arm: [] for arm in arms}
            tokens = 0.0
            for number, (place, drafts) in product(range(num_rounds + 1), arms):
                taken, tokens = decode(model, batch, sampled, place == "device", drafts)
                if number > 0 or arguments.small:  # the first round warms up
                    seconds[place, drafts].append(taken)
            row: dict[str, object] = {
                "batch_size": batch_size,
                "sampled": sampled,
                "tokens_per_step": round(tokens, 3),
            }
            for (place, drafts), values in seconds.items():
                name = f"{place}_{'drafts' if drafts else 'plain'}_ms_per_token"
                row[name] = round(statistics.median(values) * 1e3, 4)
            rows.append(row)
            print(json.dumps(row), flush=True)
    result = {
        "machine": machine(device),
        "small": arguments.small,
        "acceptance": "scripted from the traces; the forwards are real, and eager",
        "rows": rows,
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
