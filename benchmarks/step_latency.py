"""What does drafting cost a step: by context length, batch and file, beside Arctic Inference?

    FOLDER/bin/python benchmarks/step_latency.py TRACES.jsonl... --tokenizer MODEL --out OUT.json

FOLDER is what ``rivals.sh`` made. All subjects draft 16 nodes at most and run in turn, step by
step, in one process, each along its own walk over the recorded responses. Each round has an order
of its own, in which a subject with the n-gram drafter's kernels follows one without them, and one
without them one with them: what ran before decides what the caches hold. A step is one propose for
the batch and one extend a request, or one for the batch where the drafter takes that (Arctic has
no batch calls). Parts:

- ``contexts``: prompts of 1k to 128k tokens, batches of 1, 8 and 64. Before the clock starts, the
  suffix drafter may index the whole prompt. Batches that would cost Arctic more than 2^21 tokens of
  prompt are walked without it.
- ``files``: every request of every trace file, in order, as it comes.
- ``ingest``: microseconds and bytes a token of long texts.
- ``eviction``: what a response of 2,000 tokens costs in all, from start to stop, in a full pool
  where it drives out an older one, and in one with room.

Processor time of the calling thread stands beside wall time, since on a shared machine wall times
hold the turns of others. Reading both clocks costs what ``clock_us`` says; it is not taken off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import rivals
from pool_upkeep import Clock, eviction, ingest
from transformers import AutoTokenizer

from freedraft.drafters.base import Drafter, ExtendsInBatches
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.edit import EditDrafter
from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter
from freedraft.drafters.tree import CandidateTree, accepted_path
from freedraft.workbench.traces import TokenTrace, read_traces, tokenize_traces

IntArray = npt.NDArray[np.int32]

MAX_NODES = 16
CONTEXTS = (1_024, 8_192, 32_768, 131_072)
BATCHES = (1, 8, 64)
STEPS = {1: 400, 8: 100, 64: 40}
MOST_ARCTIC_TOKENS = 1 << 21
MOST_TOKENS = 1 << 22
PARTS = ("files", "ingest", "eviction", "contexts")
ONE_PLACE = {"max_visits": (1, 1, 1), "max_places": 1, "max_skip_visits": 0}
"""With one place there is nothing to branch to: the n-gram drafter's tree is a chain."""


def one_or_all(
    call: Callable[[int, IntArray], None], requests: list[int], emitted: list[IntArray]
) -> Callable[[], None]:
    """Return ``call`` for the only request, or what calls it for each."""
    if len(requests) == 1:
        return partial(call, requests[0], emitted[0])

    def call_all() -> None:
        for request, tokens in zip(requests, emitted, strict=True):
            call(request, tokens)

    return call_all


