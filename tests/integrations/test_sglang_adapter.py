"""Drafting inside SGLang: the layout of trees, the sampling rule, and the engine's own code.

The second half needs the real package, without a GPU: `make test-sglang` makes the environment.
"""

from __future__ import annotations

import importlib.util
import itertools
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.drafters import CandidateTree
from freedraft.integrations.joined_text import JoinedText
from freedraft.integrations.placeholder_ids import placeholder_ids_of
from freedraft.integrations.sglang_trees import PAD_TOKEN, pack_trees

VOCAB = 6


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 7, vocab_size: int = VOCAB) -> CandidateTree:
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(-1, len(tokens) - 1))
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        free = [t for t in range(vocab_size) if t not in taken]
        if free:
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
    return CandidateTree.from_arrays(tokens, parents)


def unpack(
    ids: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], num_slots: int
) -> list[tuple[list[int], list[int]]]:
    """Return each request's tokens and parents, read off the mask as the engine does."""
    found = []
    for tokens, flags in zip(
        ids.reshape(-1, num_slots), mask.reshape(-1, num_slots, num_slots), strict=True
    ):
        parents = [max((j for j in range(i) if flags[i, j]), default=-1) for i in range(num_slots)]
        found.append((tokens.tolist(), parents))
    return found


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(8, 12))
def test_the_mask_tells_the_tree(batch: list[CandidateTree], num_slots: int) -> None:
    last = [index % VOCAB for index in range(len(batch))]
    ids, mask = pack_trees(last, batch, num_slots)
    assert ids.shape == (len(batch) * num_slots,) and ids.dtype == np.int64
    assert mask.shape == (len(batch) * num_slots**2,) and mask.dtype == np.bool_
    for index, (tokens, parents) in enumerate(unpack(ids, mask, num_slots)):
        tree = batch[index]
        assert tokens[: tree.num_nodes + 1] == [last[index], *tree.token_ids.tolist()]
        assert parents[: tree.num_nodes + 1] == [-1, *(tree.parents + 1).tolist()]
        for slot in range(tree.num_nodes + 1, num_slots):
            assert (tokens[slot], parents[slot]) == (PAD_TOKEN, slot - 1)
    for flags in mask.reshape(-1, num_slots, num_slots):
        for slot in range(num_slots):
            path = {slot}
            parent = slot
            while parent >= 0:
                parent = max((j for j in range(parent) if flags[parent, j]), default=-1)
                path |= {parent} - {-1}
            assert set(np.flatnonzero(flags[slot]).tolist()) == path


def test_bad_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="expected less than 3 nodes, got 3"):
        pack_trees([1], [CandidateTree.from_chain([1, 2, 3])], 3)
    with pytest.raises(ValueError, match="expected 2 last tokens, got 1"):
        pack_trees([1], [CandidateTree.empty()] * 2, 3)


def emitted_by_the_sampling_rule(
    tokens: list[int], parents: list[int], target: np.ndarray[Any, Any]
) -> dict[tuple[int, ...], float]:
    """Return the distribution of what a step emits, by the engine's rule, without random numbers.

    At a node the children's probabilities are added up, sibling by sibling, until the sum passes a
    uniform number: that child is taken. Past all of them the next token is drawn from the target's
    distribution without the children's tokens. ``target[slot]`` is the distribution after a slot.

    Source: sglang 0.5.23, tree_speculative_sampling_target_only, with both thresholds at 1.
    """
    found: dict[tuple[int, ...], float] = {}

    def walk(slot: int, path: tuple[int, ...], reached: float) -> None:
        total = 0.0
        rest = target[slot].copy()
        for child in (i for i in range(len(tokens)) if parents[i] == slot):
            share = min(total + target[slot][tokens[child]], 1.0) - min(total, 1.0)
            total += target[slot][tokens[child]]
            rest[tokens[child]] = 0.0
            walk(child, (*path, tokens[child]), reached * share)
        left = max(1.0 - total, 0.0)
        if rest.sum() > 0:
            for token in np.flatnonzero(rest).tolist():
                key = (*path, token)
                found[key] = found.get(key, 0.0) + reached * left * rest[token] / rest.sum()

    walk(0, (), 1.0)
    return found


