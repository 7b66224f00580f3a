"""Drafting inside TensorRT-LLM: recorded signatures, schedules, and ten thousand simulated steps.

The engine itself cannot be installed here; nothing of this has run on it.
"""

from __future__ import annotations

import importlib
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorrt_llm_stand_in import GENERATIONS, RECORDED, Request, make_modules, read_schedule

from freedraft.drafters import CandidateTree, Drafter, Feedback
from freedraft.integrations import tensorrt_llm_chains
from freedraft.integrations.engine_config import EngineConfig
from freedraft.integrations.tensorrt_llm_chains import RequestChains, read_vocab_size

ADAPTER = "freedraft.integrations.tensorrt_llm_adapter"
VOCAB = 12
LENGTH = 5


@pytest.fixture(params=GENERATIONS)
def adapter(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The adapter on each recorded generation of the engine."""
    for name, module in make_modules(GENERATIONS[request.param]).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    module = importlib.import_module(ADAPTER)
    vars(module)["generation"] = GENERATIONS[request.param]
    yield module
    sys.modules.pop(ADAPTER, None)


def last_place(text: Sequence[int], most: int) -> list[int]:
    """Return what followed the last earlier place of the two last tokens."""
    for start in range(len(text) - 3, -1, -1):
        if list(text[start : start + 2]) == list(text[-2:]):
            return list(text[start + 2 : start + 2 + most])
    return []


class LastPlace:
    """A drafter whose proposals depend on nothing but the text, so that they can be foretold."""

    name = "last place"

    def __init__(self) -> None:
        self.texts: dict[Any, list[int]] = {}
        self.observed = 0

    def start(self, request_id: Any, prompt_ids: Any, namespace: str = "") -> None:
        self.texts[request_id] = list(map(int, prompt_ids))

    def extend(self, request_id: Any, token_ids: Any) -> None:
        self.texts[request_id] += list(map(int, token_ids))

    def propose(self, request_ids: Any, max_nodes: int, max_depth: int) -> list[CandidateTree]:
        most = min(max_nodes, max_depth)
        return [CandidateTree.from_chain(last_place(self.texts[r], most)) for r in request_ids]

    def observe(self, request_id: Any, tree: CandidateTree, feedback: Feedback) -> None:
        self.observed += 1

    def truncate(self, request_id: Any, length: int) -> None:
        del self.texts[request_id][length:]

    def stop(self, request_id: Any) -> None:
        del self.texts[request_id]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> LastPlace:
    drafter = LastPlace()
    assert isinstance(drafter, Drafter)
    monkeypatch.setattr(tensorrt_llm_chains, "create_engine_drafter", lambda config: drafter)
    return drafter


def target_after(text: list[int]) -> int:
    """A model that repeats itself, with breaks."""
    return (text[-1] + 1) % 6 if len(text) % 11 else (sum(text[-3:]) * 7) % VOCAB


class Simulation:
    """The engine's executor: batches of requests that come, pause, end, and are cut short."""

    def __init__(self, adapter: ModuleType, seed: int) -> None:
        self.random = random.Random(seed)
        chains = RequestChains(VOCAB)
        self.schedule = None
        if adapter.generation["meaning"] is not None:
            self.schedule = {1: LENGTH, 3: 2, 5: 0}
        self.drafter = adapter.FreedraftDrafter(chains, LENGTH, schedule=self.schedule)
        self.manager = adapter.FreedraftManager(chains)
        self.meaning = adapter.generation["meaning"]
        self.chains = chains
        self.running: list[Request] = []
        self.paused: list[Request] = []
        self.next_id = 0
        self.counts = dict.fromkeys(("new", "reused", "paused", "ended", "rejected", "off"), 0)

    def step(self) -> None:
        self.admit()
        batch = SimpleNamespace(context_requests=[], generation_requests=list(self.running))
        length = LENGTH
        if self.schedule is not None:
            length = read_schedule(self.drafter.draft_len_schedule, len(self.running), self.meaning)
            self.drafter.update_max_total_draft_tokens(length)
        elif self.random.random() < 0.2:
            length = 0  # above the concurrency: the engine does not ask
        if length > 0:
            self.drafter.prepare_draft_tokens(batch, None)
            self.check(length)
        else:
            self.counts["off"] += 1
            for request in self.running:
                request.py_draft_tokens = []
        for request in self.running:
            self.verify(request)
        self.manager.update_resources(batch)
        self.retire()

    def check(self, length: int) -> None:
        """Every draft is exactly what the request's own text says."""
        for request in self.running:
            room = request.py_orig_prompt_len + request.py_max_new_tokens - len(request.tokens) - 1
            wanted = last_place(request.tokens, max(min(length, room), 0))
            assert request.py_draft_tokens == wanted, request.request_id
            assert type(request.py_draft_tokens) is list
            assert all(type(token) is int for token in request.py_draft_tokens)

    def admit(self) -> None:
        if self.paused and self.random.random() < 0.3:
            self.running.append(self.paused.pop(0))
        while len(self.running) < 2 or (len(self.running) < 7 and self.random.random() < 0.2):
            prompt = [self.random.randrange(VOCAB) for _ in range(self.random.randint(1, 12))]
            if self.next_id > 5 and self.random.random() < 0.1:
                free = set(range(self.next_id)) - {
                    r.request_id for r in [*self.running, *self.paused]
                }
                request_id = self.random.choice(sorted(free))
                self.counts["reused"] += 1
            else:
                request_id = self.next_id
                self.next_id += 1
            request = Request(request_id, prompt, self.random.randint(2, 30))
            request.tokens.append(target_after(request.tokens))  # from its prefill
            self.running.append(request)
            self.counts["new"] += 1
        self.random.shuffle(self.running)
        for place, request in enumerate(self.running):
            request.py_batch_idx = None if self.random.random() < 0.1 else place

    def verify(self, request: Request) -> None:
        # The engine pads the list in place, and verifies the fillers like drafts.
        request.py_draft_tokens.extend([0] * (LENGTH - len(request.py_draft_tokens)))
        end = request.py_orig_prompt_len + request.py_max_new_tokens
        for token in [*request.py_draft_tokens, None]:
            choice = target_after(request.tokens)
            request.tokens.append(choice)
            if choice != token:
                self.counts["rejected"] += token is not None
                break
        del request.tokens[end:]

    def retire(self) -> None:
        for request in list(self.running):
            end = request.py_orig_prompt_len + request.py_max_new_tokens
            if len(request.tokens) >= end or self.random.random() < 0.02:  # or aborted
                self.running.remove(request)
                self.manager.free_resources(request)
                self.counts["ended"] += 1
            elif self.random.random() < 0.02:
                self.running.remove(request)
                self.paused.append(request)
                self.counts["paused"] += 1
                if self.random.random() < 0.5:  # comes back with its newest tokens dropped
                    del request.tokens[max(request.py_orig_prompt_len, len(request.tokens) - 3) :]
                    request.tokens.append(target_after(request.tokens))


def test_ten_thousand_steps_of_mixed_batches(adapter: ModuleType, source: LastPlace) -> None:
    num_steps = 10_000 // len(GENERATIONS)
    simulation = Simulation(adapter, seed=num_steps)
    for _ in range(num_steps):
        simulation.step()
        alive = {r.request_id for r in [*simulation.running, *simulation.paused]}
        assert set(source.texts) <= alive, "what has ended is released"
    assert min(simulation.counts.values()) > 20, simulation.counts
    assert source.observed > 100
    statistics = simulation.drafter.statistics
    assert statistics.switched_off == 0
    assert 0 < statistics.accepted < statistics.drafted


def test_constructors_take_what_the_release_takes(adapter: ModuleType) -> None:
    drafter = adapter.FreedraftDrafter(RequestChains(VOCAB), 7, max_concurrency=3)
    assert drafter.max_concurrency == 3
    for name in adapter.generation["constructor"]:
        if "draft" in name and "schedule" not in name:
            assert getattr(drafter, name) == 7
    with pytest.raises(ValueError, match="expected max_draft_len >= 1, got 0"):
        adapter.FreedraftDrafter(RequestChains(VOCAB), 0)


def test_schedules_mean_the_same_in_every_release(adapter: ModuleType) -> None:
    schedule = {1: 9, 4: 3, 9: 0}
    if adapter.generation["meaning"] is None:
        with pytest.raises(ValueError, match="takes none"):
            adapter.FreedraftDrafter(RequestChains(VOCAB), 6, schedule=schedule)
        return
    for given in (schedule, {1: 2}, {1: 4, 3: 0, 6: 2}):
        drafter = adapter.FreedraftDrafter(RequestChains(VOCAB), 6, schedule=given)
        for load in range(1, 30):
            length = read_schedule(drafter.draft_len_schedule, load, adapter.generation["meaning"])
            assert length == min(given[max(key for key in given if key <= load)], 6), (given, load)
    with pytest.raises(ValueError, match="expected a schedule that maps 1"):
        adapter.engine_schedule({2: 3}, 6)


def test_the_manager_is_what_the_engine_calls(adapter: ModuleType) -> None:
    manager = adapter.FreedraftManager(RequestChains(VOCAB), max_requests=9)
    for name in (*RECORDED["manager"]["abstract"], *RECORDED["manager"]["optional"]):
        assert callable(getattr(manager, name))
    assert manager.get_max_resource_count() == 9
    assert manager.get_needed_resource_to_completion(None) == 0
    assert manager.prepare_resources(None) is None


def test_drafter_and_manager_travel_together(adapter: ModuleType, tmp_path: Path) -> None:
    """The engine's workers are other processes; each begins without requests."""
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 12}')
    made = adapter.create_decoding_config(tmp_path, 4, EngineConfig(drafter="ngram"))
    assert made.max_draft_len == 4
    request = Request(1, [1, 2, 3, 1, 2, 3, 1, 2])
    made.drafter._chains.prepare([request], 4)
    pair = pickle.loads(pickle.dumps((made.drafter, made.resource_manager)))
    assert pair[0]._chains is pair[1]._chains
    assert len(pair[0]._chains.book) == 0
    again = Request(1, [1, 2, 3, 1, 2, 3, 1, 2])
    batch = SimpleNamespace(generation_requests=[again], context_requests=[])
    pair[0].prepare_draft_tokens(batch)
    assert again.py_draft_tokens == request.py_draft_tokens == [3, 1, 2, 3]
    pair[1].free_resources(again)
    assert len(pair[0]._chains.book) == 0


