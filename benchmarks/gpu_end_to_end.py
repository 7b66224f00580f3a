"""What would speculation save on this GPU? Real forwards, scripted acceptance.

A Llama-3-8B-shaped model with random weights runs each step's forward (one row, a context of fixed
length full of random keys); its own choice is computed and dropped, and the tokens of a recorded
response are emitted instead. So times are real, acceptance is that of the trace, and the text is
not the model's. Plain decoding is the same loop with empty trees.

    python benchmarks/gpu_end_to_end.py run --json out.json [--tokens tokens.jsonl] [--small]
    python benchmarks/gpu_end_to_end.py prepare traces.jsonl tokenizer_folder tokens.jsonl

Without ``--tokens`` the responses are synthetic: pieces of the prompt with changed tokens between.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from gpu_model import TINY, LlamaShape, RandomLlama, context_of, num_pieces
from gpu_timing import machine
from torch import Tensor

from freedraft.drafters import CandidateTree, Feedback
from freedraft.drafters.ngram import NgramDrafter
from freedraft.verifier.device.batched_sampling import RowSampling
from freedraft.verifier.device.batched_walk import (
    ancestor_words,
    bucket_width,
    column_depths,
    unpack_ancestors,
)
from freedraft.verifier.device.operations import device_operations
from freedraft.verifier.noise import NoiseKey

BUCKETS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Request:
    """A recorded request in tokens."""

    workload: str
    prompt_ids: list[int]
    response_ids: list[int]


class StepGraphs:
    """One step for each bucket: mask, forward, choice, walk, compaction; captured on a GPU."""

    def __init__(self, shape: LlamaShape, slots: int, device: torch.device) -> None:
        """Build the model and one step for each bucket."""
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._device = device
        self._shape = shape
        self._slots = slots
        self._model = RandomLlama(shape, device, dtype)
        numel = 2 * slots * shape.num_kv_heads * shape.head_size
        storage = [
            torch.empty(numel, device=device, dtype=dtype).normal_()
            for _ in range(shape.num_layers)
        ]
        self._context = context_of(shape, storage, 1, slots)
        size = (1, shape.num_kv_heads, 64 + BUCKETS[-1], shape.head_size)
        self._states = [
            torch.randn(size, device=device, dtype=dtype) for _ in range(2 * shape.num_layers)
        ]
        self._operations = device_operations(device)
        self._compact = self._operations.compact_cache
        if self._operations.kind == "triton":
            from freedraft.verifier.device.triton_cache import cache_addresses

            self._compact = partial(self._compact, addresses=cache_addresses(self._states))
        self._sampling = RowSampling.build([NoiseKey(0)], [0.0], device=device)
        self._lengths = torch.full((1,), 40, device=device)
        # Token ids, parents and recorded choices of a step; graphs read them where they lie.
        self._inputs: dict[int, Tensor] = {}
        for width in BUCKETS:
            self._inputs[width] = torch.zeros(3, 1, width, dtype=torch.int64, device=device)
            self._inputs[width][1] = -1
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        if device.type == "cuda":
            for width in BUCKETS:
                self._capture(width)

    def _step(self, width: int) -> Tensor:
        token_ids, parents, forced = self._inputs[width]
        visible = None
        if width > 1:
            visible = unpack_ancestors(ancestor_words(parents), parents)
        positions = column_depths(parents) + self._slots
        pieces = num_pieces(1, self._shape.num_kv_heads, self._slots)
        logits = self._model.forward(token_ids, positions, visible, self._context, pieces)
        self._operations.choose_tokens(logits, positions + 1, self._sampling)
        walked = self._operations.walk_trees(forced, token_ids, parents)
        self._compact(self._states, walked.columns, walked.lengths + 1, self._lengths, 64)
        return torch.cat([walked.lengths[:, None], walked.token_ids, walked.columns], 1)

    def _capture(self, width: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step(width)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = self._step(width)
        self._graphs[width] = (graph, result)

    def run(
        self, tree: CandidateTree, root_id: int, target_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Run a step and return the emitted tokens and the accepted nodes.

        Args:
            tree: the candidates.
            root_id: last committed token.
            target_ids: what the recorded response goes on with.
        """
        width = bucket_width(tree.num_nodes + 1, BUCKETS)
        inputs = np.zeros((3, 1, width), np.int64)
        inputs[1] = -1
        stop = tree.num_nodes + 1
        depths = np.concatenate([[0], tree.depths()])
        inputs[0, 0, 0] = root_id
        inputs[0, 0, 1:stop] = tree.token_ids
        inputs[1, 0, 1:stop] = tree.parents + 1
        # After the end nothing matches; a column off the path may hold anything.
        recorded = np.array([*target_ids[: width + 1], *[-1] * (width + 1)])
        inputs[2, 0, :stop] = recorded[depths]
        self._inputs[width].copy_(torch.from_numpy(inputs), non_blocking=True)
        if width in self._graphs:
            graph, result = self._graphs[width]
            graph.replay()
        else:
            result = self._step(width)
        length, *rest = result[0].tolist()
        return rest[: length + 1], [column - 1 for column in rest[width + 1 : width + 1 + length]]


