"""Trees in, accepted tokens out: masks, positions, the lossless walk and the cache."""

from .grammar import GrammarState, IllegalTokenError
from .noise import NoiseKey
from .reasoning_grammar import GrammarAfter
from .sampling import choose_token
from .target import Target, open_target
from .tree_forward import TreeForward
from .walk import WalkResult, walk

__all__ = [
    "GrammarAfter",
    "GrammarState",
    "IllegalTokenError",
    "NoiseKey",
    "Target",
    "TreeForward",
    "WalkResult",
    "choose_token",
    "open_target",
    "walk",
]
