"""Finds which sub-layers of a model to leave out for drafting, on the user's own texts.

A set's acceptance is measured where it counts: one forward gives, for every scored place of a text,
the token that the model without the set's sub-layers proposes there as a draft's first one (on the
whole model's cached states), which is compared with the whole model's choice. Its cost follows from
the measured times of the sub-layers. The search begins with sets at equal distances and with the
sub-layers in the order of what each alone loses, then climbs by small random changes.

Source: the random search of SWIFT (arXiv:2410.06916) and the Bayesian one of Draft & Verify
(arXiv:2309.08168) have the same goal and objective.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..drafters.layer_skip.objective import SubLayerCosts, predicted_speedup
from ..drafters.layer_skip.refinement import changed
from ..drafters.layer_skip.sublayers import SkipSet, SubLayers
from ..verifier import TreeForward
from ..verifier.tree_growth import TreeGrowth

Progress = Callable[[float], None]
"""Called with the share of the time that has passed."""

_UNIFORM_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
_UNIFORM_ATTENTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text of the search.

    Attributes:
        token_ids: at least two tokens.
        num_scored: how many of the last tokens are places at which sets are compared.
    """

    token_ids: Sequence[int]
    num_scored: int

    def __post_init__(self) -> None:
        """Check the text.

        Raises:
            ValueError: too short, or nothing to score.
        """
        if not 1 <= self.num_scored < len(self.token_ids):
            raise ValueError(
                f"expected a text longer than its scored part of at least 1 token, got "
                f"{len(self.token_ids)} tokens, {self.num_scored} of them scored"
            )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A skip set and what it is worth.

    Attributes:
        skip: the set.
        acceptance: share of the scored places at which it proposes the model's own choice.
        draft_cost: time of its forward over that of the whole model.
        speedup: predicted, with the best length of a chain.
        depth: that length.
    """

    skip: SkipSet
    acceptance: float
    draft_cost: float
    speedup: float
    depth: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search has found.

    Attributes:
        best: the best set.
        uniform: the best of the sets at equal distances.
        num_trials: sets that were scored.
        seconds: wall time of the search, the texts' preparation included.
        curve: ``(seconds, speedup)`` at each improvement.
    """

    best: Candidate
    uniform: Candidate
    num_trials: int
    seconds: float
    curve: tuple[tuple[float, float], ...]


class AcceptanceMeter:
    """Measures on fixed texts how often a set proposes the model's own choice."""

    def __init__(self, model: PreTrainedModel, texts: Sequence[ScoredText]) -> None:
        """Run the whole model on the texts once and keep its states.

        Args:
            model: the target, in evaluation mode.
            texts: at least one.

        Raises:
            ValueError: no text, or a model that has no sub-layers to leave out.
        """
        if not texts:
            raise ValueError("expected at least one text, got none")
        self.sublayers = SubLayers(model)
        self._runs: list[tuple[TreeGrowth, list[int], torch.Tensor]] = []
        self._known: dict[SkipSet, float] = {}  # several searches may share the meter
        self.sublayers.install()  # the whole forwards show what sub-layers answer
        try:
            for text in texts:
                runner = TreeGrowth(model, TreeForward(model))
                runner.prefill([text.token_ids])
                scored = list(text.token_ids[-text.num_scored :])
                self._runs.append((runner, scored, runner.rescore([scored])[0].argmax(-1)))
        finally:
            self.sublayers.remove()

    def acceptance(self, skip: SkipSet) -> float:
        """Return the share of the scored places at which ``skip`` proposes the model's choice."""
        if skip not in self._known:
            self._known[skip] = self._measure(skip)
        return self._known[skip]

    def _measure(self, skip: SkipSet) -> float:
        right = places = 0
        self.sublayers.install()
        try:
            with self.sublayers.skipping(skip):
                for runner, scored, wanted in self._runs:
                    choices = runner.rescore([scored])[0].argmax(-1)
                    right += int((choices == wanted).sum())
                    places += len(scored)
        finally:
            self.sublayers.remove()
        return right / places


def search_skip_set(
    meter: AcceptanceMeter,
    costs: SubLayerCosts,
    step_costs: Sequence[float],
    *,
    max_seconds: float,
    seed: int = 0,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> SearchResult:
    """Return the set of the largest predicted speed-up that is found in the given time.

    Args:
        meter: the model and the texts.
        costs: times of the sub-layers.
        step_costs: entry n is the time of a step that verifies n nodes over that of a plain step.
        max_seconds: the sets at equal distances and each sub-layer alone are scored in any case.
        seed: of the random changes.
        progress: told how far the search is.
        clock: seconds.
    """
    begin = clock()
    num_layers = meter.sublayers.num_layers
    rng = random.Random(seed)
    scored: dict[SkipSet, Candidate] = {}
    curve: list[tuple[float, float]] = []

    def score(skip: SkipSet) -> Candidate:
        if skip not in scored:
            acceptance, cost = meter.acceptance(skip), costs.draft_cost(skip)
            scored[skip] = Candidate(
                skip, acceptance, cost, *predicted_speedup(acceptance, cost, step_costs)
            )
            seconds = clock() - begin
            if not curve or scored[skip].speedup > curve[-1][1]:
                curve.append((seconds, scored[skip].speedup))
            if progress is not None:
                progress(min(seconds / max_seconds, 1.0) if max_seconds else 1.0)
        return scored[skip]

    uniform = max(map(score, uniform_sets(num_layers)), key=lambda c: c.speedup)
    best = uniform
    for skip in _by_single_loss(num_layers, score, costs):
        if clock() - begin > max_seconds:
            break
        best = max(best, score(skip), key=lambda c: c.speedup)
    # Models of a few layers have fewer sets than there is time for.
    while clock() - begin < max_seconds and len(scored) < 4**num_layers // 2:
        skip = changed(best.skip, num_layers, rng)
        if rng.random() < 0.3:  # out of a place that no single change leaves
            skip = changed(skip, num_layers, rng)
        best = max(best, score(skip), key=lambda c: c.speedup)
    return SearchResult(best, uniform, len(scored), clock() - begin, tuple(curve))


def uniform_sets(num_layers: int) -> list[SkipSet]:
    """Return the sets that leave out layers, or attentions only, at equal distances."""
    sets = [SkipSet.uniform(share, num_layers) for share in _UNIFORM_SHARES]
    attentions = (SkipSet.uniform(share, num_layers).attention for share in _UNIFORM_ATTENTIONS)
    sets.extend(SkipSet(layers, frozenset()) for layers in attentions)
    middle = SkipSet.of([], [num_layers // 2])  # all there is in a model of two layers
    return [skip for skip in dict.fromkeys(sets) if skip.size] or [middle]


def _by_single_loss(
    num_layers: int, score: Callable[[SkipSet], Candidate], costs: SubLayerCosts
) -> Iterator[SkipSet]:
    """Yield growing sets, the sub-layers first that lose the least for the time they save."""
    singles = [SkipSet.of([layer], []) for layer in range(num_layers)]
    singles += [SkipSet.of([], [layer]) for layer in range(num_layers)]

    def loss(skip: SkipSet) -> float:
        saved = 1 - costs.draft_cost(skip)
        return (1 - score(skip).acceptance) / saved if saved > 0 else float("inf")

    singles = [skip for skip in singles if num_layers > 1 or not skip.attention]
    grown = SkipSet.of([], [])
    for single in sorted(singles, key=loss):
        grown = SkipSet(grown.attention | single.attention, grown.mlp | single.mlp)
        if len(grown.attention) == num_layers:
            return
        yield grown
