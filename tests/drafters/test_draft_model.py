"""A second model that drafts: its cache follows the text, its vocabulary is mapped exactly."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from model_drafter_helpers import SHAPES, cached_states, deep_llama, model_drafter
from tiny_models import VOCAB_SIZE
from transformers import PreTrainedModel

from freedraft import CandidateTree
from freedraft.drafters.draft_model import DraftModelDrafter, VocabularyMap
from freedraft.drafters.model_drafting import ModelDraftConfig
from freedraft.verifier import TreeForward
from freedraft.verifier.tree_growth import TreeGrowth


def greedy(model: PreTrainedModel, text: list[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[-count:]


def propose_one(drafter: DraftModelDrafter, request: object, nodes: int = 4) -> CandidateTree:
    (tree,) = drafter.propose([request], nodes, nodes)
    return tree


def test_a_chain_is_the_models_own_greedy_text() -> None:
    model = deep_llama()
    drafter = model_drafter(model, "chain")
    text = [1, 2, 3, 4, 5]
    drafter.start("a", text)
    tree = propose_one(drafter, "a")
    assert tree.token_ids.tolist() == greedy(model, text, 4)
    assert tree.is_chain and tree.draft_probs is None


@pytest.mark.parametrize("shape", SHAPES)
def test_the_cache_holds_the_committed_text_and_nothing_else(shape: str) -> None:
    """Rows that accept none, some or all of their drafts, while others begin, end and go back."""
    model = deep_llama()
    opened: list[TreeGrowth] = []
    drafter = model_drafter(model, shape, opened)
    rng = random.Random(shape)
    texts: dict[int, list[int]] = {}
    for step in range(30):
        if step in (0, 1, 9, 15):
            texts[step] = [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randint(2, 9))]
            drafter.start(step, texts[step])
        if step == 20:
            drafter.stop(1)
            del texts[1]
        if step in (12, 17):
            del texts[0][-3:]
            drafter.truncate(0, len(texts[0]))
        asked = [request for request in texts if rng.random() < 0.8]
        trees = drafter.propose(asked, 10, 4)
        for request, tree in zip(asked, trees, strict=True):
            assert tree.num_nodes, (step, request)
            if tree.draft_probs is None:
                check_choices(model, texts[request], tree)
            path = tree.path(rng.randrange(tree.num_nodes))
            new = tree.token_ids[path[: rng.randint(0, len(path))]].tolist()
            new.append(rng.randrange(1, VOCAB_SIZE))
            drafter.extend(request, new)
            texts[request] += new
    drafter.propose(list(texts), 10, 4)  # takes in what was committed last
    for runner in opened:
        if not any(runner is drafter._runner_of.get(request) for request in texts):
            continue
        runner.keep([[]] * len(runner.request_ids))
        states = cached_states(runner._target.cache)
        for row, request in enumerate(runner.request_ids):
            length = runner.context_lengths[row]
            fresh = TreeForward(model)
            fresh.prefill([texts[request][:length]])
            for got, wanted in zip(states, cached_states(fresh.cache), strict=True):
                assert torch.allclose(got[row, :, :length], wanted[0], atol=1e-9)
            assert length >= len(texts[request]) - 8


def check_choices(model: PreTrainedModel, text: list[int], tree: CandidateTree) -> None:
    """The most probable child of each node that has children is the model's greedy choice."""
    for node, below in tree.children().items():
        path = [] if node < 0 else tree.token_ids[tree.path(node)].tolist()
        best = max(below.values(), key=lambda child: tree.probs[child])
        assert tree.token_ids[best] == greedy(model, [*text, *path], 1)[0]


