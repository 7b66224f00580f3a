"""Alignment of the output with the text that it edits."""

from .drafter import EditConfig, EditDrafter

__all__ = ["EditConfig", "EditDrafter"]
