"""Slow, plain versions of what the fast code computes."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

Path = tuple[int, ...]


def tree_paths(token_ids: Sequence[int], parents: Sequence[int]) -> list[Path]:
    """Return each node's path of token ids from the root down."""
    paths: list[Path] = []
    for token, parent in zip(token_ids, parents, strict=True):
        paths.append((paths[parent] if parent >= 0 else ()) + (token,))
    return paths


def best_subset(probs: Sequence[float], parents: Sequence[int], size: int) -> float:
    """Return the largest sum of probabilities of a connected subset of at most ``size`` nodes."""
    best = 0.0
    for bits in range(1 << len(probs)):
        nodes = [node for node in range(len(probs)) if bits >> node & 1]
        if len(nodes) <= size and all(parents[n] < 0 or bits >> parents[n] & 1 for n in nodes):
            best = max(best, sum(probs[node] for node in nodes))
    return best


def accepted_path(
    token_ids: Sequence[int], parents: Sequence[int], target: Sequence[int]
) -> list[int]:
    """Return the nodes of the longest path that equals the beginning of ``target``."""
    best: list[int] = []
    for node in range(len(token_ids)):
        path = []
        walker = node
        while walker >= 0:
            path.append(walker)
            walker = parents[walker]
        path.reverse()
        tokens = [token_ids[index] for index in path]
        if tokens == list(target[: len(tokens)]) and len(path) > len(best):
            best = path
    return best


def pooled_paths(sources: list[dict[Path, float]]) -> dict[Path, float]:
    """The blend's path probabilities, from those of its sources."""

    def odds(share: float) -> float:
        share = min(max(share, 0.001), 0.999)
        return share / (1 - share)

    sources = [source for source in sources if source]
    pooled: dict[Path, float] = {(): 1.0}
    for path in sorted({path for source in sources for path in source}, key=len):
        above = path[:-1]
        knowing = [source for source in sources if not above or above in source]
        saying = [source[path] / source.get(above, 1.0) for source in sources if path in source]
        tops = [max(source.get(p, 0.0) for source in sources) for p in (path, above)]
        share = tops[0] / (tops[1] if above else 1.0)
        if len(knowing) > 1:
            mean = sum(log(odds(said)) for said in saying) / len(saying)
            silent = len(knowing) - len(saying)
            share = 1 / (1 + exp(-(0.75 * mean + 0.25 * log(odds(share)) - 0.28 * silent)))
        pooled[path] = pooled[above] * share
    del pooled[()]
    return pooled
