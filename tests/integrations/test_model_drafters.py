"""Drafters that run a model, and an engine's own heads, leave the text as it is."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from model_drafter_helpers import (
    OTHER_MODELS,
    SHAPES,
    deep_llama,
    layer_skipper,
    model_drafter,
    other_model,
)
from tiny_models import VOCAB_SIZE, random_prompt
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3NextConfig, Qwen3NextForCausalLM

import freedraft
from freedraft import CandidateTree, Drafter, Feedback, GenerationResult
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.draft_model import DraftModelDrafter, VocabularyMap
from freedraft.drafters.external import ExternalDrafter, tree_from_heads
from freedraft.drafters.layer_skip import SkipSet
from freedraft.drafters.model_drafting import ModelDraftConfig
from freedraft.drafters.model_drafting.pay_gate import PayGate
from freedraft.drafters.ngram import NgramDrafter
from freedraft.integrations.model_drafters import draft_model_drafter
from freedraft.verifier import TreeForward
from freedraft.verifier.tree_growth import TreeGrowth

NEW_TOKENS = 14


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return deep_llama()


@pytest.fixture(scope="module")
def sibling() -> PreTrainedModel:
    """The target with its weights stirred: a draft model that is often right."""
    model = deep_llama()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.08 * torch.randn_like(parameter))
    return model


def result_of(*args: Any, **options: Any) -> GenerationResult:
    result = freedraft.generate(*args, cost_gate=False, return_dict=True, **options)
    assert isinstance(result, GenerationResult)
    return result


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids, mask


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_text_is_plain_decodings(
    target: PreTrainedModel, sibling: PreTrainedModel, shape: str, batch_size: int
) -> None:
    rng = random.Random(shape)
    drafters: list[Drafter] = [layer_skipper(shape), model_drafter(sibling, shape)]
    accepted = [0, 0]
    for _ in range(12 // batch_size):
        ids, mask = left_padded([random_prompt(rng, rng.randint(1, 20)) for _ in range(batch_size)])
        options: dict[str, Any] = {
            "attention_mask": mask,
            "max_new_tokens": NEW_TOKENS,
            "do_sample": False,
            "eos_token_id": [1, 2],  # rows end at different steps
            "pad_token_id": 0,
        }
        wanted = target.generate(ids, **options)
        for index, drafter in enumerate(drafters):  # kept over all prompts
            result = result_of(target, ids, drafter=drafter, **options)
            assert torch.equal(result.sequences, wanted), drafter.name
            assert result.statistics.switched_off == 0
            accepted[index] += result.statistics.accepted
    assert min(accepted) > 10
    assert "forward" not in target.model.layers[1].self_attn.__dict__


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_models_of_other_make_draft_for_themselves(name: str) -> None:
    model = other_model(name)
    accepted = 0
    for shape in ("chain", "tree"):
        drafter = layer_skipper(shape, SkipSet.of([1], [2]))
        for seed in range(3):
            prompt = random_prompt(random.Random(seed), 9)
            options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": seed == 2}
            wanted = result_of(model, prompt, drafter=None, seed=seed, **options)
            result = result_of(model, prompt, drafter=drafter, seed=seed, **options)
            assert result.token_ids == wanted.token_ids
            assert result.statistics.switched_off == 0
            accepted += result.statistics.accepted
    assert accepted > 5


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_seeded_text_is_the_same_with_chosen_drafts(
    target: PreTrainedModel, sibling: PreTrainedModel, shape: str
) -> None:
    ids, mask = left_padded([[5, 6, 7, 5, 6], [9], [1, 2, 3]])
    options: dict[str, Any] = {
        "attention_mask": mask,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "max_new_tokens": 30,
    }
    accepted = 0
    for seed in range(4):
        wanted = result_of(target, ids, drafter=None, seed=seed, **options)
        for drafter in (layer_skipper(shape), model_drafter(sibling, shape)):
            result = result_of(target, ids, drafter=drafter, seed=seed, **options)
            assert result.token_ids == wanted.token_ids, drafter.name
            accepted += result.statistics.accepted
    assert accepted > 20


def top_probs(model: PreTrainedModel, text: list[int], count: int) -> dict[int, float]:
    with torch.no_grad():
        values, ids = model(torch.tensor([text])).logits[0, -1].topk(count)
    return dict(zip(ids.tolist(), torch.softmax(values, -1).tolist(), strict=True))


def statistic_of(target: PreTrainedModel, drafter: Drafter) -> tuple[float, int]:
    """Return chi-square of two new tokens behind the first one, and how many were accepted."""
    prompt, batch, rounds, top_k = [5, 6, 7, 8, 5, 6, 7], 100, 12, 4
    ids = torch.tensor([prompt] * batch)
    counts: dict[tuple[int, ...], int] = {}
    accepted = 0
    for number in range(rounds):
        result = result_of(
            target,
            ids,
            attention_mask=torch.ones_like(ids),
            drafter=drafter,
            do_sample=True,
            top_k=top_k,
            max_new_tokens=3,
            seed=list(range(number * batch, (number + 1) * batch)),
        )
        accepted += result.statistics.accepted
        assert result.statistics.switched_off == 0
        for new in result.token_ids:
            counts[tuple(new[:2])] = counts.get(tuple(new[:2]), 0) + 1
    statistic = 0.0
    for one, p_one in top_probs(target, prompt, top_k).items():
        for two, p_two in top_probs(target, [*prompt, one], top_k).items():
            expected = batch * rounds * p_one * p_two
            statistic += (counts.pop((one, two), 0) - expected) ** 2 / expected
    assert not counts, "tokens that the target never emits"
    return statistic, accepted


CRITICAL = 37.7  # 0.1 % point of 15 degrees of freedom


@pytest.mark.parametrize("shape", ["drawn chain", "drawn tree"])
@pytest.mark.parametrize("kind", ["layer_skip", "draft_model"])
def test_drawn_text_is_distributed_as_the_targets(
    target: PreTrainedModel, sibling: PreTrainedModel, kind: str, shape: str
) -> None:
    drafter: Drafter
    if kind == "layer_skip":
        drafter = layer_skipper(shape, SkipSet.of([2], [3]))
    else:
        drafter = model_drafter(sibling, shape)
    statistic, accepted = statistic_of(target, drafter)
    assert statistic < CRITICAL
    assert accepted > 300


def test_a_q_of_another_temperature_is_found_out(
    target: PreTrainedModel, sibling: PreTrainedModel
) -> None:
    drafter = model_drafter(sibling, "drawn chain")
    propose = drafter.propose

    def dishonest(*args: Any) -> list[CandidateTree]:
        trees = propose(*args)
        for tree in trees:
            assert tree.draft_probs is not None
            tree.draft_probs[:] = np.sqrt(tree.draft_probs)
            tree.draft_probs[:] /= tree.draft_probs.sum(-1, keepdims=True)
        return trees

    drafter.propose = dishonest  # type: ignore[method-assign]
    assert statistic_of(target, drafter)[0] > CRITICAL


def test_a_fallback_of_the_blend_drafts_where_nothing_repeats(target: PreTrainedModel) -> None:
    skipper = layer_skipper("chain", SkipSet.of([1], []))
    blend = BlendDrafter([NgramDrafter()], fallbacks=[skipper])
    ids = torch.tensor([[3, 14, 15, 9, 26], [5, 35, 8, 9, 7]])
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 30}
    result = result_of(target, ids, drafter=blend, do_sample=False, **options)
    assert torch.equal(result.sequences, target.generate(ids, do_sample=False, **options))
    assert result.statistics.accepted > 5 and result.statistics.switched_off == 0
    assert "forward" not in target.model.layers[1].self_attn.__dict__


def test_the_gate_leaves_drafts_off_that_do_not_pay(target: PreTrainedModel) -> None:
    """By a clock on which every forward of the draft takes as long as a step of the target."""
    now = [0.0]

    def tick(module: nn.Module, inputs: Any) -> None:
        now[0] += 1.0

    stranger = deep_llama(seed=9)  # nothing that it drafts comes true
    hooks = [model.register_forward_pre_hook(tick) for model in (target, stranger)]
    drafter = DraftModelDrafter(
        lambda: TreeGrowth(stranger, TreeForward(stranger)),
        VocabularyMap.identity(VOCAB_SIZE, VOCAB_SIZE),
        ModelDraftConfig(max_depth=4, confidence=0.0),
        PayGate(True, lambda: now[0]),
    )
    result = result_of(target, [1, 2, 3], drafter=drafter, max_new_tokens=100, do_sample=False)
    for hook in hooks:
        hook.remove()
    assert drafter.speedup == pytest.approx(0.2, abs=0.1)
    assert 0 < result.statistics.drafted <= 4 * 2  # one trial


def test_a_model_that_cannot_be_cut_back_decodes_on_without(target: PreTrainedModel) -> None:
    config = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2}
    with pytest.raises(ValueError, match="cut back"):
        draft_model_drafter(
            hybrid(config), target, vocabulary=VocabularyMap.identity(VOCAB_SIZE, VOCAB_SIZE)
        )
    no_such_layer = layer_skipper("chain", SkipSet.of([9], []))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = result_of(target, [1, 2, 3], drafter=no_such_layer, max_new_tokens=5)
    assert result.statistics.switched_off == 1 and result.statistics.emitted == 5
    assert "attention layers in 0..4, got [9]" in str(caught[0].message)


def hybrid(config: dict[str, int]) -> PreTrainedModel:
    return Qwen3NextForCausalLM(
        Qwen3NextConfig(
            head_dim=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention"],
            shared_expert_intermediate_size=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            intermediate_size=48,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
            **config,
        )
    )


class Vocabulary:
    """A tokenizer as far as a vocabulary goes."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._ids = {token: index for index, token in enumerate(tokens)}

    def get_vocab(self) -> dict[str, int]:
        return self._ids


