"""Suffix automata with exact counts, per request and shared per namespace."""

from .drafter import SuffixDrafter
from .store import SuffixConfig

__all__ = ["SuffixConfig", "SuffixDrafter"]
