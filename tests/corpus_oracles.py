"""Plain Python versions of the corpus drafter's search and tree, over all places at once."""

from __future__ import annotations

from collections.abc import Sequence

BARRIER = -1
Path = tuple[int, ...]


def joined(documents: Sequence[Sequence[int]]) -> list[int]:
    """Return the documents' tokens with a barrier around each."""
    text = [BARRIER]
    for document in documents:
        if document:
            text += [*document, BARRIER]
    return text


def sorted_places(text: Sequence[int]) -> list[int]:
    """Return the places with a token and one before it, by the text before them, backwards."""
    places = [p for p in range(1, len(text)) if text[p] >= 0 and text[p - 1] >= 0]
    return sorted(places, key=lambda place: list(text[:place])[::-1])


def shared(text: Sequence[int], place: int, tail: Sequence[int]) -> int:
    """Return how many tokens before the place equal the end of the tail."""
    num = 0
    while num < len(tail) and text[place - 1 - num] == tail[-1 - num]:
        num += 1
    return num


def naive_votes(
    text: Sequence[int],
    tail: Sequence[int],
    *,
    min_match: int,
    max_places: int,
    floor: float,
    escapes: Sequence[float],
) -> tuple[dict[int, float], int]:
    """Return each place's vote, and the longest match.

    Args:
        text: documents with barriers.
        tail: a request's last tokens.
        min_match: shorter matches do not count.
        max_places: most places.
        floor: levels are asked while more than this is left over.
        escapes: by length; the longest match that counts is one less than their number.
    """
    usable: list[int] = []
    for token in reversed(tail[-(len(escapes) - 1) :]):
        if token < 0:
            break
        usable.insert(0, token)
    levels: dict[int, list[int]] = {}
    for place in sorted_places(text):
        levels.setdefault(shared(text, place, usable), []).append(place)
    votes: dict[int, float] = {}
    left_over = 1.0
    lengths = sorted((length for length in levels if length >= min_match), reverse=True)
    for length in lengths:
        if len(votes) == max_places or left_over <= floor:
            break
        level = levels[length]
        taken = min(len(level), max_places - len(votes))
        sample = [level[(2 * i + 1) * len(level) // (2 * taken)] for i in range(taken)]
        distinct = len({text[place] for place in sample})
        share = left_over * len(level) / (len(level) + escapes[length] * distinct)
        votes.update(dict.fromkeys(sample, share / taken))
        left_over -= share
    return votes, max(lengths, default=0)


def naive_paths(
    text: Sequence[int],
    votes: dict[int, float],
    longest: int,
    *,
    max_depth: int,
    floor: float,
    escapes: Sequence[float],
) -> dict[Path, float]:
    """Return every path above the floor with its probability.

    Args:
        text: documents with barriers.
        votes: of the places.
        longest: the longest match.
        max_depth: longest path.
        floor: least probability.
        escapes: by length of match.
    """
    paths: dict[Path, float] = {}

    def visit(places: list[int], path: Path, prob: float) -> None:
        depth = len(path)
        if depth == max_depth:
            return
        kept = 1.0
        total = 1.0
        if depth:
            escape = escapes[min(longest + depth, len(escapes) - 1)]
            kept = len(places) / (len(places) + escape)
            total = sum(votes[place] for place in places)
        groups: dict[int, list[int]] = {}
        for place in places:
            groups.setdefault(text[place + depth], []).append(place)
        for token, members in groups.items():
            below = prob * kept / total * sum(votes[place] for place in members)
            if token >= 0 and below > floor:
                paths[(*path, token)] = below
                visit(members, (*path, token), below)

    visit(list(votes), (), 1.0)
    return paths


def best_paths(paths: dict[Path, float], max_nodes: int) -> dict[Path, float]:
    """Return the most probable paths; a path's beginnings are never less probable than it."""
    best = sorted(paths, key=lambda path: (-paths[path], len(path)))[:max_nodes]
    return {path: paths[path] for path in best}