def test_drawn_rows_are_the_models_distributions() -> None:
    model = deep_llama()
    drafter = model_drafter(model, "drawn tree")
    text = [1, 2, 3]
    drafter.start("a", text)
    tree = propose_one(drafter, "a", 8)
    assert tree.draft_probs is not None
    for node, below in tree.children().items():
        path = [] if node < 0 else tree.token_ids[tree.path(node)].tolist()
        with torch.no_grad():
            logits = model(torch.tensor([[*text, *path]])).logits[0, -1]
        wanted = torch.softmax(logits / 0.9, -1).numpy()
        first, *others = sorted(below.values())
        assert tree.draft_probs[first] == pytest.approx(wanted, abs=1e-6)
        for other in others:
            wanted[tree.token_ids[first]] = 0
            assert tree.draft_probs[other] == pytest.approx(wanted / wanted.sum(), abs=1e-6)


def test_draws_differ_by_request_and_place_and_repeat_with_a_new_drafter() -> None:
    model = deep_llama()
    drafts: list[list[list[int]]] = []
    for _ in range(2):
        drafter = model_drafter(model, "drawn chain")
        drafts.append([])
        for request in range(8):
            drafter.start(request, [1, 2, 3])
            drafts[-1].append(propose_one(drafter, request).token_ids.tolist())
    assert drafts[0] == drafts[1]
    assert len({tuple(tokens) for tokens in drafts[0]}) > 4


@pytest.mark.parametrize("prompt", [[], [7], [3, -1, 4], [3, VOCAB_SIZE + 5]])
def test_texts_that_cannot_be_read_have_no_draft(prompt: list[int]) -> None:
    drafter = model_drafter(deep_llama(), "chain")
    drafter.start("a", prompt)
    assert propose_one(drafter, "a").num_nodes == 0
    drafter.extend("a", [5, 6])
    assert (propose_one(drafter, "a").num_nodes > 0) == (len(prompt) < 2)


def test_foreign_requests_limits_and_ids_used_again() -> None:
    model = deep_llama()
    drafter = model_drafter(model, "chain")
    assert drafter.propose(["unknown"], 4, 4)[0].num_nodes == 0
    drafter.extend("unknown", [1])
    drafter.truncate("unknown", 3)
    drafter.stop("unknown")
    drafter.start("a", [1, 2, 3])
    assert drafter.propose(["a"], 0, 4)[0].num_nodes == 0
    assert drafter.propose(["a"], 4, 0)[0].num_nodes == 0
    assert drafter.propose(["a", "unknown"], 9, 2)[0].num_nodes == 2
    with pytest.raises(ValueError, match="max_nodes >= 0"):
        drafter.propose(["a"], -1, 4)
    with pytest.raises(ValueError, match="length >= 0, got -1"):
        drafter.truncate("a", -1)
    drafter.start("a", [9, 8])
    assert propose_one(drafter, "a").token_ids.tolist() == greedy(model, [9, 8], 4)
    with pytest.raises(ValueError, match="one dimension"):
        drafter.start("b", np.zeros((2, 2), np.int32))


def test_a_draft_ends_with_the_draft_models_context() -> None:
    model = deep_llama()  # of 256 tokens
    drafter = model_drafter(model, "chain")
    drafter.start("a", [1 + i % 40 for i in range(254)])
    assert propose_one(drafter, "a").num_nodes == 2
    drafter.extend("a", [1, 2, 3])
    assert propose_one(drafter, "a").num_nodes == 0
    drafter.start("long", [1] * 300)
    assert propose_one(drafter, "long").num_nodes == 0


def test_a_gate_that_sleeps_costs_no_forward() -> None:
    drafter = DraftModelDrafter(
        lambda: pytest.fail("opened"), VocabularyMap.identity(48, 48), ModelDraftConfig()
    )
    drafter.start("a", [1, 2, 3])  # the first steps are plain, to know what they take
    assert propose_one(drafter, "a").num_nodes == 0
    assert drafter.speedup is None


def permuted(model: PreTrainedModel, order: list[int]) -> PreTrainedModel:
    """Return the same model with its ids in another order: new id i was ``order[i]``."""
    other = deep_llama()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in (other.model.embed_tokens.weight, other.lm_head.weight):
            weight.copy_(weight[order].clone())
    return other


