"""Layer skip: which sub-layers, how they are left out, what is left of it afterwards: nothing."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from model_drafter_helpers import (
    IDS,
    OTHER_MODELS,
    cached_states,
    deep_llama,
    draft_config,
    layer_skipper,
    other_model,
)
from tiny_models import VOCAB_SIZE
from torch import Tensor, nn
from transformers import OPTConfig, OPTForCausalLM, PreTrainedModel

from freedraft.drafters.layer_skip import LayerSkipConfig, LayerSkipDrafter, SkipSet
from freedraft.drafters.layer_skip.objective import (
    SubLayerCosts,
    expected_tokens,
    predicted_speedup,
)
from freedraft.drafters.layer_skip.refinement import SkipRefiner, changed
from freedraft.drafters.layer_skip.sublayers import SubLayers
from freedraft.verifier import TreeForward
from freedraft.verifier.tree_growth import TreeGrowth

TEXT = [5, 6, 7, 8, 9, 5, 6]


def logits_of(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([TEXT]), use_cache=False).logits
    return logits


def without(model: PreTrainedModel, skip: SkipSet) -> Tensor:
    """Return the logits of a llama whose sub-layers are zeroed by their last weights."""
    saved = {name: p.clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            if index in skip.attention:
                layer.self_attn.o_proj.weight.zero_()
            if index in skip.mlp:
                layer.mlp.down_proj.weight.zero_()
        logits = logits_of(model)
        for name, parameter in model.named_parameters():
            parameter.copy_(saved[name])
    return logits


@pytest.mark.parametrize(
    "skip", [SkipSet.of([1, 3], [0, 3]), SkipSet.of([], [2]), SkipSet.exit_at(3, 5)]
)
def test_left_out_sublayers_answer_zeros(skip: SkipSet) -> None:
    model = deep_llama()
    whole, wanted = logits_of(model), without(model, skip)
    sublayers = SubLayers(model)
    sublayers.install()
    logits_of(model)  # the first call shows what an answer looks like
    with sublayers.skipping(skip):
        assert torch.allclose(logits_of(model), wanted, atol=1e-12)
    assert torch.equal(logits_of(model), whole)
    sublayers.remove()
    assert not torch.allclose(whole, wanted, atol=1e-3)


def test_switches_come_and_go_with_their_users() -> None:
    model = deep_llama()
    before = [dict(module.__dict__) for module in model.modules()]
    one, two = SubLayers(model), SubLayers(model)
    one.install()
    two.install()
    one.remove()
    assert "forward" in model.model.layers[0].self_attn.__dict__
    two.remove()
    assert [dict(module.__dict__) for module in model.modules()] == before


def test_other_threads_keep_the_whole_model() -> None:
    model = deep_llama()
    whole = logits_of(model)
    sublayers = SubLayers(model)
    sublayers.install()
    logits_of(model)
    seen: list[Tensor] = []
    with sublayers.skipping(SkipSet.of([0, 1, 2], [0, 1, 2])):
        thread = threading.Thread(target=lambda: seen.append(logits_of(model)))
        thread.start()
        thread.join()
        mine = logits_of(model)
    sublayers.remove()
    assert torch.equal(seen[0], whole) and not torch.equal(mine, whole)


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_models_of_other_make(name: str) -> None:
    model = other_model(name)
    whole = logits_of(model)
    sublayers = SubLayers(model)
    assert sublayers.num_layers == 3
    sublayers.install()
    logits_of(model)
    for skip in (SkipSet.of([1], []), SkipSet.of([], [1]), SkipSet.of([1, 2], [1, 2])):
        with sublayers.skipping(skip):
            assert not torch.allclose(logits_of(model), whole)
    sublayers.remove()
    assert torch.equal(logits_of(model), whole)


def test_a_model_without_an_mlp_in_its_layers_is_refused() -> None:
    config = OPTConfig(
        hidden_size=16, ffn_dim=16, num_hidden_layers=2, num_attention_heads=2, **IDS
    )
    with pytest.raises(ValueError, match=r"an MLP .* got OPTForCausalLM"):
        SubLayers(OPTForCausalLM(config))


def test_skip_sets() -> None:
    assert SkipSet.uniform(0.4, 10) == SkipSet.of([2, 4, 6, 8], [2, 4, 6, 8])
    for share in (0.0, 0.1, 0.5, 0.9):
        skip = SkipSet.uniform(share, 10)
        assert len(skip.attention) == min(round(10 * share), 8)
        assert skip.attention == skip.mlp and not {0, 9} & skip.mlp
    assert SkipSet.exit_at(8, 10).attention == {8, 9}
    assert SkipSet.of([1], [1, 2]).share(3) == 0.5
    assert SkipSet.of([2, 1], []).to_dict() == {"attention": [1, 2], "mlp": []}
    with pytest.raises(ValueError, match=r"mlp layers in 0\.\.2, got \[3\]"):
        SkipSet.of([], [3]).check(3)
    with pytest.raises(ValueError, match="got all 3 left out"):
        SkipSet.of([0, 1, 2], []).check(3)
    with pytest.raises(ValueError, match=r"exit_layer in 1\.\.4, got 5"):
        SkipSet.exit_at(5, 4)
    with pytest.raises(ValueError, match=r"a share in \[0, 1\), got 1"):
        SkipSet.uniform(1, 4)


def target_of(model: PreTrainedModel, texts: list[list[int]]) -> tuple[TreeForward, TreeGrowth]:
    target = TreeForward(model)
    target.prefill([text[:-1] for text in texts])
    lent = TreeGrowth(model, target)
    lent.request_ids = list(range(len(texts)))
    return target, lent


@pytest.mark.parametrize("shape", ["chain", "tree", "drawn tree"])
def test_the_cache_is_as_it_was_after_each_draft(shape: str) -> None:
    model = deep_llama()
    texts = [[1, 2, 3, 4], [5, 6], [7, 8, 9]]
    target, lent = target_of(model, texts)
    drafter = layer_skipper(shape)
    for row, text in enumerate(texts):
        drafter.start(row, text)
    drafter.lend_target([0, 1, 2], lent)
    rng = random.Random(shape)
    for _ in range(6):
        before = cached_states(target.cache)
        asked = rng.sample(range(3), rng.randint(1, 3))
        trees = drafter.propose(asked, 12, 4)
        assert all(tree.num_nodes for tree in trees)
        assert all(map(torch.equal, cached_states(target.cache), before))
        # plain decoding goes on, one token a row
        roots = [text[-1] for text in texts]
        logits = target.forward([tree.cut(0) for tree in [trees[0]] * 3], roots)
        target.commit([[], [], []])
        for row, token in enumerate(logits[:, 0].argmax(-1).tolist()):
            texts[row].append(token)
            drafter.extend(row, [token])
    for row in range(3):
        drafter.stop(row)
    assert "forward" not in model.model.layers[0].__dict__


def test_the_draft_runs_on_the_targets_own_states() -> None:
    """Of a chain, the first token is what the rest says on the whole model's keys and values."""
    model = deep_llama()
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    _, lent = target_of(model, [text])
    skip = SkipSet.of([1, 2], [2, 3])
    drafter = layer_skipper("chain", skip)
    drafter.start(0, text)
    drafter.lend_target([0], lent)
    drafter.propose([0], 1, 1)  # the first one shows what the sub-layers' answers look like
    (tree,) = drafter.propose([0], 1, 1)
    with torch.no_grad():
        cache = model(torch.tensor([text[:-1]]), use_cache=True).cache
        sublayers = SubLayers(model)
        sublayers.install()
        with sublayers.skipping(skip):
            logits = model(
                torch.tensor([[text[-1]]]),
                cache=cache,
                attention_mask=torch.zeros(1, 1, 1, len(text), dtype=torch.float64),
                position_ids=torch.tensor([[len(text) - 1]]),
            ).logits
        sublayers.remove()
    assert tree.token_ids.tolist() == [int(logits[0, -1].argmax())]
    drafter.stop(0)


