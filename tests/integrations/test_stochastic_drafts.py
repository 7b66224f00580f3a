"""Drafts that were sampled leave the distribution of the text as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCAB_SIZE, tiny_llama
from transformers import LlamaForCausalLM

import freedraft
from freedraft import CandidateTree, Feedback, GenerationResult
from freedraft.drafters.tree import FloatArray
from freedraft.verifier.rejection import without_replacement

PROMPT = [5, 6, 7, 8, 5, 6, 7]
FAVOURITE = 42
"""A likely second token, so that a drafter that always proposes it is mostly accepted."""


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_llama()


class SamplingDrafter:
    """Draws two siblings at the root and one below each, or a chain, from a fixed lopsided q."""

    name = "sampling"

    def __init__(self, seed: int, honest: bool = True, chain: bool = False) -> None:
        self._chain = chain
        self._rng = np.random.default_rng(seed)
        weights = np.arange(1, VOCAB_SIZE + 1, dtype=np.float64)
        self._q = weights / weights.sum()
        self._honest = honest

    def start(self, request_id: object, prompt_ids: Sequence[int], namespace: str = "") -> None:
        pass

    def extend(self, request_id: object, token_ids: Sequence[int]) -> None:
        pass

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [self._tree().cut(max_nodes, max_depth) for _ in request_ids]

    def _tree(self) -> CandidateTree:
        if self._chain:
            drawn = [self._draw(self._q) for _ in range(3)]
            if not self._honest:
                drawn = [FAVOURITE] * 3
            q: FloatArray = np.array([self._q] * 3, np.float32)
            return CandidateTree.from_arrays(drawn, [-1, 0, 1], [0.1] * 3, q)
        first = self._draw(self._q)
        left = without_replacement(self._q, [first])
        tokens = [first, self._draw(left), self._draw(self._q), self._draw(self._q)]
        rows: FloatArray = np.array([self._q, left, self._q, self._q], np.float32)
        if not self._honest:  # claims another distribution than it has drawn from
            rows[:] = 1 / VOCAB_SIZE
        return CandidateTree.from_arrays(tokens, [-1, -1, 0, 1], [0.1] * 4, rows)

    def _draw(self, probs: np.ndarray[Any, np.dtype[np.float64]]) -> int:
        return int(self._rng.choice(VOCAB_SIZE, p=probs))

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        pass

    def truncate(self, request_id: object, length: int) -> None:
        pass

    def stop(self, request_id: object) -> None:
        pass


def second_token_statistic(model: LlamaForCausalLM, honest: bool, chain: bool = False) -> float:
    """Return chi-square of the second new token (the first that was drafted), top-k of six."""
    options: dict[str, Any] = {"do_sample": True, "top_k": 6, "max_new_tokens": 4 if chain else 3}
    batch, rounds = 50, 30 if honest else 20
    ids = torch.tensor([PROMPT] * batch)
    mask = torch.ones_like(ids)
    counts: dict[tuple[int, int], int] = {}
    drafter = SamplingDrafter(1, honest, chain)
    accepted = 0
    for number in range(rounds):
        result = freedraft.generate(
            model,
            ids,
            attention_mask=mask,
            drafter=drafter,
            cost_gate=False,
            return_dict=True,
            seed=list(range(number * batch, (number + 1) * batch)),
            **options,
        )
        assert isinstance(result, GenerationResult)
        accepted += result.statistics.accepted
        for new in result.token_ids:
            counts[new[0], new[1]] = counts.get((new[0], new[1]), 0) + 1
    assert accepted > 0
    statistic = 0.0
    first = top_probs(model, PROMPT)
    for one, p_one in first.items():
        for two, p_two in top_probs(model, [*PROMPT, one]).items():
            expected = batch * rounds * p_one * p_two
            statistic += (counts.get((one, two), 0) - expected) ** 2 / expected
    return statistic


def top_probs(model: LlamaForCausalLM, text: list[int]) -> dict[int, float]:
    with torch.no_grad():
        values, ids = model(torch.tensor([text])).logits[0, -1].topk(6)
    return dict(zip(ids.tolist(), torch.softmax(values, -1).tolist(), strict=True))


CRITICAL = 66.6  # 0.1 % point of 35 degrees of freedom


@pytest.mark.parametrize("chain", [False, True])  # chains are verified as one block
def test_sampled_text_is_distributed_as_the_targets(model: LlamaForCausalLM, chain: bool) -> None:
    assert second_token_statistic(model, honest=True, chain=chain) < CRITICAL


@pytest.mark.parametrize("chain", [False, True])
def test_a_drafter_that_misstates_q_is_found_out(model: LlamaForCausalLM, chain: bool) -> None:
    assert second_token_statistic(model, honest=False, chain=chain) > CRITICAL


@pytest.mark.parametrize("penalty", [1.0, 1.3])  # a penalty reads the history: token by token
def test_what_is_recorded_of_a_block_belongs_to_its_tokens(
    model: LlamaForCausalLM, penalty: float
) -> None:
    result = freedraft.generate(
        model,
        PROMPT,
        drafter=SamplingDrafter(3, chain=True),
        do_sample=True,
        repetition_penalty=penalty,
        max_new_tokens=20,
        seed=8,
        cost_gate=False,
        return_dict=True,
        output_logits=True,
        output_scores=True,
    )
    assert isinstance(result, GenerationResult)
    assert result.statistics.accepted > 0
    (new,) = result.token_ids
    assert result.logits is not None and result.scores is not None
    assert len(result.logits) == len(result.scores) == len(new) == 20
    with torch.no_grad():
        logits = model(result.sequences).logits[0, len(PROMPT) - 1 : -1].float()
    torch.testing.assert_close(torch.cat(result.logits), logits, atol=1e-5, rtol=1e-5)
    for place, token in enumerate(new):
        logprob = float(torch.log_softmax(logits[place], -1)[token])
        assert result.logprobs[0][place] == pytest.approx(logprob, abs=1e-4)


def test_greedy_text_is_the_same(model: LlamaForCausalLM) -> None:
    wanted = model.generate(torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False)
    result = freedraft.generate(
        model, PROMPT, drafter=SamplingDrafter(2), max_new_tokens=30, return_dict=True
    )
    assert isinstance(result, GenerationResult)
    assert torch.equal(result.sequences, wanted)
    assert result.statistics.drafted > 0  # the cost gate leaves sampled trees whole