@pytest.mark.parametrize("shape", ["chain", "drawn chain"])
def test_another_vocabulary_through_an_exact_map(shape: str) -> None:
    model = deep_llama()
    order = random.Random(1).sample(range(VOCAB_SIZE), VOCAB_SIZE)
    vocabulary = VocabularyMap(np.argsort(order), VOCAB_SIZE)
    same = model_drafter(model, shape)
    other_model = permuted(model, order)
    mapped = DraftModelDrafter(
        lambda: TreeGrowth(other_model, TreeForward(other_model)), vocabulary, same.config
    )
    for drafter in (same, mapped):
        drafter.start("a", [1, 2, 3])
    one, two = propose_one(same, "a"), propose_one(mapped, "a")
    assert one.token_ids.tolist() == two.token_ids.tolist()
    if one.draft_probs is not None:
        assert two.draft_probs == pytest.approx(one.draft_probs, abs=1e-6)


def test_tokens_without_a_counterpart_are_never_drafted_and_end_the_drafts() -> None:
    model = deep_llama()
    table = np.arange(60)
    table[VOCAB_SIZE:] = -1
    banned = greedy(model, [1, 2, 3], 1)[0]
    table[banned] = -1
    vocabulary = VocabularyMap(table, VOCAB_SIZE)
    drafter = DraftModelDrafter(
        lambda: TreeGrowth(model, TreeForward(model)),
        vocabulary,
        ModelDraftConfig(temperature=1.0, confidence=0.0, gate=False),
    )
    for number in range(30):
        drafter.start(number, [1, 2, 3])
        tree = propose_one(drafter, number)
        assert banned not in tree.token_ids and tree.draft_probs is not None
        assert tree.draft_probs.shape[1] == 60 and not tree.draft_probs[:, banned].any()
        assert not tree.draft_probs[:, VOCAB_SIZE:].any()
    drafter.extend(29, [banned])
    assert propose_one(drafter, 29).num_nodes == 0
    drafter.truncate(29, 3)
    assert propose_one(drafter, 29).num_nodes > 0


def test_maps_from_tokenizers() -> None:
    target = {"a": 0, "b": 1, "c": 2}
    draft = {"b": 0, "x": 1, "a": 3}
    vocabulary = VocabularyMap.from_tokenizers(target, draft, target_size=4, draft_size=4)
    assert vocabulary.to_draft_ids([0, 1]) == [3, 0]
    assert vocabulary.num_mapped == 2 and not vocabulary.is_identity
    assert [vocabulary.num_readable(ids) for ids in ([0, 1], [0, 2, 1], [3], [])] == [2, 1, 0, 0]
    logits = vocabulary.to_target_logits(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert logits.tolist() == [[4.0, 1.0, -torch.inf, -torch.inf]]
    padded = VocabularyMap.identity(5, 3)
    assert padded.to_target_logits(torch.ones(1, 3)).tolist() == [[1, 1, 1, *[-torch.inf] * 2]]
    assert VocabularyMap.identity(3, 3).is_identity


BAD_MAPS: list[tuple[Any, int, str]] = [
    ([[0, 1]], 2, r"one dimension of integers, got shape \(1, 2\)"),
    ([0.5, 1.0], 2, "of float64"),
    ([-1, -1], 2, "tokens in common, got none"),
    ([0, 2], 2, r"in 0\.\.1 \(or -1\), got 0\.\.2"),
    ([0, -2], 2, r"got -2\.\.0"),
    ([1, 1, 0], 2, "several for its id 1: such a map is not exact"),
]


@pytest.mark.parametrize(("table", "size", "message"), BAD_MAPS)
def test_maps_that_are_not_exact_are_refused(table: Any, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VocabularyMap(table, size)


def test_tokenizers_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens in common, got none"):
        VocabularyMap.from_tokenizers({"a": 0}, {"b": 0}, 1, 1)
    with pytest.raises(ValueError, match="ids below 1 and 1, got 1 and -1 for the token 'b'"):
        VocabularyMap.from_tokenizers({"a": 0, "b": 1}, {"a": 0}, 1, 1)