def test_caches_with_a_state_are_refused(adapter: ModuleType) -> None:
    class MambaHybridCacheManager:
        pass

    drafter = adapter.FreedraftDrafter(RequestChains(VOCAB), 4)
    resources = SimpleNamespace(resource_managers={"kv": MambaHybridCacheManager()})
    with pytest.raises(ValueError, match="got MambaHybridCacheManager"):
        drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=[]), resources)
    drafter.prepare_draft_tokens(
        SimpleNamespace(generation_requests=[]), SimpleNamespace(resource_managers={"kv": object()})
    )


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mamba2", "vocab_size": 8},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "vocab_size": 8},
        {"model_type": "qwen3_next", "layer_types": ["linear_attention"], "vocab_size": 8},
        {"model_type": "x", "text_config": {"mamba_d_state": 16, "vocab_size": 8}},
        {"model_type": "rwkv", "vocab_size": 8},
    ],
)
def test_models_with_a_state_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="attention layers only"):
        read_vocab_size(tmp_path)


def test_the_vocabulary_is_read_from_the_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "vocab_size": 123}')
    assert read_vocab_size(tmp_path) == 123
    path.write_text('{"model_type": "llava", "text_config": {"vocab_size": 45}}')
    assert read_vocab_size(tmp_path) == 45
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="expected vocab_size in"):
        read_vocab_size(tmp_path)
    with pytest.raises(OSError):
        read_vocab_size(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"schedule": {1: 4}}, "schedule"),
        ({"calibration": "x"}, "calibration"),
        ({"warm_file": "x"}, "warm_file"),
        ({"pools": ("x.pool",)}, "pools"),
        ({"mend": False}, "mend"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"TensorRT-LLM can obey, got {name}"):
        RequestChains(VOCAB, EngineConfig(**settings))