def first_token(found: dict[tuple[int, ...], float], vocab_size: int) -> np.ndarray[Any, Any]:
    probs = np.zeros(vocab_size)
    for path, prob in found.items():
        probs[path[0]] += prob
    return probs


@given(trees(max_nodes=5), st.integers(0, 2**32 - 1))
def test_fillers_add_no_probability(tree: CandidateTree, seed: int) -> None:
    """Each emitted path has the probability that the target gives it, to the last one."""
    num_slots = 8
    target = np.random.default_rng(seed).dirichlet(np.full(VOCAB, 0.5), size=num_slots)
    ((tokens, parents),) = unpack(*pack_trees([1], [tree], num_slots), num_slots)
    found = emitted_by_the_sampling_rule(tokens, parents, target)
    assert sum(found.values()) == pytest.approx(1)
    slot_of = {(p, t): i for i, (t, p) in enumerate(zip(tokens, parents, strict=True)) if i}
    for path, prob in found.items():
        slot, wanted = 0, 1.0
        for token in path:
            wanted *= target[slot][token]
            slot = slot_of.get((slot, token), -1)
        assert prob == pytest.approx(wanted)


def test_fillers_beside_the_root_would_bias_the_text() -> None:
    """The rule above does catch the layout that must not be used."""
    rng = np.random.default_rng(3)
    target = rng.dirichlet(np.ones(VOCAB), size=8)
    tree = CandidateTree.from_chain([2, 3])
    tokens = [1, *tree.token_ids.tolist(), *[PAD_TOKEN] * 5]
    beside = [-1, *(tree.parents + 1).tolist(), *[0] * 5]
    biased = first_token(emitted_by_the_sampling_rule(tokens, beside, target), VOCAB)
    assert biased[PAD_TOKEN] > 2 * target[0][PAD_TOKEN]
    ((tokens, parents),) = unpack(*pack_trees([1], [tree], 8), 8)
    honest = first_token(emitted_by_the_sampling_rule(tokens, parents, target), VOCAB)
    assert np.allclose(honest, target[0])


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=4))
def test_joined_texts_read_as_one(parts: list[list[int]]) -> None:
    whole = list(itertools.chain(*parts))
    text = JoinedText(*[array("i", part) if i % 2 else part for i, part in enumerate(parts)])
    assert len(text) == len(whole)
    assert np.asarray(text).tolist() == whole
    for start, stop in itertools.product((0, 1, 3, -2), (0, 2, 5, 100)):
        assert text[start:stop].tolist() == whole[start:stop]
        assert text[start:].tolist() == whole[start:]
    if whole:
        assert text.last() == whole[-1]


def test_joined_texts_do_not_hold_the_engines_memory() -> None:
    part = array("i", [1, 2, 3])
    piece = JoinedText(part)[0:2]
    part[0] = 9
    part.append(4)  # would fail while an array looked at it
    assert piece.tolist() == [1, 2]


def test_placeholders_are_found_by_their_names() -> None:
    config = SimpleNamespace(
        image_token_id=7, vision_start_token_id=8, video_token_index=9, eos_token_id=1, vocab_size=2
    )
    assert placeholder_ids_of(config) == {7, 8, 9}


HAS_ENGINE = importlib.util.find_spec("sglang") is not None
needs_engine = pytest.mark.skipif(not HAS_ENGINE, reason="sglang is not installed")


@pytest.fixture(scope="module")
def ngram_worker() -> Any:
    if not HAS_ENGINE:
        pytest.skip("sglang is not installed")
    from sglang_stand_in import import_worker

    return import_worker()


