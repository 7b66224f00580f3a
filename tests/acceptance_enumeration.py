"""Exact output distributions of acceptance rules: each random event is branched on, not drawn.

A rule sees lazily drawn candidates (the drafter's draws are events too), so nodes that it never
looks at cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np

from freedraft.drafters import ROOT, CandidateTree
from freedraft.verifier.rejection import Draft, FloatArray64, TargetProbs
from freedraft.verifier.walk import WalkResult, walk

T = TypeVar("T")
Path = tuple[int, ...]
Emit = Callable[[int, int], bool]
Rule = Callable[[Draft, TargetProbs, "Branching", Emit], WalkResult]


class Branching:
    """One run's events: follows a script of choices, then takes the first possible ones."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.choices: list[int] = []
        self.probability = 1.0
        self.untaken: list[list[int]] = []

    def pick(self, probs: Sequence[float]) -> int:
        """Branch over an event with the given outcome probabilities."""
        possible = [index for index, prob in enumerate(probs) if prob > 0]
        step = len(self.choices)
        if step < len(self._script):
            choice = self._script[step]
        else:
            choice = possible[0]
            self.untaken.extend([*self.choices, other] for other in possible[1:])
        self.choices.append(choice)
        self.probability *= probs[choice]
        return choice

    def decide(self, probability: float, offset: int, attempt: int) -> bool:
        assert -1e-12 <= probability <= 1 + 1e-12, probability
        return self.pick((probability, 1 - probability)) == 0

    def draw(self, probs: FloatArray64, offset: int) -> int:
        return self.pick(probs.tolist())


def enumerate_outcomes(run: Callable[[Branching], T]) -> Iterator[tuple[float, T]]:
    """Yield each possible result of ``run`` with its probability; results may repeat."""
    scripts: list[list[int]] = [[]]
    while scripts:
        branching = Branching(scripts.pop())
        result = run(branching)
        scripts.extend(branching.untaken)
        yield branching.probability, result


@cache
def tree_shapes(num_nodes: int) -> tuple[tuple[int, ...], ...]:
    """Return the parents of every ordered tree of that many nodes, in depth-first order."""
    if num_nodes == 0:
        return ((),)
    shapes = []
    for shape in tree_shapes(num_nodes - 1):
        node = num_nodes - 2  # a new last node may hang from any node of the last path
        while True:
            shapes.append((*shape, node))
            if node == ROOT:
                break
            node = shape[node]
    return tuple(shapes)


@dataclass
class RandomModel:
    """A distribution for each path of tokens; some rows have impossible tokens, some are sharp."""

    vocab_size: int
    seed: int
    _rows: dict[Path, FloatArray64] = field(default_factory=dict)

    def __call__(self, path: Path) -> FloatArray64:
        row = self._rows.get(path)
        if row is None:
            rng = np.random.default_rng((self.seed, *(token + 1 for token in path)))
            row = rng.exponential(size=self.vocab_size) ** rng.choice([0.3, 1, 3])
            if rng.random() < 0.3:
                row[rng.integers(self.vocab_size)] = 0
            row /= row.sum()
            self._rows[path] = row
        return row


DRAWN = "drawn"  # sampled without replacement
REPEATING = "repeating"  # sampled with replacement
CHOSEN = "chosen"  # a point mass


class LazyDraft:
    """Candidates of a given shape whose tokens are drawn when they are first looked at."""

    def __init__(
        self,
        parents: Sequence[int],
        kinds: Sequence[str],
        model: RandomModel,
        branching: Branching,
    ) -> None:
        self._kinds = kinds
        self._model = model
        self._branching = branching
        self._parents = parents
        self._token_ids: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            self._children.setdefault(parent, []).append(node)

    def path(self, node: int) -> Path:
        """Return the tokens from the root down to ``node``."""
        if node == ROOT:
            return ()
        return (*self.path(self._parents[node]), self.token_id(node))

    def children(self, node: int) -> list[int]:
        support = int((self._model(self.path(node)) > 0).sum())
        return self._children.get(node, [])[:support]  # no more than can be drawn

    def probs(self, node: int) -> FloatArray64 | None:
        if self._kinds[node] == CHOSEN:
            return None
        parent = self._parents[node]
        row = self._model(self.path(parent))
        if self._kinds[node] == REPEATING:
            return row
        earlier = [self.token_id(other) for other in self._children[parent] if other < node]
        left = row.copy()
        left[earlier] = 0
        return left / left.sum() if left.sum() > 0 else row

    def token_id(self, node: int) -> int:
        if node not in self._token_ids:
            probs = self.probs(node)
            if probs is None:
                self._token_ids[node] = self._chosen(node)
            else:
                self._token_ids[node] = self._branching.pick(probs.tolist())
        return self._token_ids[node]

    def _chosen(self, node: int) -> int:
        """Any function of the path and the place in it, different for siblings."""
        parent = self._parents[node]
        rng = np.random.default_rng((7, *self.path(parent)))
        rank = self._children[parent].index(node)
        return int(rng.permutation(self._model.vocab_size)[rank])


