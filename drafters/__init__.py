"""Sources of candidate trees. They know no engine and no model, only token ids."""

from .base import DEFAULT_NAMESPACE, Drafter, Feedback, RequestId
from .tree import ROOT, CandidateTree

__all__ = [
    "DEFAULT_NAMESPACE",
    "ROOT",
    "CandidateTree",
    "Drafter",
    "Feedback",
    "RequestId",
]