@pytest.fixture(scope="module")
def algorithm(ngram_worker: Any) -> Any:
    """The algorithm as the engine finds it: through the entry point of its plug-in group."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    load_plugins()
    return SpeculativeAlgorithm.from_string("freedraft")


def resolved(model: str, **options: Any) -> Any:
    """Return real server arguments after the engine's own resolution."""
    from sglang.srt.server_args import ServerArgs

    defaults = {
        "model_path": model,
        "device": "cpu",
        "speculative_algorithm": "FREEDRAFT",
        "attention_backend": "triton",
        "page_size": 1,
    }
    server_args = ServerArgs(**defaults | options)
    server_args.resolve_once()
    return server_args


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the configuration of a tiny model; no weights are ever read."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, '
        '"intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, '
        '"num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 512, '
        '"torch_dtype": "float32"}'
    )
    return str(folder)


@needs_engine
def test_the_entry_point_registers_the_algorithm(algorithm: Any) -> None:
    from freedraft.integrations.sglang_plugin import FreedraftAlgorithm, register

    assert isinstance(algorithm, FreedraftAlgorithm)
    assert algorithm.is_ngram() and algorithm.is_speculative() and algorithm.supports_overlap
    register()  # a second process part may load it again


@needs_engine
def test_the_algorithm_has_what_the_engine_asks_of_its_own(algorithm: Any) -> None:
    """Every public method of the engine's own kind of algorithm is there."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    own = {
        name
        for name, value in vars(SpeculativeAlgorithm).items()
        if callable(value) and not name.startswith("_") and name not in ("register",)
    }
    # Built-in names only reach these two.
    missing = {name for name in own if not hasattr(algorithm, name)}
    assert missing <= {"from_string", "get_platform_worker_cls"}


@needs_engine
def test_the_future_map_is_the_engines(algorithm: Any) -> None:
    import torch
    from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload

    pool = SimpleNamespace(req_to_token=torch.zeros(5, 16, dtype=torch.int32))
    relay = algorithm.create_future_map(torch.device("cpu"), pool)
    assert isinstance(relay, FutureMap)
    payload = RelayPayload(
        bonus_tokens=None,
        accept_tokens=torch.arange(8, dtype=torch.int32).reshape(2, 4),
        accept_lens=torch.tensor([2, 3], dtype=torch.int32),
    )
    relay.stash(torch.tensor([1, 4]), payload)
    batch = SimpleNamespace(spec_info=SimpleNamespace(future_indices=torch.tensor([4])))
    relay._resolve_spec_extras(batch)
    assert batch.spec_info.accept_lens.tolist() == [3]
    assert batch.spec_info.accept_tokens.tolist() == [4, 5, 6, 7]


@needs_engine
def test_server_arguments_are_completed(algorithm: Any, model_folder: str) -> None:
    from sglang.srt.arg_groups.overrides import resolution_result

    server_args = resolved(model_folder)
    wanted = {
        "speculative_num_draft_tokens": 12,
        "max_running_requests": 48,
        "enable_mixed_chunk": False,
        "disable_overlap_schedule": True,  # as for every algorithm on a CPU
        "speculative_ngram_capacity": 1024,
        "speculative_eagle_topk": 10,
    }
    assert {name: resolution_result(server_args, name) for name in wanted} == wanted
    asked = resolved(
        model_folder,
        speculative_num_draft_tokens=5,
        max_running_requests=3,
        speculative_ngram_max_bfs_breadth=1,
    )
    assert resolution_result(asked, "speculative_num_draft_tokens") == 5
    assert resolution_result(asked, "max_running_requests") == 3
    assert resolution_result(asked, "speculative_eagle_topk") == 1
    assert resolution_result(asked, "speculative_num_steps") == 5


@needs_engine
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative_num_draft_tokens": 1}, "at least 2, got 1"),
        ({"speculative_ngram_external_corpus_path": "x.jsonl"}, "expected pools in the settings"),
        ({"speculative_use_rejection_sampling": True}, "rejection-sampling"),
        ({"page_size": 16}, "expected --page-size 1"),
        ({"attention_backend": "torch_native"}, "reads tree masks, got torch_native"),
    ],
)
def test_server_arguments_are_refused(
    algorithm: Any, model_folder: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resolved(model_folder, **options)


@needs_engine
def test_more_server_arguments_are_refused(algorithm: Any, caplog: Any) -> None:
    """Those that the engine's other checks would meet first."""
    from freedraft.integrations.sglang_plugin import check_server_args

    good = {
        "device": "cuda",
        "speculative_num_draft_tokens": None,
        "enable_dp_attention": False,
        "attn_dp_size": 1,
        "speculative_ngram_external_corpus_path": None,
        "speculative_use_rejection_sampling": False,
        "page_size": None,
        "attention_backend": "flashinfer",
        "speculative_ngram_max_bfs_breadth": 10,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
    }
    check_server_args(SimpleNamespace(**good))
    assert "approximate" not in caplog.text
    check_server_args(SimpleNamespace(**good | {"speculative_accept_threshold_acc": 0.9}))
    assert "approximate" in caplog.text
    for changed in ({"attn_dp_size": 2}, {"enable_dp_attention": True}, {"device": "npu"}):
        with pytest.raises(ValueError, match="FREEDRAFT"):
            check_server_args(SimpleNamespace(**good | changed))