def point_mass_walk(
    draft: Draft, target_probs: TargetProbs, chance: Branching, emit: Emit
) -> WalkResult:
    """The deterministic walk with the target's choice as an event."""
    nodes = [ROOT]  # of the draft, by index + 1 in the tree
    parents: list[int] = []
    for index, node in enumerate(nodes, start=-1):  # grows on the way: breadth first
        below = draft.children(node)
        nodes.extend(below)
        parents.extend([index] * len(below))
    tree = CandidateTree.from_arrays([draft.token_id(node) for node in nodes[1:]], parents)
    result = walk(
        tree,
        lambda node: chance.draw(target_probs(nodes[node + 1]), 0),
        lambda token, node: emit(token, nodes[node + 1]),
    )
    return WalkResult(result.token_ids, [nodes[node + 1] for node in result.accepted])


@dataclass(frozen=True)
class Outcome:
    """The exact behaviour of a rule on one shape.

    Attributes:
        error: largest difference between the joint distribution of the first tokens and p's.
        acceptance_length: expected number of emitted tokens, the last one included.
    """

    error: float
    acceptance_length: float


def exact_outcome(
    rule: Rule,
    parents: Sequence[int],
    kinds: Sequence[str],
    target: RandomModel,
    draft_model: RandomModel,
    num_tokens: int,
) -> Outcome:
    """Compare the joint distribution of the first ``num_tokens`` tokens with the target's.

    What a step emits less than that is filled up with plain decoding; a step is ended by its caller
    once it has emitted as many (as at the end of a sequence).
    """

    def run(branching: Branching) -> Path:
        draft = LazyDraft(parents, kinds, draft_model, branching)
        emitted: list[int] = []

        def emit(token: int, node: int) -> bool:
            assert draft.path(node) == tuple(emitted), "the source node is not the path's end"
            emitted.append(token)
            return len(emitted) < num_tokens

        result = rule(draft, lambda node: target(draft.path(node)), branching, emit)
        assert result.token_ids == emitted
        taken = [draft.token_id(node) for node in result.accepted]
        assert taken == emitted[: len(taken)] and len(taken) >= len(emitted) - 1
        return tuple(emitted)

    mass: dict[Path, float] = {}
    length = 0.0
    for probability, emitted in enumerate_outcomes(run):
        mass[emitted] = mass.get(emitted, 0.0) + probability
        length += probability * len(emitted)
    while len(path := min(mass, key=len)) < num_tokens:
        share = mass.pop(path)
        for token, probability in enumerate(target(path).tolist()):
            mass[*path, token] = mass.get((*path, token), 0.0) + share * probability
    error = max(abs(got - _path_probability(target, path)) for path, got in mass.items())
    error = max(error, abs(math.fsum(mass.values()) - 1))
    return Outcome(error, length)


def _path_probability(target: RandomModel, path: Path) -> float:
    return math.prod(float(target(path[:index])[token]) for index, token in enumerate(path))


def upper_bound(parents: Sequence[int], token_ids: Sequence[int], target: RandomModel) -> float:
    """Return 1 + the sum of p(path) over a fixed tree's distinct paths: no rule emits more."""
    paths: list[Path] = []
    for node, parent in enumerate(parents):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_ids[node]))
    return 1 + math.fsum(_path_probability(target, path) for path in set(paths))
