"""The kernel of a step: places are found and weighed, and a tree is grown, request by request.

It calls kernels of other files, so that a step is one call from Python: a call costs as much as a
search. Numba's cache does not see changes in other files; ``compile_once`` looks after that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .._jit import compile_once, kernel, u
from . import _place_kernels as placer
from . import _search_kernels as finder
from . import _tree_kernels as grower
from ._place_kernels import weigh_places
from ._pool_kernels import NONE, FloatArray, IntArray
from ._search_kernels import find_places
from ._tree_kernels import grow_tree

SingleArray = npt.NDArray[np.float32]
Draft = Callable[[IntArray, FloatArray, IntArray, int, int, int, IntArray, SingleArray], None]


@kernel
def draft(
    arena: IntArray,
    floats: FloatArray,
    batch: IntArray,
    max_nodes: int,
    max_depth: int,
    first: int,
    nodes: IntArray,
    probs: SingleArray,
) -> None:
    """Draft a tree for each request of a batch.

    Args:
        arena: the pool; the rows' places and pointers are overwritten. The rows keep the draft
            until the committed tokens come.
        floats: as ``_weights`` lays them out; the places' weights are overwritten.
        batch: ``(num_requests,)`` int32, the requests' rows, or -1.
        max_nodes: most nodes of a tree.
        max_depth: the deepest level of the trees.
        first: which row of ``nodes`` and ``probs`` the first tree gets.
        nodes: ``(num_rows, 1 + 2 * room)`` int32, overwritten (``TreeBatch``).
        probs: ``(num_rows, room)`` float32, overwritten: path probabilities.
    """
    for i in range(batch.size):
        row = int(batch[u(i)])
        if row == NONE:
            nodes[u(first + i), 0] = 0
            continue
        find_places(arena, row)
        weigh_places(arena, floats, row)
        grow_tree(arena, floats, row, max_nodes, max_depth, first + i, nodes, probs)


def compile_kernels() -> Draft:
    """Compile the kernel that Python calls, for its one signature, and return it."""
    for module in (finder, placer, grower):
        module.compile_kernels()
    arrays, ints = "int32[::1], float64[::1], int32[::1]", "int64, int64, int64"
    return compile_once(
        draft,
        f"void({arrays}, {ints}, int32[:,::1], float32[:,::1])",
        calls=(find_places, weigh_places, grow_tree),
    )
