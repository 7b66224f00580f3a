"""Continuations of the earlier places where the text's last tokens stood."""

from .drafter import NgramConfig, NgramDrafter

__all__ = ["NgramConfig", "NgramDrafter"]
