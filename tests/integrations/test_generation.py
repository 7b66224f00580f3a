"""Whatever is drafted, the text is the text of plain decoding."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE, RandomTreeDrafter, random_prompt, tiny_llama
from torch import Tensor
from transformers import LlamaForCausalLM, SynthIDTextWatermarkingConfig, WatermarkingConfig

import freedraft
from freedraft import Drafter, GenerationResult

# Without the compiler the drafters are a hundred times slower; fewer prompts find the same faults.
NUM_PROMPTS = 200 if os.environ.get("NUMBA_DISABLE_JIT") != "1" else 12
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_llama()


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids, mask


def result_of(*args: Any, **options: Any) -> GenerationResult:
    result = freedraft.generate(*args, return_dict=True, **options)
    assert isinstance(result, GenerationResult)
    return result


def drafters(seed: int, answers: Sequence[Sequence[int]]) -> list[Drafter]:
    return [
        freedraft.create_drafter("ngram"),
        freedraft.create_drafter("suffix"),
        RandomTreeDrafter(seed, answers),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4])
def test_greedy_equals_the_models_own_generate(model: LlamaForCausalLM, batch_size: int) -> None:
    rng = random.Random(batch_size)
    drafted = accepted = 0
    kept: list[Drafter] | None = None
    for seed in range(NUM_PROMPTS // batch_size):
        prompts = [random_prompt(rng, rng.randint(1, 20)) for _ in range(batch_size)]
        ids, mask = left_padded(prompts)
        wanted = model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False
        )
        answers = [
            prompt + row[ids.shape[1] :].tolist()
            for prompt, row in zip(prompts, wanted, strict=True)
        ]
        if kept is None or seed % 10 == 0:  # some pools are kept warm, some are fresh
            kept = drafters(seed, answers)
        kept[2] = RandomTreeDrafter(seed, answers)
        for drafter in kept:
            result = result_of(
                model,
                ids,
                attention_mask=mask,
                drafter=drafter,
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                cost_gate=False,
            )
            assert torch.equal(result.sequences, wanted), (seed, drafter.name)
            assert result.statistics.switched_off == 0
            drafted += result.statistics.drafted
            accepted += result.statistics.accepted
    assert accepted > NUM_PROMPTS  # the trees were not all empty or wrong
    assert drafted > 2 * accepted


SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.4},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.9},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
    "bad_words_ids": {"bad_words_ids": [[3], [4, 5]]},
    "sequence_bias": {"sequence_bias": [[[7], 2.0], [[8, 9], -3.0]]},
    "min_new_tokens": {"min_new_tokens": 8, "eos_token_id": [1, 2, 3, 4]},
    "top_h": {"top_h": 0.6},
    "epsilon_cutoff": {"epsilon_cutoff": 0.01},
    "eta_cutoff": {"eta_cutoff": 0.02},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.4},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "exponential_decay_length_penalty": {
        "exponential_decay_length_penalty": (4, 1.3),
        "eos_token_id": [1, 2],
    },
    "forced_eos_token_id": {"forced_eos_token_id": 7, "max_length": 25, "max_new_tokens": None},
    "suppress_tokens": {"suppress_tokens": [1, 2, 3, 4, 5]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [10, 11, 12]},
    "renormalize_logits": {"renormalize_logits": True, "top_p": 0.9},
    "guidance_scale": {"guidance_scale": 1.5},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=3.0)},
    "synthid": {
        "watermarking_config": SynthIDTextWatermarkingConfig(
            keys=[654, 400, 836], ngram_len=3, sampling_table_size=2**10
        )
    },
    "prefix_allowed_tokens_fn": {
        "prefix_allowed_tokens_fn": lambda row, ids: [t for t in range(48) if (t + row) % 3]
    },
    "all": {
        "temperature": 0.9,
        "top_k": 12,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
    },
}


@pytest.mark.parametrize("name", SAMPLING)
def test_seeded_sampling_is_the_same_with_any_drafter(model: LlamaForCausalLM, name: str) -> None:
    rng = random.Random(name)
    prompts = [random_prompt(rng, length) for length in (3, 8, 5)]
    ids, mask = left_padded(prompts)
    options: dict[str, Any] = {
        "attention_mask": mask,
        "do_sample": True,
        "max_new_tokens": 20,
        "seed": 17,
        "cost_gate": False,
        **{"top_k": 0, **SAMPLING[name]},
    }
    wanted = result_of(model, ids, drafter=None, **options)
    assert wanted.statistics.tokens_per_step == 1.0
    answers = [p + new for p, new in zip(prompts, wanted.token_ids, strict=True)]
    for drafter in drafters(5, answers):
        result = result_of(model, ids, drafter=drafter, **options)
        assert result.token_ids == wanted.token_ids, drafter.name
        assert result.finish_reasons == wanted.finish_reasons
        for got, want in zip(result.logprobs, wanted.logprobs, strict=True):
            assert got == pytest.approx(want, abs=1e-5)
    assert result.statistics.accepted > 0


PER_ROW = (
    "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size",
    "synthid",
    "guidance_scale",
)


@pytest.mark.parametrize("name", PER_ROW)
def test_processors_with_a_part_for_each_row_are_split(model: LlamaForCausalLM, name: str) -> None:
    prompts = [[5, 6, 7, 5, 6], [9, 8, 9, 8, 9], [1, 2, 3, 1, 2]]
    options: dict[str, Any] = {
        "do_sample": True,
        "top_k": 0,
        "max_new_tokens": 12,
        **SAMPLING[name],
    }
    batch = result_of(
        model,
        torch.tensor(prompts),
        attention_mask=torch.ones(3, 5).long(),
        seed=[4, 5, 6],
        **options,
    )
    for row, prompt in enumerate(prompts):
        alone = result_of(model, prompt, seed=4 + row, **options)
        assert alone.token_ids[0] == batch.token_ids[row]


def test_a_row_of_a_batch_equals_the_row_alone(model: LlamaForCausalLM) -> None:
    rng = random.Random(4)
    prompts = [random_prompt(rng, length) for length in (2, 9, 6)]
    ids, mask = left_padded(prompts)
    options: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 12}
    batch = result_of(model, ids, attention_mask=mask, seed=[5, 6, 7], **options)
    for row, prompt in enumerate(prompts):
        alone = result_of(model, torch.tensor([prompt]), seed=5 + row, **options)
        assert alone.token_ids[0] == batch.token_ids[row]


def test_two_seeds_and_two_rows_differ(model: LlamaForCausalLM) -> None:
    ids = torch.tensor([[1, 2, 3], [1, 2, 3]])
    one = result_of(model, ids, seed=1, do_sample=True, max_new_tokens=12)
    two = result_of(model, ids, seed=2, do_sample=True, max_new_tokens=12)
    assert one.token_ids[0] != one.token_ids[1]
    assert one.token_ids != two.token_ids


def test_torchs_seed_decides_when_none_is_given(model: LlamaForCausalLM) -> None:
    texts = []
    for _ in range(2):
        torch.manual_seed(9)
        texts.append(freedraft.generate(model, [1, 2, 3], do_sample=True, max_new_tokens=10))
    assert torch.equal(texts[0], texts[1])


@pytest.mark.parametrize("cost_gate", [False, True])
def test_through_the_models_own_door(model: LlamaForCausalLM, cost_gate: bool) -> None:
    ids = torch.tensor([[5, 6, 7, 5, 6, 7, 5]])
    wanted = model.generate(ids, max_new_tokens=30, do_sample=False)
    got = model.generate(
        ids,
        max_new_tokens=30,
        do_sample=False,
        custom_generate=freedraft.custom_generate,
        drafter="ngram",
        cost_gate=cost_gate,
    )
    assert torch.equal(got, wanted)
    result = model.generate(
        ids,
        max_new_tokens=30,
        return_dict_in_generate=True,
        custom_generate=freedraft.custom_generate,
        drafter="ngram",
    )
    assert isinstance(result, GenerationResult)
    assert result.statistics.emitted == 30


def test_scores_and_logits_equal_plain_decoding(model: LlamaForCausalLM) -> None:
    rng = random.Random(8)
    ids, mask = left_padded([random_prompt(rng, 4), random_prompt(rng, 7)])
    options: dict[str, Any] = {
        "attention_mask": mask,
        "max_new_tokens": 15,
        "do_sample": False,
        "repetition_penalty": 1.2,
        "output_scores": True,
        "output_logits": True,
    }
    wanted = model.generate(ids, return_dict_in_generate=True, **options)
    result = result_of(model, ids, drafter="ngram", cost_gate=False, **options)
    assert torch.equal(result.sequences, wanted.sequences)
    for got, want in ((result.scores, wanted.scores), (result.logits, wanted.logits)):
        assert got is not None
        assert len(got) == 15
        torch.testing.assert_close(torch.stack(got), torch.stack(want))
    for row, new in enumerate(result.token_ids):
        for place, token in enumerate(new):
            logprob = torch.log_softmax(wanted.logits[place][row], -1)[token]
            assert result.logprobs[row][place] == pytest.approx(float(logprob), abs=1e-5)


def test_nothing_is_drafted_without_a_drafter(model: LlamaForCausalLM) -> None:
    for drafter in (None, "none"):
        result = result_of(model, [4, 4, 4, 4], drafter=drafter, max_new_tokens=9)
        assert result.statistics.drafted == 0
        assert result.statistics.steps == 9
    zero = result_of(model, [4, 4, 4, 4], drafter="ngram", max_nodes=0, max_new_tokens=9)
    assert zero.statistics.drafted == 0
    assert zero.token_ids == result.token_ids


def test_statistics_add_up(model: LlamaForCausalLM) -> None:
    seen: list[freedraft.StepReport] = []
    result = result_of(
        model, [4, 5, 4, 5, 4, 5, 4], cost_gate=False, max_new_tokens=40, on_step=seen.append
    )
    statistics = result.statistics
    assert seen == result.steps
    assert statistics.emitted == len(result.token_ids[0]) == 40
    assert sum(len(step.token_ids) for step in seen) == 40
    assert [t for step in seen for t in step.token_ids] == result.token_ids[0]
    assert statistics.accepted == sum(step.num_accepted for step in seen)
    assert statistics.drafted == sum(step.num_drafted for step in seen) >= statistics.accepted
    assert statistics.steps == len(seen)
    named = statistics.to_dict()
    assert named["tokens_per_step"] == pytest.approx(40 / len(seen))
    assert named["acceptance_rate"] + named["wasted_fraction"] == pytest.approx(1.0)
    assert named["seconds"] >= named["draft_seconds"] + named["verify_seconds"]


def test_the_cache_goes_on_where_a_generation_ended(model: LlamaForCausalLM) -> None:
    from transformers import DynamicCache

    ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3]])
    cache = DynamicCache()
    first = result_of(model, ids, max_new_tokens=13, cache=cache, cost_gate=False)
    assert cache.get_seq_length() == ids.shape[1] + 13 - 1
    again = torch.cat([first.sequences, torch.tensor([[9, 3, 4]])], dim=1)
    second = result_of(model, again, max_new_tokens=10, cache=cache, cost_gate=False)
    fresh = model.generate(again, max_new_tokens=10, do_sample=False)
    assert torch.equal(second.sequences, fresh)


def test_vocabulary_bound_is_tight(model: LlamaForCausalLM) -> None:
    result = freedraft.generate(model, [VOCAB_SIZE - 1], max_new_tokens=2)
    assert result.shape == (1, 3)


@pytest.mark.parametrize("name", ["phrase", "ngram", "blend"])
def test_a_prediction_that_comes_true_is_emitted_in_few_steps(
    model: LlamaForCausalLM, name: str
) -> None:
    prompt = [5, 9, 21, 2, 40]
    wanted = result_of(model, prompt, drafter=None, max_new_tokens=30).token_ids[0]
    options: dict[str, Any] = {"drafter": name, "max_new_tokens": 30, "cost_gate": False}
    told = result_of(model, prompt, prediction=wanted, **options)
    assert told.token_ids[0] == wanted
    assert told.statistics.steps <= 4
    changed = [*wanted[:9], (wanted[9] + 1) % VOCAB_SIZE, *wanted[10:]]
    told = result_of(model, prompt, prediction=changed, **options)
    assert told.token_ids[0] == wanted
    assert told.statistics.steps <= 12
    wrong = result_of(model, prompt, prediction=[1, 2, 3], **options)
    assert wrong.token_ids[0] == wanted


def test_a_kept_drafter_must_take_predictions(model: LlamaForCausalLM) -> None:
    with pytest.raises(ValueError, match="takes predictions, got 'ngram'"):
        result_of(
            model,
            [1, 2],
            drafter=freedraft.create_drafter("ngram"),
            prediction=[3],
            max_new_tokens=3,
        )
    plain = result_of(model, [1, 2], drafter=None, prediction=[3], max_new_tokens=3)
    assert plain.statistics.drafted == 0
