"""What a skip set is worth: predicted tokens per target step's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .sublayers import SkipSet


@dataclass(frozen=True, slots=True)
class SubLayerCosts:
    """Times of a forward of one token, relative to that of the whole model.

    Attributes:
        attention: of one layer's attention.
        mlp: of one layer's MLP.
        num_layers: layers of the model.
    """

    attention: float
    mlp: float
    num_layers: int

    def __post_init__(self) -> None:
        """Check the times.

        Raises:
            ValueError: a negative time, or sub-layers that take more than the whole.
        """
        if min(self.attention, self.mlp) < 0 or self.num_layers < 1:
            raise ValueError(
                f"expected times >= 0 and num_layers >= 1, got {self.attention}, {self.mlp} and "
                f"{self.num_layers}"
            )
        if (self.attention + self.mlp) * self.num_layers > 1 + 1e-9:
            raise ValueError(
                f"expected sub-layers that take at most the whole forward, got "
                f"{(self.attention + self.mlp) * self.num_layers:.3g} of it"
            )

    def draft_cost(self, skip: SkipSet) -> float:
        """Return the time of a forward without the sub-layers of ``skip``."""
        return 1 - self.attention * len(skip.attention) - self.mlp * len(skip.mlp)


def expected_tokens(acceptance: float, depth: int) -> float:
    """Return the tokens that a step with a chain emits, the last one included.

    Args:
        acceptance: probability that a drafted token comes true, given those before it.
        depth: length of the chain.
    """
    return sum(acceptance**index for index in range(depth + 1))


def predicted_speedup(
    acceptance: float, draft_cost: float, step_costs: Sequence[float]
) -> tuple[float, int]:
    """Return the largest speed-up over the lengths of a chain, at least 1, and that length.

    Below 1 it does not pay to draft; sets are compared all the same.

    Args:
        acceptance: probability that a drafted token comes true, given those before it.
        draft_cost: time of one draft forward over that of a plain step.
        step_costs: entry n is the time of a step that verifies n nodes over that of a plain step;
            the longest chain has one node less than there are entries.

    Raises:
        ValueError: no entry for a chain.
    """
    if len(step_costs) < 2:
        raise ValueError(f"expected times of steps with 0 and 1 nodes, got {len(step_costs)}")
    return max(
        (expected_tokens(acceptance, depth) / (depth * draft_cost + step_costs[depth]), depth)
        for depth in range(1, len(step_costs))
    )
