"""Plain versions of what a replay counts."""

from __future__ import annotations

from collections.abc import Sequence


def match_length(context: Sequence[int]) -> int:
    """Return the longest run at the end of ``context`` that also stands earlier in it."""
    for length in range(len(context) - 1, 0, -1):
        tail = list(context[-length:])
        if min(tail) < 0:
            continue
        if any(list(context[i : i + length]) == tail for i in range(len(context) - length)):
            return length
    return 0


def match_bucket(length: int) -> int:
    """Return the bucket of a match length: 0, 1, 2-3, 4-7, ..., 64 and more."""
    return min(length.bit_length(), 7)


def expected_accepted(
    chains: Sequence[Sequence[int]], probs: Sequence[dict[int, float]], target: Sequence[int]
) -> float:
    """Return the summed probability of the drafted tokens at each place that the target reaches.

    Args:
        chains: the draft's paths.
        probs: the target's whole distribution at each place along ``target``.
        target: what it emitted.
    """
    total = 0.0
    for depth in range(len(target)):
        reached = list(target[:depth])
        below = {
            chain[depth]
            for chain in chains
            if len(chain) > depth and list(chain[:depth]) == reached
        }
        if not below:
            break
        total += sum(probs[depth].get(token, 0.0) for token in below)
    return total
