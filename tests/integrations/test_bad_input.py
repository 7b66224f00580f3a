"""Wrong input is named; a wrong drafter never changes or stops the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCAB_SIZE, tiny_llama
from transformers import LlamaForCausalLM, StaticCache

import freedraft
from freedraft import CandidateTree, GenerationResult

PROMPT = [5, 6, 7, 8, 5, 6, 7]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_llama()


class StubTokenizer:
    """Encodes each character as its code modulo ten; ``size`` ids in all."""

    pad_token_id = None

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __call__(
        self, texts: list[str], add_special_tokens: bool = True
    ) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(char) % 10 for char in text] for text in texts]}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(map(str, ids))


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one token"),
        ("", {"tokenizer": StubTokenizer(10)}, "at least one token"),
        (["ab", ""], {"tokenizer": StubTokenizer(10)}, "got an empty one at 1"),
        ("abc", {}, "expected a tokenizer beside a text prompt"),
        ("abc", {"tokenizer": StubTokenizer(49)}, "at most the model's 48 ids, got 49"),
        ([1, -5], {}, r"token ids in 0..47, got -5"),
        ([1, 48], {}, r"token ids in 0..47, got 48"),
        (torch.ones(1, 3), {}, "got torch.float32"),
        (torch.ones(1, 1, 3, dtype=torch.long), {}, r"shape \(batch, length\)"),
        ([3] * 256, {}, "shorter than the model's context of 256 tokens, got 256"),
        (PROMPT, {"max_nodes": -1}, "max_nodes >= 0, got -1"),
        (PROMPT, {"drafter": "nagram"}, "a drafter among ngram, .*got 'nagram'"),
        (PROMPT, {"prediction": "ab"}, "expected a tokenizer beside a prediction's text"),
        (PROMPT, {"prediction": [1, 48]}, r"token ids in 0..47, got 48"),
        (PROMPT, {"num_beams": 2}, "greedy search or sampling, got beam_search"),
        (PROMPT, {"output_attentions": True}, "output_attentions=False: a step's attention"),
        (PROMPT, {"use_cache": False}, "use_cache=True, got False"),
        (PROMPT, {"cache_implementation": "offloaded"}, "got 'offloaded'"),
        (PROMPT, {"stop_strings": ["x"]}, "expected a tokenizer beside stop_strings"),
        (PROMPT, {"do_sample": True, "seed": [1, 2]}, "expected one seed or 1, got 2"),
        (PROMPT, {"max_nwe_tokens": 3}, "max_nwe_tokens"),
        (PROMPT, {"attention_mask": torch.ones(1, 6)}, r"mask of shape \(1, 7\), got \(1, 6\)"),
        (
            PROMPT,
            {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1]])},
            "padding on the left only",
        ),
        (PROMPT, {"attention_mask": torch.zeros(1, 7)}, "got padding only"),
        (
            PROMPT,
            {"position_ids": torch.arange(7)[None] + 1, "attention_mask": torch.ones(1, 7)},
            "positions that count from the first token",
        ),
    ],
)
def test_each_is_a_clear_error(
    model: LlamaForCausalLM, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        freedraft.generate(model, prompt, **{"max_new_tokens": 4, **options})


def test_a_static_cache_without_room_is_refused(model: LlamaForCausalLM) -> None:
    cache = StaticCache(config=model.config, max_cache_len=9)
    with pytest.raises(ValueError, match="room for 10 tokens, got 9"):
        freedraft.generate(model, PROMPT, max_new_tokens=4, cache=cache)


def test_text_in_and_out(model: LlamaForCausalLM) -> None:
    tokenizer: Any = StubTokenizer(10)
    result = freedraft.generate(
        model, ["abcab", "yz"], tokenizer=tokenizer, max_new_tokens=6, return_dict=True
    )
    assert isinstance(result, GenerationResult)
    for row, text in enumerate(("abcab", "yz")):
        ids = [ord(char) % 10 for char in text]
        alone = model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)
        assert result.token_ids[row] == alone[0, len(ids) :].tolist()
        assert result.texts is not None
        assert result.texts[row] == "".join(map(str, result.token_ids[row]))


class FaultyDrafter:
    """Works for a while, then does one thing wrong."""

    name = "faulty"

    def __init__(self, fault: Callable[[], CandidateTree], healthy_calls: int = 2) -> None:
        self._fault = fault
        self._healthy = healthy_calls
        self.stopped = 0

    def start(self, request_id: object, prompt_ids: Sequence[int], namespace: str = "") -> None:
        pass

    def extend(self, request_id: object, token_ids: Sequence[int]) -> None:
        pass

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        self._healthy -= 1
        if self._healthy >= 0:
            return [CandidateTree.from_chain([5])] * len(request_ids)
        return [self._fault() for _ in request_ids]

    def observe(self, request_id: object, tree: CandidateTree, feedback: object) -> None:
        pass

    def truncate(self, request_id: object, length: int) -> None:
        pass

    def stop(self, request_id: object) -> None:
        self.stopped += 1


def raw(tokens: list[int], parents: list[int], probs: list[float] | None = None) -> CandidateTree:
    """Build a tree without the checks."""
    return CandidateTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array([1.0] * len(tokens) if probs is None else probs, np.float32),
    )


def crash() -> CandidateTree:
    raise KeyError("lost")


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "exception": (crash, "KeyError: 'lost'"),
    "wrong type": (lambda: [1, 2, 3], "expected a CandidateTree, got list"),
    "outside vocabulary": (lambda: raw([VOCAB_SIZE], [-1]), "vocabulary size 48, got 48"),
    "negative id": (lambda: raw([-1], [-1]), "token ids >= 0, got -1"),
    "child before parent": (lambda: raw([1, 2], [1, -1]), "parent before child"),
    "too many nodes": (lambda: raw(list(range(20)), [-1] * 20), "at most 16 nodes, got 20"),
    "repeated sibling": (lambda: raw([1, 1], [-1, -1]), "distinct siblings"),
    "probabilities grow": (lambda: raw([1, 2], [-1, 0], [0.1, 0.9]), "never grow"),
    "narrow draft_probs": (
        lambda: CandidateTree.from_arrays([1], [-1], [1.0], np.full((1, 47), 1 / 47)),
        "draft_probs rows of 48 entries",
    ),
    "draft_probs that do not sum to 1": (
        lambda: CandidateTree.from_arrays([1], [-1], [1.0], np.full((1, 48), 0.5)),
        "to be a distribution",
    ),
    "draft_probs without their token": (
        lambda: CandidateTree.from_arrays([1], [-1], [1.0], np.eye(48)[[2]]),
        "to allow its token 1",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_drafter_is_switched_off_once(model: LlamaForCausalLM, name: str) -> None:
    fault, message = FAULTS[name]
    wanted = model.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)
    drafter = FaultyDrafter(fault)
    with pytest.warns(RuntimeWarning, match="'faulty' is switched off") as record:
        result = freedraft.generate(
            model, PROMPT, drafter=drafter, max_new_tokens=20, cost_gate=False, return_dict=True
        )
    assert isinstance(result, GenerationResult)
    assert torch.equal(result.sequences, wanted)
    assert len(record) == 1
    assert message in str(record[0].message)
    assert result.statistics.switched_off == 1
    assert result.statistics.drafted == 2
    assert drafter.stopped == 1


def test_only_the_faulty_row_is_switched_off(model: LlamaForCausalLM) -> None:
    class HalfFaulty(FaultyDrafter):
        def propose(
            self, request_ids: Sequence[Any], max_nodes: int, max_depth: int
        ) -> list[CandidateTree]:
            return [
                raw([1] * 2, [-1] * 2) if row == 1 else CandidateTree.from_chain([5])
                for _, row in request_ids
            ]

    ids = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    wanted = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False
    )
    with pytest.warns(RuntimeWarning, match="switched off"):
        result = freedraft.generate(
            model,
            ids,
            drafter=HalfFaulty(crash),
            max_new_tokens=10,
            cost_gate=False,
            return_dict=True,
        )
    assert isinstance(result, GenerationResult)
    assert torch.equal(result.sequences, wanted)
    assert result.statistics.switched_off == 1
    assert {step.row for step in result.steps if step.num_drafted} == {0, 2}


@pytest.mark.parametrize("verb", ["start", "extend", "observe", "stop"])
def test_any_verb_may_fail(model: LlamaForCausalLM, verb: str) -> None:
    drafter = FaultyDrafter(lambda: CandidateTree.from_chain([5]))

    def fail(*args: object) -> None:
        raise RuntimeError(verb)

    setattr(drafter, verb, fail)
    wanted = model.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False)
    with pytest.warns(RuntimeWarning, match=f"RuntimeError: {verb}"):
        got = freedraft.generate(model, PROMPT, drafter=drafter, max_new_tokens=8, cost_gate=False)
    assert torch.equal(got, wanted)


class Streamer:
    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("door", ["generate", "custom_generate"])
def test_streamer_gets_prompt_and_tokens_in_order(model: LlamaForCausalLM, door: str) -> None:
    streamer = Streamer()
    if door == "generate":
        out = freedraft.generate(
            model, PROMPT, streamer=streamer, max_new_tokens=15, cost_gate=False
        )
    else:
        out = model.generate(
            torch.tensor([PROMPT]),
            streamer=streamer,
            max_new_tokens=15,
            do_sample=False,
            custom_generate=freedraft.custom_generate,
            cost_gate=False,
        )
    assert isinstance(out, torch.Tensor)
    assert streamer.values[0] == PROMPT
    assert [token for value in streamer.values[1:] for token in value] == out[0, 7:].tolist()
    assert all(len(value) == 1 for value in streamer.values[1:])
    assert streamer.ended == 1
