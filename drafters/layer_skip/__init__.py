"""The target itself drafts, with some of its sub-layers left out."""

from .drafter import LayerSkipConfig, LayerSkipDrafter
from .sublayers import SkipSet

__all__ = ["LayerSkipConfig", "LayerSkipDrafter", "SkipSet"]
