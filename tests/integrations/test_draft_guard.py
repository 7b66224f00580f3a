"""What the guard knows of a drafter's wishes, and what it tells it when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tiny_models import tiny_llama

import freedraft
from freedraft.drafters import CandidateTree, Feedback, create_drafter
from freedraft.drafters.lookahead import LookaheadDrafter
from freedraft.drafters.recycling import RecyclingConfig, RecyclingDrafter
from freedraft.drafters.tree import IntArray
from freedraft.integrations.draft_guard import DraftGuard


class Changing(RecyclingDrafter):
    """Wants more from one moment to the next."""

    wanted = 3

    @property
    def num_top_ids(self) -> int:
        return self.wanted


def test_wishes_are_asked_for_anew() -> None:
    drafter = Changing(RecyclingConfig(max_vocab_size=64))
    guard = DraftGuard(drafter, 64)
    assert guard.num_top_ids == 3
    drafter.wanted = 0
    assert guard.num_top_ids == 0


def test_who_wishes_nothing_gets_nothing() -> None:
    tree = CandidateTree.from_chain([1])
    for drafter in (None, create_drafter("ngram"), create_drafter("edit")):
        guard = DraftGuard(drafter, 64)
        assert guard.num_top_ids == 0
        assert not guard.sends_probes
        assert guard.add_probes(["a"], [tree], 4, [4], None) == [tree]
    assert DraftGuard(LookaheadDrafter(), 64).sends_probes


class Listener:
    """Writes down what it hears, in order."""

    name = "listener"

    def __init__(self) -> None:
        self.heard: list[tuple[str, object, list[int]]] = []

    def start(self, request_id: object, prompt_ids: object, namespace: str = "") -> None: ...

    def extend(self, request_id: object, token_ids: npt.ArrayLike) -> None:
        self.heard.append(("extend", request_id, np.asarray(token_ids).tolist()))

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        self.heard += [("propose", request_id, []) for request_id in request_ids]
        return [CandidateTree.empty()] * len(request_ids)

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        self.heard.append(("observe", request_id, []))

    def truncate(self, request_id: object, length: int) -> None:
        self.heard.append(("truncate", request_id, [length]))

    def stop(self, request_id: object) -> None:
        self.heard.append(("stop", request_id, []))


def tokens(*ids: int) -> IntArray:
    return np.array(ids, np.int32)


def test_deferred_tokens_are_told_together_before_anything_else() -> None:
    drafter = Listener()
    guard = DraftGuard(drafter, 64)
    for request_id in ("a", "b"):
        guard.start(request_id, [1])
        guard.defer(request_id, [2, 3])
        guard.defer(request_id, [4])
    guard.propose(["a", "b"], 8, [0, 0])  # nobody is asked
    assert drafter.heard == []
    guard.propose(["a"], 8, [4])
    assert drafter.heard == [("extend", "a", [2, 3, 4]), ("propose", "a", [])]
    drafter.heard.clear()
    guard.defer("a", [5])
    guard.extend("a", tokens(6))
    guard.defer("a", [7])
    guard.observe("a", CandidateTree.empty(), Feedback(tokens(8), tokens(), tokens(8)))
    guard.stop("a")
    guard.truncate("b", 3)
    assert drafter.heard == [
        ("extend", "a", [5]),
        ("extend", "a", [6]),
        ("extend", "a", [7]),
        ("observe", "a", []),
        ("stop", "a", []),
        ("extend", "b", [2, 3, 4]),
        ("truncate", "b", [3]),
    ]


class BatchListener(Listener):
    """Also takes the tokens of several requests in one call, if none of them is 13."""

    def extend_batch(
        self, request_ids: Sequence[object], token_ids: Sequence[npt.ArrayLike]
    ) -> None:
        texts = [np.asarray(text).tolist() for text in token_ids]
        self.heard.append(("batch", None, [token for text in texts for token in text]))
        for request_id, text in zip(request_ids, texts, strict=True):
            self.extend(request_id, text)

    def extend(self, request_id: object, token_ids: npt.ArrayLike) -> None:
        if 13 in np.asarray(token_ids).tolist():
            raise ValueError("unlucky")
        super().extend(request_id, token_ids)


def test_a_steps_tokens_are_told_in_one_call_before_the_next_proposal() -> None:
    drafter = BatchListener()
    guard = DraftGuard(drafter, 64)
    for request_id in ("a", "b", "c"):
        guard.start(request_id, [1])
    own = tokens(2, 3)
    guard.extend("a", own)
    own[:] = 60  # the caller's array may change
    guard.extend("b", tokens(4))
    assert drafter.heard == []
    guard.propose(["b", "a"], 8, [4, 4])
    assert drafter.heard[:3] == [("batch", None, [2, 3, 4]), ("extend", "a", [2, 3]),
        ("extend", "b", [4])]  # fmt: skip
    drafter.heard.clear()
    guard.extend("a", tokens(5))
    guard.extend("b", tokens(6))
    guard.observe("a", CandidateTree.empty(), Feedback(tokens(8), tokens(), tokens(8)))
    guard.extend("b", tokens(7))
    guard.truncate("b", 3)
    guard.extend("c", tokens(8))
    guard.start("c", [1])  # the tokens were the earlier request's
    guard.extend("a", tokens(9))
    guard.stop("a")
    guard.propose(["b"], 8, [4])
    assert drafter.heard == [
        ("extend", "a", [5]),
        ("observe", "a", []),
        ("extend", "b", [6]),
        ("extend", "b", [7]),
        ("truncate", "b", [3]),
        ("extend", "c", [8]),
        ("extend", "a", [9]),
        ("stop", "a", []),
        ("propose", "b", []),
    ]


def test_a_fault_among_several_texts_costs_one_request_its_drafts() -> None:
    drafter = BatchListener()
    guard = DraftGuard(drafter, 64)
    for request_id in ("a", "b"):
        guard.start(request_id, [1])
    guard.extend("a", tokens(13))
    guard.defer("a", [2])
    guard.extend("b", tokens(4))
    with pytest.warns(RuntimeWarning, match="unlucky"):
        guard.propose(["a", "b"], 8, [4, 4])
    assert guard.switched_off == {"a"}
    assert guard.num_faults == 1
    assert ("extend", "b", [4]) in drafter.heard
    assert ("propose", "b", []) in drafter.heard
    assert not [told for told in drafter.heard if told[:2] == ("extend", "a")]


def test_deferred_tokens_do_not_pile_up_and_die_with_a_fault() -> None:
    drafter = Listener()
    guard = DraftGuard(drafter, 64)
    guard.start("a", [1])
    for _ in range(200):
        guard.defer("a", [2])
    told = [ids for verb, _, ids in drafter.heard if verb == "extend"]
    assert sum(map(len, told)) > 200 - 64 and max(map(len, told)) <= 64
    with pytest.warns(RuntimeWarning, match="switched off"):
        guard.switch_off("a", ValueError("no more"))
    drafter.heard.clear()
    guard.defer("a", [2])
    guard.stop("a")
    assert drafter.heard == []
    DraftGuard(None, 64).defer("a", [2])


def test_rows_that_nap_hear_their_whole_text_in_the_end() -> None:
    drafter = Listener()
    prompts = torch.tensor([[5, 9, 7, 3], [8, 2, 6, 1]])
    result = freedraft.generate(
        tiny_llama(),
        prompts,
        drafter=drafter,
        max_new_tokens=40,
        eos_token_id=None,
        do_sample=False,
        return_dict=True,
    )
    ids = {request_id for _, request_id, _ in drafter.heard}
    texts = sorted(
        [
            token
            for verb, one, said in drafter.heard
            if one == each and verb == "extend"
            for token in said
        ]
        for each in ids
    )
    assert texts == sorted(result.token_ids)
    num_asked = sum(verb == "propose" for verb, _, _ in drafter.heard)
    assert 2 * 12 <= num_asked < 2 * 30  # of 39 steps
