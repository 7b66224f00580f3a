"""Candidates of an engine's own drafter: EAGLE, Medusa, multi-token prediction."""

from .drafter import ExternalDrafter
from .heads import tree_from_heads

__all__ = ["ExternalDrafter", "tree_from_heads"]