class FakeRequest:
    """A request as the worker reads it."""

    def __init__(self, rid: str, prompt: list[int], extra_key: str | None = None) -> None:
        self.rid = rid
        self.origin_input_ids_unpadded = array("q", prompt)
        self.output_ids = array("q")
        self.sampling_params = SimpleNamespace(max_new_tokens=200)
        self.extra_key = extra_key

    @property
    def text(self) -> list[int]:
        return [*self.origin_input_ids_unpadded, *self.output_ids]


class RecordingCorpus:
    """In the place of the stock trie, whose C++ takes a minute to build."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.erased: list[str] = []

    def reset(self) -> None:
        self.erased.clear()

    def erase_match_state(self, request_ids: list[str]) -> None:
        self.erased += request_ids


SLOTS = 8
PERIOD = [5, 6, 7, 8, 9, 10, 11]


def target_after(text: list[int]) -> int:
    """A model that mostly goes round, and now and then does not."""
    if len(text) % 17 == 0:
        return (sum(text[-2:]) * 31) % 64
    return PERIOD[(PERIOD.index(text[-1]) + 1) % len(PERIOD)] if text[-1] in PERIOD else PERIOD[0]


@pytest.fixture
def worker(
    algorithm: Any, ngram_worker: Any, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The real worker on real settings; only what needs a device is replaced."""
    import torch
    from sglang.kernels.ops.speculative.reconstruct_tree import (
        reconstruct_indices_from_tree_mask_triton,
    )
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton
    from sglang.srt.runtime_context import get_context
    from sglang.srt.speculative import eagle_utils

    from freedraft.integrations.sglang_adapter import FreedraftWorker

    server_args = resolved(model_folder, speculative_num_draft_tokens=SLOTS)
    get_context().set_server_args(server_args)
    model_config = SimpleNamespace(vocab_size=64, context_len=512, hf_config=SimpleNamespace())
    model_runner = SimpleNamespace(
        model_config=model_config, max_running_requests=8, watermark_state=None
    )
    pool = SimpleNamespace(req_to_token=torch.zeros(9, 600, dtype=torch.int32))
    target = SimpleNamespace(model_runner=model_runner, get_memory_pool=lambda: (pool, None))
    monkeypatch.setattr(ngram_worker, "NgramCorpus", RecordingCorpus)
    monkeypatch.setattr(
        ngram_worker,
        "reconstruct_indices_from_tree_mask_func",
        reconstruct_indices_from_tree_mask_triton,
    )
    monkeypatch.setattr(ngram_worker, "assign_extend_cache_locs_func", lambda **_: None)
    monkeypatch.setattr(ngram_worker, "prepare_mamba_track_for_verify", lambda batch: None)
    monkeypatch.setattr(ngram_worker, "commit_mamba_states_after_verify", lambda *_: None)
    monkeypatch.setattr(ngram_worker, "move_accept_tokens_to_target_kvcache", lambda *_: None)
    monkeypatch.setattr(ngram_worker, "record_stream_for_v2_verify", lambda *_: None)
    monkeypatch.setattr(ngram_worker, "set_time_batch", lambda *_, **__: None)

    def verify(topk: int = -1, **tensors: Any) -> Any:
        verify_tree_greedy_triton(**tensors)
        return tensors["predicts"], tensors["accept_index"], tensors["accept_token_num"]

    monkeypatch.setattr(eagle_utils, "verify_tree_greedy_func", verify)
    made = algorithm.create_worker(server_args)(server_args, 0, 0, target)
    assert isinstance(made, FreedraftWorker)
    made.alloc_memory_pool()
    return made


