"""Recycling, look-ahead and drawn n-grams in the loop: the text stays that of plain decoding."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCAB_SIZE, random_prompt, tiny_llama
from transformers import LlamaForCausalLM

import freedraft
from freedraft import CandidateTree, Drafter, Feedback, GenerationResult, create_drafter
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.lookahead import LookaheadConfig, LookaheadDrafter
from freedraft.drafters.ngram import NgramDrafter
from freedraft.drafters.recycling import RecyclingConfig, RecyclingDrafter
from freedraft.drafters.runner_up import RunnerUpDrafter
from freedraft.drafters.stochastic_ngram import StochasticNgramConfig, StochasticNgramDrafter
from freedraft.drafters.suffix import SuffixDrafter
from freedraft.integrations.budget.calibration_file import MEASURED, Calibration
from freedraft.integrations.generation import decode_loop

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
ROUNDS = 9 if COMPILED else 2
PROMPT = [5, 6, 7, 8, 5, 6, 7]


def small_blend() -> Drafter:
    return BlendDrafter(
        [
            create_drafter("ngram"),
            RecyclingDrafter(RecyclingConfig(max_vocab_size=64)),
            LookaheadDrafter(LookaheadConfig(max_vocab_size=64)),
        ]
    )


def keyed_pools() -> Drafter:
    pools = NgramDrafter(), SuffixDrafter()
    return BlendDrafter([*pools, RunnerUpDrafter(pools)])


def drawing() -> StochasticNgramDrafter:
    return StochasticNgramDrafter(StochasticNgramConfig(1.0, max_vocab_size=64, seed=3))


MAKERS: dict[str, Callable[[], Drafter]] = {
    "recycling": lambda: RecyclingDrafter(RecyclingConfig(max_vocab_size=64)),
    "lookahead": lambda: LookaheadDrafter(LookaheadConfig(max_vocab_size=64)),
    "lookahead, wide": lambda: LookaheadDrafter(LookaheadConfig(8, 4, max_vocab_size=64)),
    "small blend": small_blend,
    "keyed pools": keyed_pools,
    "default blend": lambda: create_drafter("blend"),
    "stochastic_ngram": drawing,
    "with drawn": lambda: BlendDrafter([create_drafter("ngram"), drawing()]),
}
DRAWN = ("stochastic_ngram", "with drawn")
"""They keep the distribution of sampled text, not the seed's own text."""


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_llama()


