"""Refines a skip set while it drafts: small changes, tried on the text that was just emitted.

One forward scores a changed set on the last tokens of a request: each token is run without the
set's sub-layers on the target's own cached states before it, just as a draft's first token is.
What a set proposes there is compared with what the target has emitted; both sets of a comparison
see the same tokens.

Source: the on-line optimisation of SWIFT, arXiv:2410.06916, with its matchness on the context.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .objective import SubLayerCosts, predicted_speedup
from .sublayers import SkipSet

Agreement = Callable[[SkipSet], tuple[int, int]]
"""Of a set: tokens that it proposes rightly, and tokens that it was asked for."""

_FLAT_STEPS = (1.0,) * 8  # what a chain of up to 7 costs to verify where memory is the limit


def changed(skip: SkipSet, num_layers: int, rng: random.Random) -> SkipSet:
    """Return a set with one sub-layer more, one less, or one exchanged for another.

    Args:
        skip: not emptied by it, and never without any attention.
        num_layers: layers of the model.
        rng: the choice.
    """
    inside = [("attention", i) for i in skip.attention] + [("mlp", i) for i in skip.mlp]
    outside = [
        (kind, layer)
        for kind, left_out in (("attention", skip.attention), ("mlp", skip.mlp))
        for layer in range(num_layers)
        if layer not in left_out
    ]
    inside.sort()
    while True:
        chosen = set(inside)
        move = rng.choice(("more", "less", "exchange"))
        if move != "more" and inside:
            chosen.discard(rng.choice(inside))
        if move != "less" and outside:
            chosen.add(rng.choice(outside))
        new = SkipSet.of(
            [layer for kind, layer in chosen if kind == "attention"],
            [layer for kind, layer in chosen if kind == "mlp"],
        )
        if new.size and len(new.attention) < num_layers:
            return new


class SkipRefiner:
    """Climbs from a set to better ones, one trial at a time.

    Attributes:
        skip: the best set so far.
        num_changes: how often a changed set has taken over.
    """

    def __init__(self, skip: SkipSet, costs: SubLayerCosts, every: int, seed: int = 0) -> None:
        """Begin with a set.

        Args:
            skip: the set.
            costs: times of its sub-layers.
            every: drafts between two trials.
            seed: of the changes.

        Raises:
            ValueError: ``every`` is not positive.
        """
        if every < 1:
            raise ValueError(f"expected every >= 1, got {every}")
        self.skip = skip
        self.num_changes = 0
        self._costs = costs
        self._every = every
        self._rng = random.Random(seed)
        self._drafts = 0
        self._trial: SkipSet | None = None
        self._right: Sequence[int] = (0, 0)  # of the set and of the trial
        self._asked = 0

    def count_draft(self) -> bool:
        """Count one draft, and say whether a trial is due."""
        self._drafts += 1
        return self._drafts % self._every == 0

    def run_trial(self, agreement: Agreement, min_asked: int = 96) -> None:
        """Score the set and its change on what was emitted lately; exchange them if that is better.

        A change is judged once both were asked for enough tokens, over several calls.

        Args:
            agreement: how a set does on the latest tokens.
            min_asked: tokens before a change is judged.
        """
        if self._trial is None:
            self._trial = changed(self.skip, self._costs.num_layers, self._rng)
            self._right, self._asked = (0, 0), 0
        right, asked = agreement(self.skip)
        right_changed, _ = agreement(self._trial)
        self._right = (self._right[0] + right, self._right[1] + right_changed)
        self._asked += asked
        if self._asked < min_asked:
            return
        if self._worth(self._trial, self._right[1]) > self._worth(self.skip, self._right[0]):
            self.skip = self._trial
            self.num_changes += 1
        self._trial = None

    def _worth(self, skip: SkipSet, right: int) -> float:
        speedup, _ = predicted_speedup(
            right / self._asked, self._costs.draft_cost(skip), _FLAT_STEPS
        )
        return speedup