class EngineLoop:
    """The scheduler's part around the worker: batches, results one step late under overlap."""

    def __init__(self, worker: Any, overlap: bool) -> None:
        self.worker = worker
        self.worker.enable_overlap = overlap
        self.worker.target_worker.forward_batch_generation = self.forward
        self.pending: dict[str, list[int]] = {}
        self.num_steps = 0

    def committed(self, request: FakeRequest) -> list[int]:
        return [*request.text, *self.pending.get(request.rid, [])]

    def step(self, requests: list[FakeRequest]) -> None:
        import torch
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        self.requests = requests
        accepted = torch.zeros(len(requests), SLOTS, dtype=torch.int32)
        lengths = []
        for row, request in enumerate(requests):
            late = self.pending.get(request.rid, [])
            accepted[row, : len(late)] = torch.tensor(late, dtype=torch.int32)
            lengths.append(len(late))
        lens = torch.tensor([len(self.committed(r)) - 1 for r in requests])
        batch = SimpleNamespace(
            reqs=requests,
            forward_mode=ForwardMode.DECODE,
            device="cpu",
            seq_lens=lens,
            seq_lens_cpu=lens,
            has_grammar=False,
            grammar_needs_sync=lambda: False,
            return_logprob=False,
            req_pool_indices=torch.arange(len(requests)),
            req_to_token_pool=self.worker.req_to_token_pool,
            sampling_info=SimpleNamespace(
                is_all_greedy=True,
                has_watermark_candidates=False,
                acc_additive_penalties=None,
                acc_scaling_penalties=None,
                logit_bias=None,
            ),
            spec_info=SimpleNamespace(
                accept_tokens=accepted.flatten(),
                accept_lens=torch.tensor(lengths, dtype=torch.int32),
            ),
        )
        result = self.worker.forward_batch_generation(batch)
        self.num_steps += 1
        tokens = result.next_token_ids.reshape(len(requests), -1).tolist()
        for row, request in enumerate(requests):
            request.output_ids.extend(self.pending.pop(request.rid, []))
            new = tokens[row][: int(result.accept_lens[row])]
            if self.worker.enable_overlap:
                self.pending[request.rid] = new
            else:
                request.output_ids.extend(new)

    def forward(self, batch: Any, pp_proxy_tensors: Any = None, is_verify: bool = False) -> Any:
        """Answer for the model: one row of logits a slot, from the slot's own path."""
        import torch

        logits = torch.zeros(len(self.requests) * SLOTS, 64)
        ids = batch.input_ids.reshape(-1, SLOTS).tolist()
        mask = batch.spec_info.custom_mask
        start = 0
        for row, request in enumerate(self.requests):
            text = self.committed(request)
            width = len(text) - 1 + SLOTS
            flags = mask[start : start + SLOTS * width].reshape(SLOTS, width)
            start += SLOTS * width
            assert flags[:, : len(text) - 1].all(), "every slot sees the whole context"
            for slot in range(SLOTS):
                path = flags[slot, len(text) - 1 :].nonzero().flatten().tolist()
                spelled = [*text[:-1], *[ids[row][index] for index in path]]
                logits[row * SLOTS + slot, target_after(spelled)] = 1.0
                position = int(batch.spec_info.positions[row * SLOTS + slot])
                assert position == len(spelled) - 1
        assert start == mask.numel()
        output = SimpleNamespace(next_token_logits=logits)
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=False)


