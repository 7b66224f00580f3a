"""Each engine's adapter behind one small interface, with stand-ins for the engines.

A harness takes the complete texts of the running requests, as its engine would tell them, lets the
adapter draft once, and returns what it drafted.
"""

from __future__ import annotations

import importlib
import json
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorrt_llm_stand_in import GENERATIONS, Request, make_modules
from vllm_fakes import FakeRunner, make_config, scheduler_step

from freedraft.drafters import create_drafter
from freedraft.integrations.budget import Calibration
from freedraft.workbench.conformance.path_sglang import adapter_on_stand_in

VOCAB = 64
LONGEST = 7
"""Most tokens of a draft that each harness's engine asks for."""
MAX_CONTEXT = 400
PLACEHOLDER = 7

Texts = dict[str, list[int]]
Paths = dict[str, list[list[int]]]


class VllmHarness:
    """The proposer behind a runner that tells ids."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runner = FakeRunner(self.config(), self.proposer_class(), num_rows=16)

    @staticmethod
    def proposer_class() -> Any:
        from freedraft.integrations.vllm_adapter import FreedraftProposer

        return FreedraftProposer

    @staticmethod
    def config() -> Any:
        settings = {"drafter": "ngram", "budget": "full", "placeholder_ids": [PLACEHOLDER]}
        return make_config(
            vocab_size=VOCAB,
            max_model_len=MAX_CONTEXT,
            num_speculative_tokens=LONGEST,
            settings=settings,
        )

    def draft(self, texts: Texts) -> Paths:
        gone = [name for name in self.runner.requests if name not in texts]
        for name in gone:
            self.runner.remove(name)
        for name, text in texts.items():
            if name not in self.runner.requests:
                self.runner.add(name, text[:1])
            row = self.runner.input_batch.req_ids.index(name)
            self.runner.input_batch.token_ids_cpu[row, : len(text)] = text
            self.runner.input_batch.num_tokens_no_spec[row] = len(text)
        sampled = [[texts[name][-1]] for name in self.runner.input_batch.req_ids]
        step = scheduler_step(finished=gone)
        drafts = self.runner.propose_draft_token_ids(step, sampled)
        return {
            name: [chain] if chain else []
            for name, chain in zip(self.runner.input_batch.req_ids, drafts, strict=True)
        }

    def num_followed(self) -> int:
        return len(self.runner.drafter._book)

    def book(self) -> Any:
        return self.runner.drafter._book


class SglangHarness:
    """The worker on a stand-in of the one it derives from; the real one has tests of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        adapter = adapter_on_stand_in(VOCAB, LONGEST + 1, MAX_CONTEXT)
        settings = json.dumps({"drafter": "ngram", "placeholder_ids": [PLACEHOLDER]})
        monkeypatch.setenv(adapter.CONFIG_VARIABLE, settings)
        self.worker = adapter.FreedraftWorker(None, 0, 0, None)

    def draft(self, texts: Texts) -> Paths:
        requests = [
            SimpleNamespace(
                rid=name,
                origin_input_ids_unpadded=array("q", text[:1]),
                output_ids=array("q", text[1:]),
                sampling_params=SimpleNamespace(max_new_tokens=None),
                extra_key=None,
            )
            for name, text in texts.items()
        ]
        batch = SimpleNamespace(reqs=requests, grammar_needs_sync=lambda: False)
        ids, mask = self.worker._prepare_draft_tokens(batch)
        self.worker._prev_decode_rids = set(texts)
        proposed = {name: self.book()._entries[name].proposed.num_nodes for name in texts}
        slots = LONGEST + 1
        flags = mask.reshape(-1, slots, slots)
        return {
            name: [
                [int(ids[row * slots + slot]) for slot in np.flatnonzero(flags[row, node])[1:]]
                for node in range(1, proposed[name] + 1)
            ]
            for row, name in enumerate(texts)
        }

    def num_followed(self) -> int:
        return len(self.book())

    def book(self) -> Any:
        return self.worker._book


class TensorRtHarness:
    """The drafter and its manager on the newest recorded signatures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from freedraft.integrations.engine_config import EngineConfig
        from freedraft.integrations.tensorrt_llm_chains import RequestChains

        for name, module in make_modules(list(GENERATIONS.values())[-1]).items():
            monkeypatch.setitem(sys.modules, name, module)
        adapter = fresh_import("tensorrt_llm_adapter", monkeypatch)
        config = EngineConfig(drafter="ngram", placeholder_ids=(PLACEHOLDER,))
        self.chains = RequestChains(VOCAB, config)
        self.drafter = adapter.FreedraftDrafter(self.chains, LONGEST)
        self.manager = adapter.FreedraftManager(self.chains)
        self.running: dict[str, Request] = {}

    def draft(self, texts: Texts) -> Paths:
        for name in [name for name in self.running if name not in texts]:
            self.manager.free_resources(self.running.pop(name))
        for place, (name, text) in enumerate(texts.items()):
            request = self.running.setdefault(name, Request(0, text[:1], MAX_CONTEXT - 1))
            request.request_id = name  # type: ignore[assignment]
            request.py_batch_idx, request.tokens = place, list(text)
        batch = SimpleNamespace(generation_requests=list(self.running.values()))
        self.drafter.prepare_draft_tokens(batch)
        return {
            name: [request.py_draft_tokens] if request.py_draft_tokens else []
            for name, request in self.running.items()
        }

    def num_followed(self) -> int:
        return len(self.chains.book)

    def book(self) -> Any:
        return self.chains.book


class LlamaHarness:
    """The draft model; its engine has one text at a time, so each call may begin another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from freedraft.integrations.llama_cpp_adapter import LlamaDraft, LlamaDraftConfig

        seconds = np.array([1.0, 1.01, 1.02, 1.03]).reshape(1, 1, -1)
        costs = Calibration(
            "m", "llama-cpp", "cpu", "measured", (128,), (1,), (0, 1, 3, 7), seconds
        )
        config = LlamaDraftConfig(max_length=LONGEST, placeholder_ids=(PLACEHOLDER,))
        self.model = LlamaDraft(create_drafter("ngram"), VOCAB, MAX_CONTEXT, costs, config)

    def draft(self, texts: Texts) -> Paths:
        found = {}
        for name, text in texts.items():
            chain = self.model(np.array(text, np.intc)).tolist()
            found[name] = [chain] if chain else []
        return found

    def num_followed(self) -> int:
        return len(self.book())

    def book(self) -> Any:
        return self.model._book


def fresh_import(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import an adapter on the stand-ins that are in place, and forget it with them."""
    full = f"freedraft.integrations.{name}"
    monkeypatch.delitem(sys.modules, full, raising=False)
    module = importlib.import_module(full)
    monkeypatch.setitem(sys.modules, full, module)
    return module


HARNESSES = {
    "vllm": VllmHarness,
    "sglang": SglangHarness,
    "tensorrt_llm": TensorRtHarness,
    "llama_cpp": LlamaHarness,
}