def test_without_a_target_nothing_is_proposed() -> None:
    drafter = LayerSkipDrafter()
    drafter.start("a", [1, 2, 3])
    assert drafter.propose(["a", "unknown"], 4, 4)[0].num_nodes == 0
    drafter.extend("unknown", [1])
    drafter.truncate("unknown", 0)
    drafter.stop("unknown")
    assert drafter.speedup is None and drafter.skip is None


def test_the_default_leaves_out_three_layers_in_ten_once_it_knows_how_many_there_are() -> None:
    drafter = LayerSkipDrafter(LayerSkipConfig(draft=draft_config("chain")))
    _, lent = target_of(deep_llama(), [[1, 2, 3]])
    drafter.start(0, [1, 2, 3])
    drafter.lend_target([0], lent)
    assert drafter.skip == SkipSet.uniform(0.3, 5)
    drafter.truncate(0, 1)  # behind what the target's cache holds: the drafter waits
    assert drafter.propose([0], 4, 4)[0].num_nodes == 0
    drafter.stop(0)


def test_a_set_of_another_model_is_refused() -> None:
    drafter = layer_skipper("chain", SkipSet.of([7], []))
    _, lent = target_of(deep_llama(), [[1, 2, 3]])
    with pytest.raises(ValueError, match=r"attention layers in 0\.\.4, got \[7\]"):
        drafter.lend_target([0], lent)
    drafter.lend_target([], lent)  # for nobody: nothing to take
    assert "forward" not in lent.model.model.layers[0].__dict__