def plain_text(prompt: list[int], num_new: int) -> list[int]:
    text = list(prompt)
    for _ in range(num_new):
        text.append(target_after(text))
    return text


@needs_engine
@pytest.mark.parametrize("overlap", [False, True])
def test_batches_decode_to_the_plain_text(worker: Any, overlap: bool) -> None:
    """Requests come and go; each ends with what the model alone would have written."""
    loop = EngineLoop(worker, overlap)
    rng = np.random.default_rng(1)
    running: list[FakeRequest] = []
    finished = 0
    for step in range(28):
        if len(running) < 4:
            prompt = [*rng.integers(0, 64, int(rng.integers(1, 9))).tolist(), *PERIOD * 2]
            running.append(FakeRequest(f"r{step}", [int(token) for token in prompt]))
            running[-1].output_ids.append(target_after(running[-1].text))  # the prefill's token
        loop.step(running)
        for request in [r for r in running if len(r.output_ids) > 25]:
            prompt = list(request.origin_input_ids_unpadded)
            text = loop.committed(request)
            assert text == plain_text(prompt, len(text) - len(prompt))
            worker.note_request_finished(rid=request.rid, natural_stop=True)
            running.remove(request)
            loop.pending.pop(request.rid, None)
            finished += 1
    assert finished >= 4
    assert len(worker._book) <= 4
    assert worker.statistics["tokens_per_step"] > 2
    assert worker.statistics["switched_off"] == 0


@needs_engine
def test_random_trees_verify_like_a_plain_walk(ngram_worker: Any) -> None:
    """The engine's own kernels, in the interpreter, on batches of random trees and targets."""
    import torch
    from sglang.kernels.ops.speculative.reconstruct_tree import (
        reconstruct_indices_from_tree_mask_triton,
    )
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton

    rng = np.random.default_rng(0)
    for _ in range(40):
        num_requests, num_slots = int(rng.integers(1, 5)), int(rng.integers(2, 13))
        batch = [random_tree(rng, num_slots - 1) for _ in range(num_requests)]
        last = rng.integers(0, VOCAB, num_requests).tolist()
        ids, mask = pack_trees(last, batch, num_slots)
        shape = (num_requests, num_slots)
        positions = torch.zeros(num_requests * num_slots, dtype=torch.int64)
        index, following, sibling = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
        lengths = torch.from_numpy(rng.integers(1, 50, num_requests))
        reconstruct_indices_from_tree_mask_triton(
            torch.from_numpy(mask),
            lengths,
            positions,
            index,
            following,
            sibling,
            num_requests,
            num_slots,
        )
        links = ngram_worker._derive_tree_links(mask, num_requests, num_slots)
        assert torch.equal(links[0], following) and torch.equal(links[1], sibling)
        choices = rng.integers(0, VOCAB, shape)
        predicts = torch.zeros(num_requests * num_slots, dtype=torch.int32)
        accepted = torch.full(shape, -1, dtype=torch.int32)
        counts = torch.zeros(num_requests, dtype=torch.int32)
        verify_tree_greedy_triton(
            predicts,
            accepted,
            counts,
            torch.from_numpy(ids).reshape(shape),
            index,
            following,
            sibling,
            torch.from_numpy(choices),
        )
        for row, tree in enumerate(batch):
            slots = accepted[row, : int(counts[row]) + 1]
            emitted = predicts[slots.long()].tolist()
            assert emitted == plain_walk(tree, num_slots, choices[row].tolist())