def test_other_tokenizers_are_refused(target: PreTrainedModel, sibling: PreTrainedModel) -> None:
    one: Any = Vocabulary("abc")
    other: Any = Vocabulary("acb")
    drafter = draft_model_drafter(
        sibling, target, draft_tokenizer=one, target_tokenizer=Vocabulary("abc")
    )
    assert drafter.name == "draft_model"
    with pytest.raises(ValueError, match=r"3 and 3 tokens, 1 of them with the same id"):
        draft_model_drafter(sibling, target, draft_tokenizer=other, target_tokenizer=one)
    with pytest.raises(ValueError, match="or a vocabulary map, got neither"):
        draft_model_drafter(sibling, target, draft_tokenizer=one)
    with pytest.raises(ValueError, match=r"from 48 ids .* to 48 .*, got one from 4 to 48"):
        draft_model_drafter(sibling, target, vocabulary=VocabularyMap(np.arange(4), 48))


class ToyHeads:
    """Medusa-like heads with random weights, in the place of an engine's own drafter.

    The engine's side (the target's last hidden states, a head for each position ahead) is caught
    by a hook; what is handed over goes through :class:`ExternalDrafter`.
    """

    name = "heads"

    def __init__(self, model: PreTrainedModel, answers: Callable[[], Sequence[int]]) -> None:
        torch.manual_seed(4)
        size = model.config.hidden_size
        self._heads = [nn.Linear(size, VOCAB_SIZE).double() for _ in range(3)]
        self._hidden: Tensor | None = None
        self._hook = model.lm_head.register_forward_pre_hook(self._catch)
        self._lengths: dict[object, int] = {}
        self._answers = answers
        self.inner = ExternalDrafter("heads")
        self.offers = 0

    def _catch(self, module: nn.Module, inputs: tuple[Tensor]) -> None:
        self._hidden = inputs[0].detach()

    def start(self, request_id: object, prompt_ids: Sequence[int], namespace: str = "") -> None:
        self._lengths[request_id] = len(prompt_ids)
        self.inner.start(request_id, prompt_ids, namespace)

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        """The engine has verified: its heads look at the last accepted place and hand over."""
        assert self._hidden is not None
        column = int(feedback.accepted[-1]) + 1 if feedback.accepted.size else 0
        hidden = self._hidden[0, column if self._hidden.shape[1] > column else -1]
        with torch.no_grad():
            probs = torch.stack([torch.softmax(head(hidden), -1) for head in self._heads])
        values, ids = probs.topk(3)
        self._lengths[request_id] += feedback.token_ids.size
        known = self._answers()[self._lengths[request_id] :][:3]
        ids[: len(known), 0] = torch.tensor(known)  # random heads are never right by themselves
        tree = tree_from_heads(ids.numpy(), values.numpy(), 8)
        self.inner.offer(request_id, self._lengths[request_id], tree)
        self.offers += 1

    def extend(self, request_id: object, token_ids: Sequence[int]) -> None:
        self.inner.extend(request_id, token_ids)

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return self.inner.propose(request_ids, max_nodes, max_depth)

    def truncate(self, request_id: object, length: int) -> None:
        self.inner.truncate(request_id, length)

    def stop(self, request_id: object) -> None:
        self.inner.stop(request_id)
        self._hook.remove()


@pytest.mark.parametrize("helped", [False, True])
def test_an_engines_heads_blend_with_retrieval(target: PreTrainedModel, helped: bool) -> None:
    prompt = torch.tensor([[5, 6, 7, 8, 5, 6]])
    mask = torch.ones_like(prompt)
    wanted = target.generate(prompt, attention_mask=mask, max_new_tokens=40, do_sample=False)
    heads = ToyHeads(target, lambda: wanted[0].tolist() if helped else [])
    blend = BlendDrafter([NgramDrafter(), heads])
    result = result_of(target, prompt, drafter=blend, max_new_tokens=40, do_sample=False)
    assert torch.equal(result.sequences, wanted)
    assert result.statistics.switched_off == 0
    assert heads.offers == result.statistics.steps
    assert (result.statistics.accepted >= 20) == helped