COSTS = SubLayerCosts(0.08, 0.1, 5)


def test_predicted_speedup_weighs_length_and_cost() -> None:
    assert COSTS.draft_cost(SkipSet.of([1, 2], [3])) == pytest.approx(1 - 0.16 - 0.1)
    assert expected_tokens(0.5, 2) == 1.75
    speedup, depth = predicted_speedup(0.8, 0.5, [1.0, 1.1, 1.2])
    assert depth == 1 and speedup == pytest.approx(1.8 / 1.6)
    assert predicted_speedup(0.99, 0.01, [1.0] * 6)[1] == 5
    assert predicted_speedup(0.0, 0.5, [1.0, 1.0])[0] == pytest.approx(1 / 1.5)
    with pytest.raises(ValueError, match="steps with 0 and 1 nodes, got 1"):
        predicted_speedup(0.5, 0.5, [1.0])
    with pytest.raises(ValueError, match=r"at most the whole forward, got 1\.5 of it"):
        SubLayerCosts(0.2, 0.1, 5)
    with pytest.raises(ValueError, match="times >= 0"):
        SubLayerCosts(-0.2, 0.1, 5)
    with pytest.raises(ValueError, match="costs beside refine_every"):
        LayerSkipConfig(refine_every=4)
    with pytest.raises(ValueError, match="refine_every >= 0"):
        LayerSkipConfig(refine_every=-4)


def test_changes_are_small_and_leave_an_attention() -> None:
    rng = random.Random(0)
    skip = SkipSet.of([0, 1, 2, 3], [])
    for _ in range(300):
        new = changed(skip, 5, rng)
        moved = len(skip.attention ^ new.attention) + len(skip.mlp ^ new.mlp)
        assert 1 <= moved <= 2 and new.size
        new.check(5)
        skip = new


def test_refinement_finds_the_sublayers_that_lose_nothing() -> None:
    harmless = SkipSet.of([1, 3], [0, 2])
    refiner = SkipRefiner(SkipSet.of([0], [1]), COSTS, every=4, seed=1)

    def agreement(skip: SkipSet) -> tuple[int, int]:
        harm = len(skip.attention - harmless.attention) + len(skip.mlp - harmless.mlp)
        return round(100 * 0.3**harm), 100

    assert [refiner.count_draft() for _ in range(8)] == [False, False, False, True] * 2
    for _ in range(150):
        refiner.run_trial(agreement)
    assert refiner.skip == harmless and refiner.num_changes >= 4
    with pytest.raises(ValueError, match="every >= 1, got 0"):
        SkipRefiner(harmless, COSTS, every=0)


def test_the_drafter_refines_while_it_drafts() -> None:
    model = deep_llama()
    with torch.no_grad():  # these two say nothing, so that to leave them out is free
        model.model.layers[2].mlp.down_proj.weight.zero_()
        model.model.layers[4].self_attn.o_proj.weight.zero_()
    rng = random.Random(3)
    text = [rng.randrange(1, VOCAB_SIZE) for _ in range(40)]
    target, lent = target_of(model, [text])
    config = LayerSkipConfig(SkipSet.of([0], []), draft_config("chain"), COSTS, refine_every=1)
    drafter = LayerSkipDrafter(config)
    drafter.start(0, text)
    drafter.lend_target([0], lent)
    for _ in range(120):
        before = cached_states(target.cache)
        (tree,) = drafter.propose([0], 1, 1)
        assert all(map(torch.equal, cached_states(target.cache), before))
        logits = target.forward([tree.cut(0)], [text[-1]])
        target.commit([[]])
        text.append(int(logits[0, 0].argmax()))
        drafter.extend(0, text[-1:])
    drafter.stop(0)
    assert drafter.skip is not None and 0 not in drafter.skip.attention
    assert 2 in drafter.skip.mlp and 4 in drafter.skip.attention


def test_layers_are_those_of_the_decoder_also_beside_a_longer_encoder() -> None:
    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = deep_llama(7)
            self.language_model = deep_llama(3)

        def get_decoder(self) -> nn.Module:
            return self.language_model

    assert SubLayers(Twin()).num_layers == 3