def test_ranks_come_to_the_same_drafts() -> None:
    """Two processes that see the same steps, in other orders of the same batch."""
    ranks = [RequestChains(64), RequestChains(64)]
    num_drafted = 0
    generator = random.Random(5)
    texts = {request_id: [generator.randrange(8) for _ in range(30)] for request_id in range(4)}
    for _ in range(30):
        drafts = []
        for number, rank in enumerate(ranks):
            requests = [Request(request_id, text, 99) for request_id, text in texts.items()]
            for place, request in enumerate(requests):
                request.py_batch_idx = place
                request.py_orig_prompt_len = 20
            rank.prepare(reversed(requests) if number else requests, 6)
            drafts.append({r.request_id: r.py_draft_tokens for r in requests})
        assert drafts[0] == drafts[1]
        num_drafted += sum(map(len, drafts[0].values()))
        for text in texts.values():
            text.append(target_after(text) % 8)
    assert num_drafted > 50


def test_namespaces_are_adapters_and_salts() -> None:
    chains = RequestChains(VOCAB)
    request: Any = Request(1, [1])
    assert chains._namespace_of(request) == ""
    request.lora_task_id, request.cache_salt_id = 3, None
    assert chains._namespace_of(request) == "3/None"
    alone = RequestChains(VOCAB, EngineConfig(sharing="none"))
    assert alone._namespace_of(request) == "1"


def test_a_fault_leaves_empty_drafts(source: LastPlace, caplog: Any) -> None:
    chains = RequestChains(VOCAB)
    good, broken = Request(1, [1, 2, 1, 2]), Request(2, [1, 2, 1, 2])
    broken.get_tokens = lambda beam: ["no", "tokens"]  # type: ignore[method-assign,assignment]
    with pytest.warns(RuntimeWarning, match="switched off"):
        chains.prepare([good, broken], 3)
    assert good.py_draft_tokens == broken.py_draft_tokens == []
    assert "drafting failed" in caplog.text
    chains.free(good)
    assert 1 not in chains.book
    chains.free(Request(99, [1]))  # never seen: nothing to do


def test_the_engine_free_part_needs_no_torch() -> None:
    program = (
        "import sys, freedraft.integrations.tensorrt_llm_chains as a\n"
        "a.RequestChains(50).book\n"
        "print(sorted({'torch', 'transformers', 'tensorrt_llm'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
