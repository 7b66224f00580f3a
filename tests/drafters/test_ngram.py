"""The n-gram drafter."""

from __future__ import annotations

import numpy as np
import pytest

from freedraft.drafters.ngram import NgramConfig, NgramDrafter

SMALL = NgramConfig(capacity=256, page_size=8)


def chain_of(drafter: NgramDrafter, request_id: object, max_nodes: int = 8) -> list[int]:
    (tree,) = drafter.propose([request_id], max_nodes, max_nodes)
    tree.validate()
    return tree.best_chain().token_ids.tolist()


def test_proposes_what_followed_the_tail() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4, 5, 9, 1, 2])
    assert chain_of(drafter, "a", 3) == [3, 4, 5]


def test_learns_from_finished_requests_of_its_namespace_alone() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", [1, 2, 3, 4], namespace="x")
    drafter.stop("a")
    drafter.start("a", [1, 2], namespace="x")
    drafter.start("b", [1, 2], namespace="y")
    assert chain_of(drafter, "a") == [3, 4]
    assert chain_of(drafter, "b") == []


def test_unknown_request_is_ignored() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.extend("a", [1])
    drafter.truncate("a", 0)
    drafter.stop("a")
    assert drafter.propose(["a"], 4, 4)[0].num_nodes == 0


def test_placeholders_neither_match_nor_are_proposed() -> None:
    drafter = NgramDrafter(SMALL)
    drafter.start("a", np.array([1, 2, -1, -1, 5, 1, 2]))
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [-1])
    assert chain_of(drafter, "a") == []


@pytest.mark.parametrize("bad", [{"levels": (1, 2)}, {"page_size": 3}, {"max_visits": (1,)}])
def test_refuses_settings(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        NgramConfig(**bad)  # type: ignore[arg-type]
