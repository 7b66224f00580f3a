"""What drafters that run a model share: growing trees, own sampling, when to stop, whether to."""

from .config import ModelDraftConfig
from .runner import NO_NODES, NewNodes, TreeRunner

__all__ = ["NO_NODES", "ModelDraftConfig", "NewNodes", "TreeRunner"]
