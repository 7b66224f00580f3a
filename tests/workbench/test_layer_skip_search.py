"""The search for sub-layers that a draft can do without."""

from __future__ import annotations

import itertools

import pytest
import torch
from model_drafter_helpers import deep_llama

from freedraft.drafters.layer_skip import SkipSet
from freedraft.drafters.layer_skip.objective import SubLayerCosts, predicted_speedup
from freedraft.drafters.layer_skip.sublayers import SubLayers
from freedraft.workbench.layer_skip_costs import measure_times
from freedraft.workbench.layer_skip_search import (
    AcceptanceMeter,
    ScoredText,
    search_skip_set,
    uniform_sets,
)

TEXT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 5, 6, 7]
COSTS = SubLayerCosts(0.1, 0.08, 5)
FLAT = (1.0,) * 6


def slow_acceptance(model: object, skip: SkipSet, text: list[int], num_scored: int) -> float:
    """One place after another: the whole model's states, then one token with layers left out."""
    right = 0
    sublayers = SubLayers(model)  # type: ignore[arg-type]
    sublayers.install()
    for place in range(len(text) - num_scored, len(text)):
        with torch.no_grad():
            wanted = model(torch.tensor([text[: place + 1]])).logits[0, -1].argmax()  # type: ignore[operator]
            cache = None
            if place:
                cache = model(torch.tensor([text[:place]]), use_cache=True).cache  # type: ignore[operator]
            with sublayers.skipping(skip):
                logits = model(  # type: ignore[operator]
                    torch.tensor([[text[place]]]),
                    cache=cache,
                    attention_mask=torch.zeros(1, 1, 1, place + 1, dtype=torch.float64),
                    position_ids=torch.tensor([[place]]),
                ).logits
        right += int(logits[0, -1].argmax() == wanted)
    sublayers.remove()
    return right / num_scored


def test_acceptance_is_that_of_first_drafted_tokens() -> None:
    model = deep_llama()
    meter = AcceptanceMeter(model, [ScoredText(TEXT, 9), ScoredText(TEXT[:6], 3)])
    for skip in (SkipSet.of([2], [1]), SkipSet.of([], [3, 4]), SkipSet.of([1, 2], [1, 2])):
        wanted = 9 * slow_acceptance(model, skip, TEXT, 9)
        wanted += 3 * slow_acceptance(model, skip, TEXT[:6], 3)
        assert meter.acceptance(skip) == pytest.approx(wanted / 12)
    assert meter.acceptance(SkipSet.of([], [])) == 1
    assert "forward" not in model.model.layers[0].__dict__


def test_the_search_finds_the_sublayers_that_say_nothing() -> None:
    model = deep_llama()
    harmless = SkipSet.of([1, 4], [0, 2])
    with torch.no_grad():
        for layer in harmless.attention:
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
        for layer in harmless.mlp:
            model.model.layers[layer].mlp.down_proj.weight.zero_()
    meter = AcceptanceMeter(model, [ScoredText(TEXT, 11)])
    ticks = itertools.count()
    shares: list[float] = []
    result = search_skip_set(
        meter, COSTS, FLAT, max_seconds=120, progress=shares.append, clock=lambda: next(ticks)
    )
    assert harmless.attention <= result.best.skip.attention
    assert harmless.mlp <= result.best.skip.mlp
    assert result.best.acceptance == 1 or result.best.skip.size > harmless.size
    assert result.best.speedup >= predicted_speedup(1.0, COSTS.draft_cost(harmless), FLAT)[0]
    assert result.best.speedup > result.uniform.speedup
    assert result.num_trials == len(shares) and shares == sorted(shares) and shares[-1] <= 1
    assert [speedup for _, speedup in result.curve] == sorted(s for _, s in result.curve)


def test_without_time_the_sets_at_equal_distances_are_compared_all_the_same() -> None:
    meter = AcceptanceMeter(deep_llama(), [ScoredText(TEXT, 4)])
    result = search_skip_set(meter, COSTS, FLAT, max_seconds=0)
    assert result.num_trials >= len(uniform_sets(5))
    assert result.best.speedup >= result.uniform.speedup


@pytest.mark.parametrize("num_layers", [1, 2, 3, 30])
def test_sets_at_equal_distances(num_layers: int) -> None:
    sets = uniform_sets(num_layers)
    assert sets and len(set(sets)) == len(sets)
    for skip in sets:
        skip.check(num_layers)
        assert skip.size


def test_times_are_relative_to_a_step_of_one_token() -> None:
    """By a clock that counts sub-layers: an attention takes 2, an MLP 3, the rest 5."""
    model = deep_llama()
    now = [0.0]

    def takes(seconds: float):  # type: ignore[no-untyped-def]
        def tick(module: object, inputs: object, output: object) -> None:
            now[0] += seconds

        return tick

    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(takes(2.0))
        layer.mlp.down_proj.register_forward_hook(takes(3.0))
    model.lm_head.register_forward_hook(takes(5.0))
    times = measure_times(model, TEXT, max_nodes=3, rounds=3, clock=lambda: now[0])
    assert times.step_seconds == 30
    assert times.costs.attention == pytest.approx(2 / 30)
    assert times.costs.mlp == pytest.approx(3 / 30)
    assert times.step_costs == (1.0, 1.0, 1.0, 1.0)
    assert "forward" not in model.model.layers[0].__dict__


def test_texts_are_checked() -> None:
    with pytest.raises(ValueError, match="longer than its scored part of at least 1 token"):
        ScoredText([1, 2], 2)
    with pytest.raises(ValueError, match="at least one text, got none"):
        AcceptanceMeter(deep_llama(), [])
