"""Drafts that are sampled from distributions behind n-grams."""

from .drafter import StochasticNgramConfig, StochasticNgramDrafter

__all__ = ["StochasticNgramConfig", "StochasticNgramDrafter"]
