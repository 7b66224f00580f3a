"""Where a row ends inside an accepted run, it ends where plain decoding ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import RandomTreeDrafter, tiny_llama
from torch import Tensor
from transformers import LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

import freedraft
from freedraft import GenerationResult

PROMPT = [5, 6, 7, 8, 5, 6, 7]
LENGTH = 40


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture(scope="module")
def answer(model: LlamaForCausalLM) -> list[int]:
    """What the model says when nothing stops it."""
    ids = torch.tensor([PROMPT])
    new: list[int] = model.generate(ids, max_new_tokens=LENGTH, do_sample=False)[0].tolist()
    return new[len(PROMPT) :]


def run(model: LlamaForCausalLM, answer: list[int], **options: Any) -> GenerationResult:
    """Decode with a drafter that knows most of the answer, so that runs are long."""
    drafter = RandomTreeDrafter(1, [PROMPT + answer])
    result = freedraft.generate(
        model,
        PROMPT,
        drafter=drafter,
        cost_gate=False,
        return_dict=True,
        **{"max_new_tokens": LENGTH, "do_sample": False, **options},
    )
    assert isinstance(result, GenerationResult)
    assert result.statistics.emitted == len(result.token_ids[0])
    assert len(result.logprobs[0]) == len(result.token_ids[0])
    return result


def test_runs_are_long(model: LlamaForCausalLM, answer: list[int]) -> None:
    result = run(model, answer)
    assert result.token_ids[0] == answer
    assert result.statistics.tokens_per_step > 1.5
    assert result.finish_reasons == ["length"]


@pytest.mark.parametrize("place", range(0, LENGTH, 3))
def test_eos_anywhere(model: LlamaForCausalLM, answer: list[int], place: int) -> None:
    eos = answer[place]
    stop = answer.index(eos) + 1
    result = run(model, answer, eos_token_id=[eos, 47])
    assert result.token_ids[0] == answer[:stop]
    assert result.finish_reasons == ["eos"]


@pytest.mark.parametrize("cap", [1, 2, 3, 7, 20])
def test_cap_is_exact(model: LlamaForCausalLM, answer: list[int], cap: int) -> None:
    result = run(model, answer, max_new_tokens=cap)
    assert result.token_ids[0] == answer[:cap]
    assert result.finish_reasons == ["length"]
    assert all(step.num_drafted == 0 or cap > 1 for step in result.steps)


def test_nothing_is_asked_for(model: LlamaForCausalLM) -> None:
    result = freedraft.generate(model, PROMPT, max_new_tokens=0, return_dict=True)
    assert isinstance(result, GenerationResult)
    assert result.token_ids == [[]]
    assert result.sequences.tolist() == [PROMPT]
    sequences = freedraft.generate(model, PROMPT, max_new_tokens=0)
    assert isinstance(sequences, Tensor)
    assert sequences.tolist() == [PROMPT]


def test_context_end(model: LlamaForCausalLM) -> None:
    prompt = [3, 4] * 124  # 248 of 256
    result = freedraft.generate(model, prompt, max_new_tokens=50, cost_gate=False, return_dict=True)
    assert isinstance(result, GenerationResult)
    assert len(result.token_ids[0]) == 8
    assert result.finish_reasons == ["context"]
    plain = freedraft.generate(model, prompt, max_new_tokens=8, drafter=None)
    assert torch.equal(result.sequences, plain)


class Counting(StoppingCriteria):
    """Stops at the n-th call and remembers the texts it was shown."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.seen.append(input_ids[0].tolist())
        return torch.tensor([len(self.seen) >= self.calls])


def test_criteria_see_every_token_once(model: LlamaForCausalLM, answer: list[int]) -> None:
    criterion = Counting(11)
    result = run(model, answer, stopping_criteria=StoppingCriteriaList([criterion]))
    assert result.token_ids[0] == answer[:11]
    assert result.finish_reasons == ["criteria"]
    assert criterion.seen == [PROMPT + answer[: n + 1] for n in range(11)]


class CountingProcessor:
    """Forces a token at its n-th call: wrong as soon as it is called for unused nodes."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        assert input_ids.shape[1] == len(PROMPT) + self.calls - 1
        if self.calls % 5 == 0:
            scores = torch.full_like(scores, -torch.inf)
            scores[:, 9] = 0
        return scores


def test_stateful_processors_are_called_once_a_token(
    model: LlamaForCausalLM, answer: list[int]
) -> None:
    plain = model.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=20,
        do_sample=False,
        logits_processor=[CountingProcessor()],
    )[0].tolist()
    result = run(
        model, plain[len(PROMPT) :], max_new_tokens=20, logits_processor=[CountingProcessor()]
    )
    assert result.sequences[0].tolist() == plain
    assert result.statistics.accepted > 0


def test_rows_end_at_different_places(model: LlamaForCausalLM) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 9, 9, 9], [1, 2, 1, 2]])
    options: dict[str, Any] = {
        "max_new_tokens": 30,
        "do_sample": False,
        "eos_token_id": [3, 10, 20, 30, 40],
        "pad_token_id": 0,
    }
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    result = freedraft.generate(model, ids, cost_gate=False, return_dict=True, **options)
    assert isinstance(result, GenerationResult)
    assert torch.equal(result.sequences, wanted)
    lengths = {len(new) for new in result.token_ids}
    assert len(lengths) > 1


def test_an_option_given_as_none_wins_over_the_models_own(
    model: LlamaForCausalLM, answer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.generation_config, "eos_token_id", answer[6])
    assert run(model, answer).token_ids[0] == answer[: answer.index(answer[6]) + 1]
    assert run(model, answer, eos_token_id=None).token_ids[0] == answer
    monkeypatch.setattr(model.generation_config, "stop_strings", ["x"])
    with pytest.raises(ValueError, match="expected a tokenizer beside stop_strings"):
        run(model, answer)
    assert run(model, answer, eos_token_id=None, stop_strings=None).token_ids[0] == answer
