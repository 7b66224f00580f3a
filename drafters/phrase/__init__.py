"""Known phrases, templates and predictions, found by Aho-Corasick."""

from .drafter import PhraseConfig, PhraseDrafter

__all__ = ["PhraseConfig", "PhraseDrafter"]
