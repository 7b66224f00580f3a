"""Several drafters' trees merged under one budget."""

from .drafter import BlendConfig, BlendDrafter

__all__ = ["BlendConfig", "BlendDrafter"]
