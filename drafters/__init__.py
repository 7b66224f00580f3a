"""Sources of candidate trees. They know no engine and no model, only token ids."""

from .base import (
    DEFAULT_NAMESPACE,
    Drafter,
    ExtendsInBatches,
    Feedback,
    RequestId,
    SendsProbes,
    TakesPrediction,
    TakesVocabSize,
    UsesTarget,
    WantsTopIds,
)
from .catalog import DEFAULT_DRAFTER, DRAFTER_NAMES, NO_DRAFTER, create_drafter
from .tree import ROOT, CandidateTree

__all__ = [
    "DEFAULT_DRAFTER",
    "DEFAULT_NAMESPACE",
    "DRAFTER_NAMES",
    "NO_DRAFTER",
    "ROOT",
    "CandidateTree",
    "Drafter",
    "ExtendsInBatches",
    "Feedback",
    "RequestId",
    "SendsProbes",
    "TakesPrediction",
    "TakesVocabSize",
    "UsesTarget",
    "WantsTopIds",
    "create_drafter",
]
