"""A second, smaller language model that drafts."""

from .drafter import DraftModelDrafter
from .vocabulary import VocabularyMap

__all__ = ["DraftModelDrafter", "VocabularyMap"]
