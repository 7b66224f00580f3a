from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from oracles import accepted_path

from freedraft import CandidateTree
from freedraft.verifier import walk


def run(tree: CandidateTree, target: list[int], stop: int | None = None) -> tuple[list[int], ...]:
    asked: list[int] = []
    emitted: list[int] = []

    def choose(node: int) -> int:
        asked.append(node)
        return target[len(asked) - 1]

    def emit(token: int, node: int) -> bool:
        emitted.append(token)
        return token != stop

    result = walk(tree, choose, emit)
    assert result.token_ids == emitted
    return result.token_ids, result.accepted, asked


@given(st.integers(0, 10**6))
def test_walk_takes_the_longest_agreeing_path(seed: int) -> None:
    rng = random.Random(seed)
    chains = [[rng.randrange(3) for _ in range(rng.randint(1, 5))] for _ in range(4)]
    tree = CandidateTree.from_chains(chains)
    target = [rng.randrange(3) for _ in range(8)]
    tokens, accepted, asked = run(tree, target)
    assert accepted == accepted_path(tree.token_ids.tolist(), tree.parents.tolist(), target)
    assert tokens == target[: len(accepted) + 1]
    assert asked == [-1, *accepted]


def test_empty_tree_decodes_one_token() -> None:
    assert run(CandidateTree.empty(), [7]) == ([7], [], [-1])


def test_stop_inside_the_accepted_run_ends_it() -> None:
    tree = CandidateTree.from_chain([1, 2, 3, 4])
    tokens, accepted, asked = run(tree, [1, 2, 3, 4, 5], stop=2)
    assert (tokens, accepted, asked) == ([1, 2], [0, 1], [-1, 0])