def random_tree(rng: np.random.Generator, max_nodes: int) -> CandidateTree:
    edges: dict[tuple[int, int], int] = {}
    for _ in range(int(rng.integers(0, max_nodes + 1))):
        parent = int(rng.integers(-1, len(edges)))
        edges.setdefault((parent, int(rng.integers(0, VOCAB))), len(edges))
    return CandidateTree.from_arrays([t for _, t in edges], [p for p, _ in edges])


def plain_walk(tree: CandidateTree, num_slots: int, choices: list[int]) -> list[int]:
    """Follow the target's choices through the tree and through the fillers behind it."""
    edges = {(p, t): i for i, (p, t) in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
    for filler in range(tree.num_nodes, num_slots - 1):
        edges[filler - 1, PAD_TOKEN] = filler
    node, emitted = -1, []
    while True:
        choice = choices[node + 1]
        emitted.append(choice)
        if (node, choice) not in edges:
            return emitted
        node = edges[node, choice]


@needs_engine
def test_a_grammar_batch_is_not_spliced(worker: Any) -> None:
    """The engine has then put the last step's tokens among the request's own already."""
    import torch

    from freedraft.integrations.sglang_adapter import _texts_of

    request = FakeRequest("a", [1, 2])
    request.output_ids.extend([3, 4])
    spec_info = SimpleNamespace(
        accept_tokens=torch.tensor([7, 8, 0, 0]), accept_lens=torch.tensor([2])
    )
    for needs_sync, text in ((True, [1, 2, 3, 4]), (False, [1, 2, 3, 4, 7, 8])):
        batch = SimpleNamespace(
            reqs=[request],
            spec_info=spec_info,
            grammar_needs_sync=lambda needs_sync=needs_sync: needs_sync,
        )
        assert np.asarray(_texts_of(batch, True, 4)[0]).tolist() == text
        assert np.asarray(_texts_of(batch, False, 4)[0]).tolist() == [1, 2, 3, 4]


@needs_engine
def test_namespaces_are_the_engines_extra_keys(worker: Any) -> None:
    requests = [FakeRequest("a", [1], "salt"), FakeRequest("b", [1])]
    assert [worker._namespace_of(request) for request in requests] == ["salt", ""]
    from freedraft.integrations.engine_config import EngineConfig

    worker.open_book(EngineConfig(sharing="none"))
    assert [worker._namespace_of(request) for request in requests] == ["a", "b"]


@needs_engine
def test_settings_that_would_be_ignored_are_refused(algorithm: Any, ngram_worker: Any) -> None:
    from freedraft.integrations.sglang_adapter import read_config

    assert read_config("").drafter == "blend"
    assert read_config('{"drafter": "suffix"}').drafter == "suffix"
    for source in ('{"schedule": {"1": 4}}', '{"calibration": "x"}', '{"warm_file": "x"}'):
        with pytest.raises(ValueError, match="settings that SGLang can obey"):
            read_config(source)
    with pytest.raises(ValueError, match="expected settings among"):
        read_config('{"drafters": "suffix"}')


@needs_engine
def test_corpora_of_the_stock_method_are_refused(worker: Any) -> None:
    with pytest.raises(ValueError, match="expected pools in the settings"):
        worker.add_external_corpus("x", [[1, 2]])


@needs_engine
def test_a_flush_drops_all_requests(worker: Any) -> None:
    loop = EngineLoop(worker, False)
    request = FakeRequest("a", PERIOD * 2)
    request.output_ids.append(5)
    loop.step([request])
    assert len(worker._book) == 1
    worker.clear_cache_pool()
    assert len(worker._book) == 0