def batch_of(rng: random.Random, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    prompts = [random_prompt(rng, rng.randint(1, 20)) for _ in range(size)]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


def result_of(model: LlamaForCausalLM, ids: Any, **options: Any) -> GenerationResult:
    result = freedraft.generate(model, ids, return_dict=True, **options)
    assert isinstance(result, GenerationResult)
    assert result.statistics.switched_off == 0
    return result


@pytest.mark.parametrize("cost_gate", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_greedy_text_is_that_of_the_model(
    model: LlamaForCausalLM, name: str, cost_gate: bool
) -> None:
    rng = random.Random(name)
    drafter, accepted = MAKERS[name](), 0
    for number in range(ROUNDS):
        ids, mask = batch_of(rng, 1 + number % 3)
        options = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
        wanted = model.generate(ids, **options)
        result = result_of(
            model, ids, drafter=drafter, cost_gate=cost_gate, max_nodes=24, **options
        )
        assert torch.equal(result.sequences, wanted), number
        accepted += result.statistics.accepted
    assert accepted > ROUNDS or cost_gate


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}])
@pytest.mark.parametrize("name", [name for name in MAKERS if name not in DRAWN])
def test_seeded_text_is_that_without_drafts(
    model: LlamaForCausalLM, name: str, options: dict[str, float]
) -> None:
    rng = random.Random(name)
    drafter = MAKERS[name]()
    accepted = 0
    for number in range(ROUNDS // 2):
        ids, mask = batch_of(rng, 2)
        common: dict[str, Any] = {
            "attention_mask": mask, "max_new_tokens": 16, "do_sample": True, "seed": number,
            "top_k": 0, **options,
        }  # fmt: skip
        wanted = result_of(model, ids, drafter=None, **common)
        result = result_of(model, ids, drafter=drafter, cost_gate=False, max_nodes=24, **common)
        assert result.token_ids == wanted.token_ids
        accepted += result.statistics.accepted
    assert accepted > 0


class Recorder:
    """Proposes a fixed tree and keeps the feedback."""

    name = "recorder"
    num_top_ids = 5

    def __init__(self, *chains: list[int]) -> None:
        self.heard: list[tuple[CandidateTree, Feedback]] = []
        self.tree = CandidateTree.from_chains(chains or ([1, 2], [3], [1, 4]))

    def start(self, request_id: object, prompt_ids: Sequence[int], namespace: str = "") -> None:
        pass

    def extend(self, request_id: object, token_ids: Sequence[int]) -> None:
        pass

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [self.tree.cut(max_nodes, max_depth) for _ in request_ids]

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        self.heard.append((tree, feedback))

    def truncate(self, request_id: object, length: int) -> None:
        pass

    def stop(self, request_id: object) -> None:
        pass


def test_feedback_names_the_models_most_likely_tokens_at_every_node(
    model: LlamaForCausalLM,
) -> None:
    recorder = Recorder()
    text = list(PROMPT)
    result_of(model, PROMPT, drafter=recorder, max_new_tokens=6, do_sample=False, cost_gate=False)
    assert any(tree.num_nodes for tree, _ in recorder.heard)
    for tree, feedback in recorder.heard:
        assert feedback.top_ids is not None and feedback.top_logprobs is not None
        assert feedback.top_ids.shape == feedback.top_logprobs.shape == (tree.num_nodes + 1, 5)
        for node in range(-1, tree.num_nodes):
            path = [*text, *tree.token_ids[tree.path(node)].tolist()]
            with torch.no_grad():
                logprobs = model(torch.tensor([path])).logits[0, -1].log_softmax(-1)
            values, ids = logprobs.topk(5)
            assert feedback.top_ids[node + 1].tolist() == ids.tolist()
            assert feedback.top_logprobs[node + 1] == pytest.approx(values.numpy(), abs=1e-5)
        text += feedback.token_ids.tolist()


def test_nobody_else_pays_for_top_ids(model: LlamaForCausalLM) -> None:
    recorder = Recorder()
    recorder.num_top_ids = 0
    result_of(model, PROMPT, drafter=recorder, max_new_tokens=3, do_sample=False)
    assert all(feedback.top_ids is None for _, feedback in recorder.heard)
    recorder = Recorder()
    recorder.num_top_ids = 1000  # more than there are
    result_of(model, PROMPT, drafter=recorder, max_new_tokens=3, do_sample=False, cost_gate=False)
    top_ids = recorder.heard[0][1].top_ids
    assert top_ids is not None and top_ids.shape[1] == VOCAB_SIZE


def step_times(seconds_a_node: float) -> Calibration:
    nodes = (0, 1, 31)
    seconds = 0.001 + seconds_a_node * np.array([[[0, 1, 31]]])
    return Calibration("m", "e", "d", MEASURED, (1,), (1,), nodes, seconds)


def test_the_gate_asks_for_top_ids_only_where_they_can_pay(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a loaded machine the measured times would say that drafts are dear.
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) * 1e-4)
    monkeypatch.setattr(decode_loop, "time", clock)
    options: dict[str, Any] = {"max_new_tokens": 48, "do_sample": False}
    emitted = result_of(model, PROMPT, drafter=None, **options).token_ids[0]
    never = next(token for token in range(VOCAB_SIZE) if token not in emitted)
    dear, free = Recorder([never]), Recorder([never])
    result_of(model, PROMPT, drafter=dear, calibration=step_times(0.1), **options)
    assert all(feedback.top_ids is None for _, feedback in dear.heard)
    result_of(model, PROMPT, drafter=free, calibration=step_times(0.0), **options)
    told = [feedback.top_ids is not None for _, feedback in free.heard]
    assert told[0]
    # Its drafts are wrong, so that it falls asleep: asked rarely, and told only before it is asked.
    assert len(told) == 36 and sum(told[32:]) == 2


