"""Trees in, accepted tokens out: masks, positions, the lossless walk and the cache."""

from .budget import NodeBudget, StepCosts, choose_num_nodes
from .noise import NoiseKey
from .sampling import choose_token
from .tree_forward import TreeForward
from .walk import WalkResult, walk

__all__ = [
    "NodeBudget",
    "NoiseKey",
    "StepCosts",
    "TreeForward",
    "WalkResult",
    "choose_num_nodes",
    "choose_token",
    "walk",
]
