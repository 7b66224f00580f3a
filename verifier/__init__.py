"""Trees in, accepted tokens out: masks, positions, the lossless walk and the cache."""

from .noise import NoiseKey
from .sampling import choose_token
from .tree_forward import TreeForward
from .walk import WalkResult, walk

__all__ = [
    "NoiseKey",
    "TreeForward",
    "WalkResult",
    "choose_token",
    "walk",
]