class Subject:
    """One of our drafters on its own walk."""

    def __init__(self, name: str, drafter: Drafter) -> None:
        """Take the drafter over."""
        self.name = name
        self.drafter: Any = drafter
        self.propose_clock, self.extend_clock = Clock(), Clock()
        self.has_ngram = name.startswith(("ngram", "blend"))
        self.places: dict[int, int] = {}
        self.responses: dict[int, IntArray] = {}

    def start(self, request: int, prompt: IntArray, response: IntArray) -> None:
        """Begin a request that will answer ``response``."""
        self.drafter.start(request, prompt)
        self.places[request], self.responses[request] = 0, response

    def settle(self, num_tokens: int) -> None:
        """Let what works in slices catch up with ``num_tokens`` of prompts."""
        requests = list(self.places)
        for _ in range(num_tokens // SuffixConfig().slice_tokens + len(requests) + 1):
            self.drafter.propose(requests, MAX_NODES, MAX_NODES)

    def stop(self, request: int) -> None:
        """End a request."""
        self.drafter.stop(request)
        del self.places[request], self.responses[request]

    def runs(self, request: int) -> bool:
        """Return whether the response goes on."""
        return self.places[request] < self.responses[request].size

    def step(self) -> None:
        """Draft for all running requests and commit what their responses accept."""
        requests = list(self.places)
        trees = self.propose_clock.time(self.proposal(requests))
        emitted: list[IntArray] = []
        for request, tree in zip(requests, self.as_trees(trees), strict=True):
            place, response = self.places[request], self.responses[request]
            accepted = accepted_path(tree, response[place:]).size
            emitted.append(response[place : place + accepted + 1])
            self.places[request] = place + emitted[-1].size
        self.extend_clock.time(self.extension(requests, emitted))
        self.after_extend(requests, emitted)

    def proposal(self, requests: list[int]) -> Callable[[], Any]:
        """Return the call that is timed: nothing of the walk's own is in it."""
        return partial(self.drafter.propose, requests, MAX_NODES, MAX_NODES)

    def as_trees(self, trees: Any) -> list[CandidateTree]:
        """Return what ``propose`` returned as trees; not timed."""
        return trees  # type: ignore[no-any-return]

    def extension(self, requests: list[int], emitted: list[IntArray]) -> Callable[[], None]:
        """Return the call that is timed, for some batches one that calls again and again."""
        if len(requests) > 1 and isinstance(self.drafter, ExtendsInBatches):
            return partial(self.drafter.extend_batch, requests, emitted)
        return one_or_all(self.drafter.extend, requests, emitted)

    def after_extend(self, requests: list[int], emitted: list[IntArray]) -> None:
        """Do nothing: our drafters keep the text themselves."""

    def report(self, batch: int) -> dict[str, Any]:
        """Return the times."""
        return {
            "steps": len(self.propose_clock.wall),
            "batch": batch,
            "propose": self.propose_clock.report(),
            "extend": self.extend_clock.report(),
            "step": self.propose_clock.plus(self.extend_clock).report(),
        }


class ChainSubject(Subject):
    """A drafter of trees for an engine without trees: each tree's best chain, taken in time."""

    def proposal(self, requests: list[int]) -> Callable[[], Any]:
        """Return the call that is timed."""
        propose = super().proposal(requests)
        return lambda: [tree.best_chain() for tree in propose()]


class ReadSubject(Subject):
    """A drafter whose trees' arrays are read in time: they are cut out when they are looked at."""

    def proposal(self, requests: list[int]) -> Callable[[], Any]:
        """Return the call that is timed."""
        propose = super().proposal(requests)

        def read() -> Any:
            trees = propose()
            for tree in trees:
                _ = tree.token_ids, tree.parents, tree.probs
            return trees

        return read


class ArcticSubject(Subject):
    """Arctic's cache: the timed calls are its own, without our adapter around them."""

    def __init__(self, name: str) -> None:
        """Create an empty cache."""
        self.rival: Any = rivals.RIVALS[name](MAX_NODES)
        super().__init__(name, self.rival)

    def settle(self, num_tokens: int) -> None:
        """Do nothing: it inserts whole prompts at once."""

    def proposal(self, requests: list[int]) -> Callable[[], Any]:
        """Return the call that is timed, for a batch one that calls again and again."""
        if len(requests) == 1:
            return partial(self.rival.speculate, requests[0], MAX_NODES)
        return lambda: [self.rival.speculate(request, MAX_NODES) for request in requests]

    def as_trees(self, trees: Any) -> list[CandidateTree]:
        """Return the drafts as trees."""
        drafts = trees if isinstance(trees, list) else [trees]
        return [CandidateTree.from_arrays(draft.token_ids, draft.parents) for draft in drafts]

    def extension(self, requests: list[int], emitted: list[IntArray]) -> Callable[[], None]:
        """Return the call that is timed, for a batch one that calls again and again."""
        return one_or_all(self.rival.cache.add_active_response, requests, emitted)

    def after_extend(self, requests: list[int], emitted: list[IntArray]) -> None:
        """Append to the texts that an engine keeps; not timed."""
        for request, tokens in zip(requests, emitted, strict=True):
            self.rival.contexts[request].append(tokens)


def make_subjects(num_tokens: int, arctic: bool) -> list[Subject]:
    """Return fresh subjects with room for ``num_tokens`` of running requests."""
    capacity = max(1 << 22, 2 * num_tokens)
    pool_bytes = 1 << 30 if num_tokens < 1 << 21 else 6 << 30

    def ngram(**settings: Any) -> NgramDrafter:
        return NgramDrafter(NgramConfig(capacity=capacity, **settings))

    def suffix() -> SuffixDrafter:
        return SuffixDrafter(SuffixConfig(max_bytes=pool_bytes))

    names = [name for name in rivals.available() if name.startswith("arctic")] if arctic else []
    return [
        Subject("ngram", ngram()),
        Subject("ngram-one-place", ngram(**ONE_PLACE)),
        ChainSubject("ngram-best-chain", ngram()),
        ReadSubject("ngram-read", ngram()),
        Subject("blend", BlendDrafter([ngram(), suffix(), EditDrafter()])),
        Subject("edit", EditDrafter()),
        Subject("suffix", suffix()),
        *map(ArcticSubject, names),
    ]


def next_round(generator: np.random.Generator, subjects: list[Subject]) -> list[Subject]:
    """Return the subjects in a new order, those with the n-gram drafter's kernels between others.

    As many of the one as of the other, as they are with Arctic's three, never follow their own.
    """
    shuffled = [subjects[place] for place in generator.permutation(len(subjects))]
    with_kernels = [subject for subject in shuffled if subject.has_ngram]
    others = [subject for subject in shuffled if not subject.has_ngram]
    pairs = zip_longest(with_kernels, others)
    return [subject for pair in pairs for subject in pair if subject is not None]


def by_context(traces: Sequence[TokenTrace], contexts: Sequence[int]) -> list[dict[str, Any]]:
    """Walk batches behind long prompts."""
    generator = np.random.default_rng(0)
    text = np.concatenate([part for t in traces for part in (t.prompt_ids, t.response_ids)])
    responses = [trace.response_ids for trace in traces]
    rows = []
    for context in contexts:
        for batch in (size for size in BATCHES if context * size <= MOST_TOKENS):
            arctic = context * batch <= MOST_ARCTIC_TOKENS
            subjects = make_subjects(context * batch, arctic)
            for request in range(batch):
                trace = traces[request % len(traces)]
                begin = request * 7_919 % text.size
                filler = np.resize(np.roll(text, -begin), max(0, context - trace.prompt_ids.size))
                prompt = np.concatenate((filler, trace.prompt_ids))[-context:]
                first = request % len(traces)
                response = np.concatenate(responses[first:] + responses[:first])
                for subject in subjects:
                    subject.start(request, prompt, response)
            for subject in subjects:
                subject.settle(context * batch)
            for _ in range(STEPS[batch]):
                for subject in next_round(generator, subjects):
                    subject.step()
            for subject in subjects:
                row = {"context": context, "subject": subject.name, **subject.report(batch)}
                rows.append(row)
                show(f"{context:6} tokens, batch {batch:2}", row)
    return rows


def by_file(files: dict[str, list[TokenTrace]], most_requests: int) -> list[dict[str, Any]]:
    """Walk every file's requests in order, one at a time."""
    generator = np.random.default_rng(0)
    rows = []
    for file, traces in files.items():
        subjects = make_subjects(0, True)
        for request, trace in enumerate(traces[:most_requests]):
            for subject in subjects:
                subject.start(request, trace.prompt_ids, trace.response_ids)
            left = list(subjects)
            while left := [subject for subject in left if subject.runs(request)]:
                for subject in next_round(generator, left):
                    subject.step()
            for subject in subjects:
                subject.stop(request)
        for subject in subjects:
            rows.append({"file": file, "subject": subject.name, **subject.report(1)})
            show(file, rows[-1])
    return rows


def show(place: str, row: dict[str, Any]) -> None:
    """Print the step's times."""
    wall, processor = row["step"]["wall_us"], row["step"]["processor_us"]
    print(
        f"{place:24} {row['subject']:17} wall {wall['p50']:8.1f} p99 {wall['p99']:9.1f}, "
        f"processor {processor['p50']:8.1f} p99 {processor['p99']:9.1f} us a step",
        flush=True,
    )


def main() -> None:
    """Measure and write the results, part by part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS)
    parser.add_argument("--contexts", type=lambda text: [int(x) for x in text.split(",")])
    parser.add_argument("--most-requests", type=int, default=1_000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    encode = partial(tokenizer.encode, add_special_tokens=False, verbose=False)
    files = {path.name: list(tokenize_traces(read_traces(path), encode)) for path in options.traces}
    traces = next(iter(files.values()))
    text = np.concatenate([trace.response_ids for trace in traces])
    empty = Clock()
    for _ in range(10_000):
        empty.time(lambda: None)
    measures: dict[str, Callable[[], Any]] = {
        "files": lambda: by_file(files, options.most_requests),
        "ingest": lambda: ingest(text),
        "eviction": lambda: eviction(text),
        "contexts": lambda: by_context(traces, options.contexts or CONTEXTS),
    }
    result: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    result |= {
        "question": "microseconds a step of drafting, by context, batch and file, beside Arctic",
        "max_nodes": MAX_NODES,
        "clock_us": empty.report(),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "numpy": np.__version__,
        "rivals": rivals.available(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared: other programs ran",
    }
    for part in options.parts:
        load_before = os.getloadavg()
        result[part] = measures[part]()
        result[f"{part}_load_average"] = [round(load_before[0], 1), round(os.getloadavg()[0], 1)]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        if part in ("ingest", "eviction"):
            print(json.dumps(result[part], indent=1), flush=True)


if __name__ == "__main__":
    main()
