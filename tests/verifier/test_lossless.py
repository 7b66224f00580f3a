"""The walk is lossless: by exact enumeration, and by a statistical test that can fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from freedraft import CandidateTree
from freedraft.verifier import NoiseKey, WalkResult, choose_token, walk

VOCAB = 4
Prefix = tuple[int, ...]
Walk = Callable[[CandidateTree, Callable[[int], int], Callable[[int, int], bool]], WalkResult]


class Target:
    """A language model as a table: a random distribution after each prefix."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._table: dict[Prefix, npt.NDArray[np.float64]] = {}

    def probs(self, prefix: Prefix) -> npt.NDArray[np.float64]:
        if prefix not in self._table:
            self._table[prefix] = self._rng.dirichlet(np.ones(VOCAB) * 0.7)
        return self._table[prefix]


def node_prefix(tree: CandidateTree, node: int, committed: Prefix) -> Prefix:
    """Return the text that the target's row at a node is conditioned on."""
    return committed + tuple(int(tree.token_ids[index]) for index in tree.path(node))


def decode(
    walk_fn: Walk,
    target: Target,
    tree_for: Callable[[Prefix], CandidateTree],
    length: int,
    draw: Callable[[npt.NDArray[np.float64], int], int],
) -> Prefix:
    """Decode ``length`` tokens with trees; ``draw(probs, position)`` is the target's choice."""
    text: list[int] = []
    while len(text) < length:
        committed = tuple(text)
        tree = tree_for(committed)

        def choose(node: int, tree: CandidateTree = tree, committed: Prefix = committed) -> int:
            return draw(target.probs(node_prefix(tree, node, committed)), len(text))

        def emit(token: int, node: int) -> bool:
            text.append(token)
            return len(text) < length

        walk_fn(tree, choose, emit)
    return tuple(text)


def exact_distribution(
    target: Target, tree_for: Callable[[Prefix], CandidateTree], length: int
) -> dict[Prefix, float]:
    """Return the output distribution by trying every sequence of draws."""
    outcome: dict[Prefix, float] = {}
    for script in itertools.product(range(VOCAB), repeat=length):
        weight = [1.0]

        def draw(
            probs: npt.NDArray[np.float64],
            position: int,
            script: Sequence[int] = script,
            weight: list[float] = weight,
        ) -> int:
            weight[0] *= float(probs[script[position]])
            return script[position]

        text = decode(walk, target, tree_for, length, draw)
        outcome[text] = outcome.get(text, 0.0) + weight[0]
    return outcome


def random_tree(rng: random.Random, depth: int) -> CandidateTree:
    chains = [[rng.randrange(VOCAB) for _ in range(depth)] for _ in range(rng.randint(0, 5))]
    return CandidateTree.from_chains(chains)


@pytest.mark.parametrize("seed", range(20))
def test_enumerated_output_equals_the_target(seed: int) -> None:
    target = Target(seed)
    rng = random.Random(seed)
    trees: dict[Prefix, CandidateTree] = {}

    def tree_for(prefix: Prefix) -> CandidateTree:
        return trees.setdefault(prefix, random_tree(rng, 2))

    for text, prob in exact_distribution(target, tree_for, 3).items():
        wanted = np.prod([target.probs(text[:place])[text[place]] for place in range(3)])
        assert prob == pytest.approx(float(wanted), abs=1e-12)


def accept_any_child(
    tree: CandidateTree, choose: Callable[[int], int], emit: Callable[[int, int], bool]
) -> WalkResult:
    """A wrong rule: at the root it takes the first candidate without asking the target."""
    if tree.num_nodes == 0:
        return walk(tree, choose, emit)
    first = int(tree.token_ids[0])
    if not emit(first, -1):
        return WalkResult([first], [0])
    last = choose(0)
    emit(last, 0)
    return WalkResult([first, last], [0])


def forget_the_draw(
    tree: CandidateTree, choose: Callable[[int], int], emit: Callable[[int, int], bool]
) -> WalkResult:
    """A wrong rule: on a miss it throws the target's draw away and draws again."""
    children = tree.children()
    tokens: list[int] = []
    node = -1
    while True:
        token = choose(node)
        child = children.get(node, {}).get(token)
        if child is None:
            token = choose(node)
        tokens.append(token)
        if not emit(token, node) or child is None:
            return WalkResult(tokens, [])
        node = child


def chi_square(walk_fn: Walk, draws: int) -> float:
    """Return the statistic of sampled two-token texts against the target's distribution."""
    target = Target(3)
    tree = CandidateTree.from_chains([[0, 1], [2, 3], [0, 2]])
    counts: dict[Prefix, int] = {}
    for seed in range(draws):
        calls = itertools.count()

        def draw(
            probs: npt.NDArray[np.float64],
            position: int,
            seed: int = seed,
            calls: itertools.count[int] = calls,
        ) -> int:
            key = NoiseKey(seed, next(calls) if walk_fn is forget_the_draw else 0)
            return choose_token(torch.from_numpy(probs).log(), key, position)

        text = decode(walk_fn, target, lambda _: tree, 2, draw)
        counts[text] = counts.get(text, 0) + 1
    statistic = 0.0
    for text in itertools.product(range(VOCAB), repeat=2):
        expected = draws * target.probs(())[text[0]] * target.probs(text[:1])[text[1]]
        statistic += (counts.get(text, 0) - expected) ** 2 / expected
    return statistic


CRITICAL = 37.7  # 0.1 % point of 15 degrees of freedom


def test_sampled_output_passes_chi_square() -> None:
    assert chi_square(walk, 3000) < CRITICAL


@pytest.mark.parametrize("broken", [accept_any_child, forget_the_draw])
def test_chi_square_fails_a_broken_rule(broken: Walk) -> None:
    assert chi_square(broken, 3000) > CRITICAL
