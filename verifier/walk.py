"""The lossless walk: follow the target's own tokens down a candidate tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..drafters import ROOT, CandidateTree


@dataclass(frozen=True, slots=True)
class WalkResult:
    """What one walk emitted.

    Attributes:
        token_ids: the emitted tokens; all but the last are accepted drafts, unless the walk was
            stopped at an accepted one.
        accepted: indices of the accepted nodes, from the root's child down.
    """

    token_ids: list[int]
    accepted: list[int]


def walk(
    tree: CandidateTree,
    choose: Callable[[int], int],
    emit: Callable[[int, int], bool],
) -> WalkResult:
    """Emit what the target would have emitted, as far as the tree holds it.

    From the root, ask the target for its token; step to the child that holds it; where there is
    none, that token is the recovered token (or the bonus token after a leaf) and the walk ends. The
    target is asked once for each emitted token, in order, with its own history, so processors that
    keep state see exactly the calls of plain decoding. For a tree that was fixed before the
    target's choice, no acceptance rule emits more.

    Args:
        tree: candidates without ``draft_probs``.
        choose: given a node (-1 for the root), the target's token after it.
        emit: given a token and the node that was its source, commits the token and says whether to
            go on; ``False`` (end of sequence, a cap) ends the walk after it.

    Source: arXiv:2305.09781 (token-tree verification), for a point-mass draft.
    """
    children = tree.children()
    token_ids: list[int] = []
    accepted: list[int] = []
    node = ROOT
    while True:
        token = choose(node)
        child = children.get(node, {}).get(token)
        token_ids.append(token)
        if child is not None:
            accepted.append(child)
        if not emit(token, node) or child is None:
            return WalkResult(token_ids, accepted)
        node = child
