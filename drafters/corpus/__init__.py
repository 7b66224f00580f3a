"""Retrieval from a memory-mapped suffix array over a corpus."""

from .drafter import CorpusConfig, CorpusDrafter

__all__ = ["CorpusConfig", "CorpusDrafter"]