def decode(steps: StepGraphs, request: Request, drafter: NgramDrafter | None) -> tuple[float, int]:
    """Return the seconds and the steps of one response."""
    left = request.response_ids
    root_id = request.prompt_ids[-1]
    num_steps = 0
    begin = time.perf_counter()
    if drafter is not None:
        drafter.start("r", request.prompt_ids)
    while left:
        tree = CandidateTree.empty()
        if drafter is not None:
            limit = min(BUCKETS[-1] - 1, len(left) - 1)
            (tree,) = drafter.propose(["r"], BUCKETS[-1] - 1, limit)
        token_ids, accepted = steps.run(tree, root_id, left)
        assert token_ids == left[: len(token_ids)], "a step emitted what was not recorded"
        if drafter is not None:
            choices = np.full(tree.num_nodes + 1, -1, np.int32)
            emitted = np.array(token_ids, np.int32)
            feedback = Feedback(emitted, np.array(accepted, np.int32), choices)
            drafter.observe("r", tree, feedback)
            drafter.extend("r", emitted)
        left = left[len(token_ids) :]
        root_id = token_ids[-1]
        num_steps += 1
    seconds = time.perf_counter() - begin
    if drafter is not None:
        drafter.stop("r")
    return seconds, num_steps


def synthetic_requests(vocab_size: int, num_tokens: int) -> list[Request]:
    """Return requests that copy pieces of their prompt and change a token between."""
    rng = np.random.default_rng(0)
    requests = []
    for _ in range(4):
        prompt = rng.integers(vocab_size, size=2 * num_tokens).tolist()
        response: list[int] = []
        while len(response) < num_tokens:
            start = int(rng.integers(num_tokens))
            response += prompt[start : start + int(rng.integers(2, 12))]
            response.append(int(rng.integers(vocab_size)))
        requests.append(Request("synthetic", prompt, response[:num_tokens]))
    return requests


def read_requests(path: Path, max_tokens: int, max_requests: int, vocab_size: int) -> list[Request]:
    """Return the first requests of each workload of a prepared file, responses cut short.

    Ids beyond the model's vocabulary are folded into it.
    """
    kept: dict[str, list[Request]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        of_kind = kept.setdefault(record["workload"], [])
        if len(of_kind) < max_requests and record["response_ids"]:
            prompt, response = (
                [token % vocab_size for token in record[name]]
                for name in ("prompt_ids", "response_ids")
            )
            of_kind.append(Request(record["workload"], prompt, response[:max_tokens]))
    return [request for requests in kept.values() for request in requests]


def prepare(traces: Path, tokenizer: Path, output: Path) -> None:
    """Write a trace file in tokens, so that the GPU machine needs no tokenizer."""
    from transformers import AutoTokenizer

    from freedraft.workbench.traces import read_traces

    encode = AutoTokenizer.from_pretrained(tokenizer).encode
    with output.open("a", encoding="utf-8") as file:
        for trace in read_traces(traces):
            record = {
                "workload": trace.workload,
                "prompt_ids": encode(trace.prompt, add_special_tokens=False),
                "response_ids": encode(trace.response, add_special_tokens=False),
            }
            file.write(json.dumps(record) + "\n")


def run(arguments: argparse.Namespace) -> None:
    """Decode each request plainly and with drafts, and print and write the speed-ups."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape, slots = (TINY, 64) if arguments.small else (LlamaShape(), 2048)
    torch.manual_seed(0)
    num_tokens = 32 if arguments.small else 256
    requests = (
        read_requests(arguments.tokens, num_tokens, 1 if arguments.small else 6, shape.vocab_size)
        if arguments.tokens
        else synthetic_requests(shape.vocab_size, num_tokens)
    )
    rows: list[dict[str, object]] = []
    with torch.inference_mode():
        steps = StepGraphs(shape, slots, device)
        drafter = NgramDrafter()
        decode(steps, requests[0], None)  # warms up
        for workload in dict.fromkeys(request.workload for request in requests):
            plain = drafted = 0.0
            tokens = num_steps = 0
            speedups = []
            for request in [r for r in requests if r.workload == workload]:
                plain_seconds, _ = decode(steps, request, None)
                seconds, count = decode(steps, request, drafter)
                speedups.append(plain_seconds / seconds)
                plain, drafted = plain + plain_seconds, drafted + seconds
                tokens, num_steps = tokens + len(request.response_ids), num_steps + count
            row = {
                "workload": workload,
                "requests": len(speedups),
                "tokens_per_step": tokens / num_steps,
                "plain_ms_per_token": plain / tokens * 1e3,
                "drafted_ms_per_token": drafted / tokens * 1e3,
                "speedup": math.exp(sum(map(math.log, speedups)) / len(speedups)),
            }
            rows.append(row)
            print(
                f"{workload:12} {len(speedups):3} requests, {tokens / num_steps:5.2f} tokens/step, "
                f"{row['plain_ms_per_token']:.2f} -> {row['drafted_ms_per_token']:.2f} ms/token, "
                f"speed-up {row['speedup']:.2f} (scripted acceptance)"
            )
    result = {
        "machine": machine(device),
        "small": arguments.small,
        "acceptance": "scripted from the traces; the forwards are real",
        "context_slots": slots,
        "workloads": rows,
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="end-to-end speed-up with scripted acceptance")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="measure")
    running.add_argument("--json", type=Path, required=True, help="where the numbers are written")
    running.add_argument("--tokens", type=Path, help="a file that `prepare` wrote")
    running.add_argument("--small", action="store_true", help="tiny sizes: does it run at all?")
    preparing = commands.add_parser("prepare", help="tokenize a trace file")
    for name in ("traces", "tokenizer", "output"):
        preparing.add_argument(name, type=Path)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.traces, arguments.tokenizer, arguments.output)
    else:
        run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
