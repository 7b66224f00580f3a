"""Models with a recurrent state decode as without drafts, or are refused by name."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from recurrent_models import build_recurrent
from tiny_models import RandomTreeDrafter, random_prompt
from transformers import DynamicCache, PreTrainedModel

import freedraft
from freedraft import CandidateTree, GenerationResult
from freedraft.verifier import TreeForward, open_target
from freedraft.verifier.chain_forward import ChainForward
from freedraft.verifier.recurrent_state import Snapshot

NEW_TOKENS = 14


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {name: build_recurrent(name) for name in ("qwen3_next", "lfm2", "mamba2", "falcon_h1")}


def decode(model: PreTrainedModel, prompts: list[list[int]], **options: Any) -> GenerationResult:
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    result = freedraft.generate(
        model,
        ids,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        cost_gate=False,
        return_dict=True,
        **options,
    )
    assert isinstance(result, GenerationResult)
    return result


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "mamba2", "falcon_h1"])
def test_same_tokens_greedy_and_seeded(
    models: dict[str, PreTrainedModel], name: str, num_rows: int
) -> None:
    model = models[name]
    rng = random.Random(name)
    accepted = drafted = 0
    prompts = [random_prompt(rng, rng.randint(1, 9)) for _ in range(num_rows)]
    for options in ({"do_sample": False}, {"do_sample": True, "top_k": 8, "seed": 3}):
        if options["do_sample"]:
            plain = decode(model, prompts, drafter=None, **options).token_ids
        else:
            plain = []
            for prompt in prompts:
                ids = torch.tensor([prompt])
                text = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                )
                plain.append(text[0, len(prompt) :].tolist())
        answers = [prompt + new for prompt, new in zip(prompts, plain, strict=True)]
        result = decode(model, prompts, drafter=RandomTreeDrafter(5, answers), **options)
        assert result.token_ids == plain
        assert result.statistics.switched_off == 0
        assert (result.cache is None) == (num_rows > 1)
        accepted += result.statistics.accepted
        drafted += result.statistics.drafted
    assert 0 < accepted < drafted  # some runs were replayed


def test_a_rejected_token_leaves_no_trace_in_the_state(models: dict[str, PreTrainedModel]) -> None:
    model = models["qwen3_next"]
    with torch.no_grad():
        target = ChainForward(model)
        target.prefill([[3, 4, 5]])
        text = [3, 4, 5]
        root = 6
        for chain, num_accepted in (([7, 8, 9], 1), ([1, 2], 0), ([4], 1), ([], 0), ([5, 6], 2)):
            logits = target.forward([CandidateTree.from_chain(chain)], [root])
            for node in range(len(chain) + 1):
                whole = model(torch.tensor([[*text, root, *chain[:node]]])).logits[0, -1]
                torch.testing.assert_close(logits[0, node], whole, atol=1e-5, rtol=1e-4)
            target.commit([list(range(num_accepted))])
            text += [root, *chain[:num_accepted]]
            root = 10 + num_accepted
            assert target.context_lengths == [len(text)]


def test_long_replays_run_by_themselves(models: dict[str, PreTrainedModel]) -> None:
    model = models["lfm2"]
    with torch.no_grad():
        target = ChainForward(model)
        target.prefill([[3]])
        text = [3]
        for step in range(12):  # each accepts one and rejects one
            root, wrong = 1 + step % 5, 7
            logits = target.forward([CandidateTree.from_chain([2, wrong])], [root])
            whole = model(torch.tensor([[*text, root, 2]])).logits[0, -1]
            torch.testing.assert_close(logits[0, 1], whole, atol=1e-9, rtol=1e-9)
            target.commit([[0]])
            text += [root, 2]
            assert len(target._rows[0].replayed) <= 16 + 2


def test_a_finished_cache_can_be_gone_on_with(models: dict[str, PreTrainedModel]) -> None:
    model = models["falcon_h1"]
    cache = DynamicCache(config=model.config)
    prompt = [5, 6, 7, 5]
    plain = decode(model, [prompt], drafter=None)
    answer = prompt + plain.token_ids[0]
    first = decode(model, [prompt], drafter=RandomTreeDrafter(2, [answer]), cache=cache)
    assert cache.get_seq_length() == len(prompt) + NEW_TOKENS - 1
    again = [*first.sequences[0].tolist(), 9, 3]
    second = decode(model, [again], drafter=None, cache=cache)
    assert second.token_ids == decode(model, [again], drafter=None).token_ids
    with pytest.raises(ValueError, match="one row with a cache that holds a recurrent state"):
        decode(model, [prompt, prompt], cache=DynamicCache(config=model.config))


def test_trees_become_chains() -> None:
    target = open_target(build_recurrent("lfm2"))
    assert isinstance(target, ChainForward)
    tree = CandidateTree.from_chains([[1, 2], [3, 4, 5]], [[0.4, 0.3], [0.5, 0.5, 0.4]])
    (chain,) = target.fit([tree])
    assert chain.token_ids.tolist() == [3, 4, 5]
    # What was drawn is cut by the order of the draws, whatever is probable.
    q = np.full((5, 6), 1 / 6, np.float32)
    drawn = CandidateTree.from_arrays([1, 3, 2, 4, 5], [-1, -1, 0, 1, 3], None, q)
    (chain,) = target.fit([drawn])
    assert chain.token_ids.tolist() == [1, 2]
    assert chain.draft_probs is not None


def test_a_snapshot_is_untouched_by_what_runs_after_it(
    models: dict[str, PreTrainedModel],
) -> None:
    model = models["falcon_h1"]
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(torch.tensor([[1, 2, 3]]), cache=cache)
        snapshot = Snapshot(cache)
        wanted = None
        for token in (5, 9, 5):
            logits = model(torch.tensor([[4, token, 6]]), cache=cache).logits
            snapshot.restore()
            if token == 5:
                wanted = logits if wanted is None else wanted
                assert torch.equal(logits, wanted)


@pytest.mark.parametrize("name", ["mamba", "jamba", "recurrent_gemma"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_forget_their_state_are_refused_by_name(name: str, dtype: torch.dtype) -> None:
    model = build_recurrent(name).to(dtype)
    with pytest.raises(ValueError, match=f"(?i)got {name.replace('_', '')}ForCausalLM"):
        open_target(model)


def test_a_tree_on_a_recurrent_state_would_be_silently_wrong(
    models: dict[str, PreTrainedModel],
) -> None:
    model = models["qwen3_next"]
    prompt, tree = list(range(1, 9)), CandidateTree.from_chains([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="got LinearAttentionLayer in Qwen3NextForCausalLM"):
        TreeForward(model)
    with torch.no_grad():
        wanted = model(torch.tensor([[*prompt, 9, 3, 4]])).logits[0, -1]
        cache = DynamicCache(config=model.config)
        model(torch.tensor([prompt]), cache=cache)
        visible = torch.ones(5, 13, dtype=torch.bool)  # root, 1, 2, 3, 4 behind eight slots
        visible[:, 8:] = torch.tensor(
            [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]
        ).bool()
        mask = torch.zeros(1, 1, 5, 13, dtype=torch.float64)
        mask.masked_fill_(~visible, torch.finfo(torch.float64).min)
        positions = torch.tensor([[8, 9, 10, 9, 10]])
        got = model(
            torch.tensor([[9, 1, 2, 3, 4]]),
            attention_mask={"full_attention": mask, "linear_attention": None},
            position_ids=positions,
            cache=cache,
        ).logits[0, -1]
        assert float((got - wanted).abs().max()) > 1e-3  # nothing raised, and yet
        target = ChainForward(model)
        target.prefill([prompt])
        (chain,) = target.fit([tree.keep([2, 3])])
        right = target.forward([chain], [9])[0, 2]
    torch.testing.assert_close(right, wanted, atol=1e-5, rtol=1e-4)
