"""Expected acceptance under sampling, from logged probabilities.

A fixed draft is accepted at a node with the probability that the target gives to its children. A
recorded response is one draw; where the log has the target's probabilities, the draw at each node
on the recorded path is replaced by its expectation. The sum over the nodes that the path reaches
has the same mean as the count of accepted nodes, and a smaller variance (Rao-Blackwell).

Logged are the probabilities of a few tokens only. A child that is not among them has at most what
the others leave, so there are two ends.
"""

from __future__ import annotations

from ...drafters.tree import ROOT, CandidateTree
from .requests import Alternatives
from .tally import Sampling


def expected_acceptance(
    tree: CandidateTree,
    path: list[int],
    alternatives: Alternatives,
    position: int,
    num_emitted: int,
    sampling: Sampling,
) -> None:
    """Add one step's expected accepted nodes.

    Args:
        tree: what was proposed.
        path: the accepted nodes.
        alternatives: the target's probabilities along the response.
        position: the response token that the step begins with.
        num_emitted: tokens that the step emitted; a node behind them was not asked.
        sampling: the sums, mutated.
    """
    children = tree.children()
    sampling.steps += 1
    sampling.accepted += len(path)
    for depth, node in enumerate([ROOT, *path][:num_emitted]):
        below = children.get(node)
        if below is None:
            break
        known = alternatives.row(position + depth)
        given = [known.get(token) for token in below]
        low = min(sum(prob for prob in given if prob is not None), 1.0)
        left = max(1.0 - sum(known.values()), 0.0)
        sampling.low += low
        sampling.high += min(low + left, 1.0) if None in given else low
