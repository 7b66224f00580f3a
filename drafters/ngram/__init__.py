"""Continuations of the earlier places where the text's last tokens stood."""

from .config import NgramConfig
from .drafter import NgramDrafter

__all__ = ["NgramConfig", "NgramDrafter"]
