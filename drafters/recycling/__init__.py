"""Recycled top-k successors of tokens: drafts where nothing repeats."""

from .drafter import RecyclingConfig, RecyclingDrafter

__all__ = ["RecyclingConfig", "RecyclingDrafter"]
