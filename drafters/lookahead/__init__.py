"""Look-ahead: n-grams from Jacobi iterations that ride along with verification."""

from .drafter import LookaheadConfig, LookaheadDrafter

__all__ = ["LookaheadConfig", "LookaheadDrafter"]
