"""A drawn tree and a chosen one under the same root."""

from __future__ import annotations

import numpy as np

from ..tree import ROOT, CandidateTree


def join_chosen(drawn: CandidateTree, chosen: CandidateTree, max_nodes: int) -> CandidateTree:
    """Return the whole drawn tree, with what else was chosen behind it as far as there is room.

    Drawn nodes are never dropped, nor do they change places, for that would bias the output. The
    chosen ones come after their drawn siblings, as point masses (rows of zeros), and only where no
    node holds their path.

    Args:
        drawn: with ``draft_probs``, at most ``max_nodes`` nodes.
        chosen: without ``draft_probs``; the most probable nodes first, parents before children.
        max_nodes: most nodes of the result.
    """
    assert drawn.draft_probs is not None and drawn.num_nodes <= max_nodes
    tokens, parents = drawn.token_ids.tolist(), drawn.parents.tolist()
    probs = drawn.probs.tolist()
    node_of: dict[tuple[int, int], int] = {}
    for drawn_node, edge in enumerate(zip(parents, tokens, strict=True)):
        node_of.setdefault(edge, drawn_node)
    placed: list[int | None] = []
    for token, parent, prob in zip(
        chosen.token_ids.tolist(), chosen.parents.tolist(), chosen.probs.tolist(), strict=True
    ):
        above = ROOT if parent == ROOT else placed[parent]
        node = None if above is None else node_of.get((above, token))
        if node is None and above is not None and len(tokens) < max_nodes:
            node = node_of[above, token] = len(tokens)
            tokens.append(token)
            parents.append(above)
            probs.append(prob if above == ROOT else min(prob, probs[above]))
        placed.append(node)
    num_chosen = len(tokens) - drawn.num_nodes
    none_drawn = np.zeros((num_chosen, drawn.draft_probs.shape[1]), np.float32)
    return CandidateTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(probs, np.float32),
        np.concatenate((drawn.draft_probs, none_drawn)),
    )