class BadProbes(Recorder):
    """Sends probes that must not be verified."""

    num_probes = 2

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    def add_probes(
        self,
        request_ids: Sequence[object],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: object,
    ) -> list[CandidateTree]:
        if self._fault == "raises":
            raise RuntimeError("out of order")
        if self._fault == "other nodes":
            return [CandidateTree.from_chain([9], [0.0]) for _ in trees]
        if self._fault == "too many":
            return [CandidateTree.from_chains([[9 + i] for i in range(30)]) for _ in trees]
        return [CandidateTree(tree.token_ids + 1000, tree.parents, tree.probs) for tree in trees]


@pytest.mark.parametrize("fault", ["raises", "other nodes", "too many", "outside"])
def test_faulty_probes_switch_the_drafter_off_not_the_text(
    model: LlamaForCausalLM, fault: str
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    wanted = model.generate(torch.tensor([PROMPT]), **options)
    with pytest.warns(RuntimeWarning, match="'recorder' is switched off"):
        result = freedraft.generate(
            model, PROMPT, drafter=BadProbes(fault), return_dict=True, cost_gate=False, **options
        )
    assert torch.equal(result.sequences, wanted)
    assert result.statistics.switched_off == 1


def second_token_statistic(model: LlamaForCausalLM, drafter: Drafter) -> float:
    """Return chi-square of the first two new tokens, top-k of four, over many seeds."""
    batch, rounds = 60, 12
    ids = torch.tensor([PROMPT] * batch)
    counts: dict[tuple[int, int], int] = {}
    accepted = 0
    for number in range(rounds):
        seeds = list(range(number * batch, (number + 1) * batch))
        result = result_of(
            model, ids, attention_mask=torch.ones_like(ids), drafter=drafter, cost_gate=False,
            max_nodes=3, seed=seeds, do_sample=True, top_k=4, max_new_tokens=3,
        )  # fmt: skip
        accepted += result.statistics.accepted
        for new in result.token_ids:
            counts[new[0], new[1]] = counts.get((new[0], new[1]), 0) + 1
    assert accepted > 100
    statistic = 0.0
    for one, p_one in top_probs(model, PROMPT).items():
        for two, p_two in top_probs(model, [*PROMPT, one]).items():
            expected = batch * rounds * p_one * p_two
            statistic += (counts.get((one, two), 0) - expected) ** 2 / expected
    return statistic


def top_probs(model: LlamaForCausalLM, text: list[int]) -> dict[int, float]:
    with torch.no_grad():
        values, ids = model(torch.tensor([text])).logits[0, -1].topk(4)
    return dict(zip(ids.tolist(), torch.softmax(values, -1).tolist(), strict=True))


CRITICAL = 37.7  # 0.1 % point of 15 degrees of freedom


class Dishonest(StochasticNgramDrafter):
    """Draws as it should and claims to have drawn evenly."""

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        trees = []
        for tree in super().propose(request_ids, max_nodes, max_depth):
            rows = None
            if tree.draft_probs is not None:
                rows = np.full_like(tree.draft_probs, 1 / VOCAB_SIZE)
            trees.append(CandidateTree(tree.token_ids, tree.parents, tree.probs, rows))
        return trees


@pytest.mark.skipif(not COMPILED, reason="the draws of 720 rows take minutes interpreted")
def test_drawn_text_is_distributed_as_the_targets(model: LlamaForCausalLM) -> None:
    config = StochasticNgramConfig(0.2, max_vocab_size=64, seed=3)  # far sharper than the target
    assert second_token_statistic(model, StochasticNgramDrafter(config)) < CRITICAL
    assert second_token_statistic(model, Dishonest(config)) > CRITICAL
