"""The suffix drafter."""

from __future__ import annotations

import numpy as np
import pytest

from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter

SMALL = SuffixConfig(max_context=8, max_bytes=1 << 24, max_namespace_bytes=1 << 20)


def chain_of(drafter: SuffixDrafter, request_id: object, max_nodes: int = 8) -> list[int]:
    (tree,) = drafter.propose([request_id], max_nodes, max_nodes)
    tree.validate()
    return tree.best_chain().token_ids.tolist()


def test_proposes_what_followed_the_tail() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 9, 1, 2])
    assert chain_of(drafter, "a", 3) == [3, 4, 5]


def test_learns_from_finished_responses_of_its_namespace_alone() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.start("a", [1, 2], namespace="x")
    drafter.extend("a", [1, 2, 3, 4])
    drafter.stop("a")
    drafter.start("a", [7, 1, 2], namespace="x")
    drafter.start("b", [7, 1, 2], namespace="y")
    assert chain_of(drafter, "a") == [3, 4]
    assert chain_of(drafter, "b") == []


def test_unknown_request_is_ignored() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.extend("a", [1])
    drafter.truncate("a", 0)
    drafter.stop("a")
    assert drafter.propose(["a"], 4, 4)[0].num_nodes == 0


def test_placeholders_neither_match_nor_are_proposed() -> None:
    drafter = SuffixDrafter(SMALL)
    drafter.start("a", np.array([1, 2, -1, -7, 5, 1, 2]))
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [-1])
    assert chain_of(drafter, "a") == []


@pytest.mark.parametrize("bad", [{"max_context": 0}, {"min_prob": 0.0}, {"num_segments": 9}])
def test_refuses_settings(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        SuffixConfig(**bad)  # type: ignore[arg-type]
