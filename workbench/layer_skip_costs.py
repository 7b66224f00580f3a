"""Measures what a model's sub-layers and its steps take, for the search of a skip set."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..drafters.layer_skip.objective import SubLayerCosts
from ..drafters.layer_skip.sublayers import SkipSet, SubLayers
from ..drafters.model_drafting.runner import NewNodes
from ..verifier import TreeForward
from ..verifier.tree_growth import TreeGrowth


@dataclass(frozen=True, slots=True)
class LayerSkipTimes:
    """Measured times.

    Attributes:
        step_seconds: of a forward of one token.
        costs: of the sub-layers, relative to it.
        step_costs: entry n is the time of a forward of 1 + n tokens, relative to it; never falls.
    """

    step_seconds: float
    costs: SubLayerCosts
    step_costs: tuple[float, ...]


def measure_times(
    model: PreTrainedModel,
    context: Sequence[int],
    *,
    max_nodes: int = 8,
    rounds: int = 9,
    clock: Callable[[], float] = time.perf_counter,
) -> LayerSkipTimes:
    """Time forwards on a context, all kinds in turn each round, and take medians.

    Args:
        model: the target, in evaluation mode.
        context: token ids that stand in the cache.
        max_nodes: most nodes of a step.
        rounds: forwards of each kind, after one that is not counted.
        clock: seconds.
    """
    sublayers = SubLayers(model)
    runner = TreeGrowth(model, TreeForward(model, None, len(context) + max_nodes + 1))
    inner = range(1, sublayers.num_layers)  # one attention is always run
    kinds: dict[str, tuple[SkipSet, int]] = {
        "attention": (SkipSet.of(inner, []), 1),
        "mlp": (SkipSet.of([], inner), 1),
        **{f"{width}": (SkipSet.of([], []), width) for width in range(1, max_nodes + 2)},
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    sublayers.install()
    try:
        runner.prefill([context])
        for number in range(rounds + 1):
            for kind, (skip, width) in kinds.items():
                nodes = NewNodes([context[-1]] * width, range(-1, width - 1))
                with sublayers.skipping(skip):
                    begin = clock()
                    runner.grow([nodes])
                    runner.keep([[]])
                    taken = clock() - begin
                if number:
                    seconds[kind].append(taken)
    finally:
        sublayers.remove()
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    whole = medians["1"]
    count = max(len(inner), 1)
    attention = max(whole - medians["attention"], 0.0) / count / whole
    mlp = max(whole - medians["mlp"], 0.0) / count / whole
    # Two medians of a noisy machine may save more than there is.
    excess = max((attention + mlp) * sublayers.num_layers, 1.0)
    step_costs = [1.0]
    for width in range(2, max_nodes + 2):
        step_costs.append(max(step_costs[-1], medians[f"{width}"] / whole))
    costs = SubLayerCosts(attention / excess, mlp / excess, sublayers.num_layers)
    return LayerSkipTimes(whole, costs, tuple(step_costs))
