"""Settings that every drafter which runs a model has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelDraftConfig:
    """How a model drafts: the shape of its trees, its own sampling, when it stops.

    Attributes:
        max_depth: most forwards of a draft, and so its deepest node.
        width: nodes that are run in a forward, the most probable ones; 1 drafts a chain.
        branches: children that each of them gets.
        temperature: 0 takes the most likely tokens, and the target walks down the tree; above 0
            tokens are drawn at this temperature, and the drafts carry their distribution q.
        top_k: with a temperature, draw from so many tokens only; 0 for all.
        top_p: with a temperature, draw from the most likely tokens of that total probability.
        seed: of the draws.
        confidence: what the draft's highest probability must reach for the draft to go on, at
            first; 0 never stops.
        target_acceptance: the confidence asked for rises while a smaller share of the drafted
            paths than this comes true, and falls while a larger one does.
        gate: draft only while that is measured to be faster than not to.
    """

    max_depth: int = 6
    width: int = 1
    branches: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    confidence: float = 0.4
    target_acceptance: float = 0.85
    gate: bool = True

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        for name in ("max_depth", "width", "branches"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"expected seed >= 0, got {self.seed}")
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                f"expected temperature >= 0, top_k >= 0 and top_p in (0, 1], got "
                f"{self.temperature}, {self.top_k} and {self.top_p}"
            )
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise ValueError("expected a temperature above 0 beside top_k or top_p, got 0")
        if not 0 <= self.confidence < 1 or not 0 < self.target_acceptance < 1:
            raise ValueError(
                f"expected confidence in [0, 1) and target_acceptance in (0, 1), got "
                f"{self.confidence} and {self.target_acceptance}"
            )
