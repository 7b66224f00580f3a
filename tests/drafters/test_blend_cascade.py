"""The blend as a cascade: drawn trees, fallbacks that must pay, wishes passed on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from freedraft.drafters import CandidateTree, Feedback, create_drafter
from freedraft.drafters.base import SendsProbes, TakesVocabSize, WantsTopIds
from freedraft.drafters.blend import BlendConfig, BlendDrafter
from freedraft.drafters.blend.drawn import join_chosen
from freedraft.drafters.blend.price import Price


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Proposes one tree; each call costs time of the clock."""

    name = "source"

    def __init__(
        self, tree: CandidateTree, clock: Clock | None = None, seconds: float = 0.0
    ) -> None:
        self.tree = tree
        self.asked: list[object] = []
        self._clock = clock
        self._seconds = seconds

    def start(self, request_id: object, prompt_ids: Sequence[int], namespace: str = "") -> None:
        pass

    def extend(self, request_id: object, token_ids: Sequence[int]) -> None:
        pass

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        self.asked.extend(request_ids)
        if self._clock is not None:
            self._clock.now += self._seconds
        return [self.tree for _ in request_ids]

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        pass

    def truncate(self, request_id: object, length: int) -> None:
        pass

    def stop(self, request_id: object) -> None:
        pass


class Wishful(Source):
    """Wants top ids and the vocabulary, and sends one probe."""

    num_top_ids = 5
    num_probes = 1
    vocab_size = 0

    def set_vocab_size(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def add_probes(
        self,
        request_ids: Sequence[object],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: object,
    ) -> list[CandidateTree]:
        probe = CandidateTree.from_chain([99], [0.0])
        return [CandidateTree.merge([tree, probe]) for tree in trees]


def drawn_tree(tokens: list[int], parents: list[int], vocab_size: int = 8) -> CandidateTree:
    rows = np.zeros((len(tokens), vocab_size), np.float32)
    rows[np.arange(len(tokens)), tokens] = 1
    return CandidateTree.from_arrays(tokens, parents, [0.5] * len(tokens), rows)


def test_drawn_nodes_keep_their_places_and_chosen_ones_follow() -> None:
    drawn = drawn_tree([1, 2, 3], [-1, -1, 0])
    chosen = CandidateTree.from_chains([[1, 3, 4], [5, 6]], [[0.9, 0.8, 0.7], [0.2, 0.1]])
    joined = join_chosen(drawn, chosen, 5)
    assert joined.token_ids.tolist() == [1, 2, 3, 4, 5]  # no room for the 6
    assert joined.parents.tolist() == [-1, -1, 0, 2, -1]
    assert joined.draft_probs is not None and drawn.draft_probs is not None
    assert np.array_equal(joined.draft_probs[:3], drawn.draft_probs)
    assert not joined.draft_probs[3:].any()
    joined.validate()
    again = join_chosen(drawn, chosen, 3)
    assert again.token_ids.tolist() == [1, 2, 3]


def test_a_blend_keeps_a_drawn_tree_whole_and_the_first_of_several() -> None:
    first, second = drawn_tree([1, 1], [-1, 0]), drawn_tree([2], [-1])
    chain = CandidateTree.from_chain([3, 4], [0.9, 0.9])
    blend = BlendDrafter([Source(chain), Source(first), Source(second)])
    blend.start("a", [5])
    (tree,) = blend.propose(["a"], 3, 3)
    assert tree.token_ids.tolist() == [1, 1, 3]
    blend.extend("a", [1, 1, 7])
    (tree,) = blend.propose(["a"], 2, 2)
    assert tree.token_ids.tolist() == [1, 1]


POOR = CandidateTree.from_chain([1], [0.2])
RICH = CandidateTree.from_chain([1, 2, 3], [0.9, 0.8, 0.7])


def test_fallbacks_are_asked_where_the_others_promise_little() -> None:
    cheap, costly = Source(POOR), Source(CandidateTree.from_chain([7, 8], [0.9, 0.5]))
    blend = BlendDrafter([cheap], fallbacks=[costly])
    blend.start("a", [5])
    (tree,) = blend.propose(["a"], 8, 8)
    assert costly.asked == ["a"] and set(tree.token_ids.tolist()) == {1, 7, 8}
    cheap.tree = RICH
    (tree,) = blend.propose(["a"], 8, 8)
    assert costly.asked == ["a"] and tree.token_ids.tolist() == [1, 2, 3]
    never = BlendDrafter([Source(POOR)], BlendConfig(abstain_below=0), fallbacks=[costly])
    never.start("b", [5])
    never.propose(["b"], 8, 8)
    assert costly.asked == ["a"]


def run_steps(seconds: float, committed: list[int], num_steps: int = 400) -> tuple[int, int]:
    """Return how often a fallback of that cost was asked in the first and the last 100 steps."""
    clock = Clock()
    costly = Source(CandidateTree.from_chain([7, 8], [0.9, 0.5]), clock, seconds)
    blend = BlendDrafter([Source(POOR)], fallbacks=[costly], clock=clock)
    blend.start("a", [5])
    asked = []
    for _ in range(num_steps):
        before = len(costly.asked)
        blend.propose(["a"], 8, 8)
        asked.append(len(costly.asked) - before)
        clock.now += 1.0  # the target's step
        blend.extend("a", committed)
    return sum(asked[:100]), sum(asked[-100:])


def test_a_fallback_that_pays_goes_on() -> None:
    # Two tokens more a step of 1 s, for 0.3 s.
    assert run_steps(0.3, [7, 8, 9]) == (100, 100)


def test_a_fallback_that_costs_more_than_it_brings_is_tried_rarely() -> None:
    first, last = run_steps(0.3, [5])  # it is never right
    assert 5 < first < 60 and last <= 2
    first, last = run_steps(5.0, [7, 8, 9])  # right, but five steps' time for two tokens
    assert first < 60 and 1 <= last <= 2


def test_a_fallback_that_becomes_right_comes_back() -> None:
    price = Price(memory=10, retry_period=4)
    for _ in range(20):
        price.record_step(1, 1.0)
        if price.is_due():
            price.record_draft(0.5, 1)
            price.record_gain(0)
    assert not price.pays
    for _ in range(40):
        price.record_step(1, 1.0)
        if price.is_due():
            price.record_draft(0.5, 1)
            price.record_gain(2)
    assert price.pays


def test_a_gain_is_what_no_other_source_had() -> None:
    price = Price(memory=4, retry_period=1000)
    clock = Clock()
    same = Source(CandidateTree.from_chain([1], [0.2]), clock, 0.01)
    blend = BlendDrafter([Source(POOR)], fallbacks=[same], clock=clock)
    blend._prices = [price]
    blend.start("a", [5])
    for _ in range(20):
        blend.propose(["a"], 8, 8)
        clock.now += 1.0
        blend.extend("a", [1, 6])  # both are right: the fallback adds nothing
    assert not price.pays


def test_wishes_are_passed_on() -> None:
    wishful = Wishful(POOR)
    blend = BlendDrafter([Source(RICH)], fallbacks=[wishful])
    for protocol in (WantsTopIds, TakesVocabSize, SendsProbes):
        assert isinstance(blend, protocol)
    assert blend.num_top_ids == 5 and blend.num_probes == 1
    blend.set_vocab_size(77)
    assert wishful.vocab_size == 77
    blend.start("a", [5])
    (tree,) = blend.add_probes(["a"], [RICH], 8, [8], None)
    assert tree.token_ids.tolist() == [1, 2, 3, 99]
    plain = BlendDrafter([Source(RICH)])
    assert plain.num_top_ids == plain.num_probes == 0
    assert plain.add_probes(["a"], [RICH], 8, [8], None) == [RICH]


def test_the_default_blend_recycles() -> None:
    blend = create_drafter("blend")
    assert isinstance(blend, WantsTopIds) and blend.num_top_ids > 0
    blend.start("a", [5, 9])
    for token in (6, 5):
        one = np.array([token], np.int32)
        top_ids = np.array([[token, 60]], np.int32)
        logprobs = np.log(np.array([[0.9, 0.1]], np.float32))
        blend.observe("a", CandidateTree.empty(), Feedback(one, one[:0], one, top_ids, logprobs))
        blend.extend("a", one)
    (tree,) = blend.propose(["a"], 8, 8)
    assert 60 in tree.token_ids.tolist()  # a runner-up: no other source has it


def test_settings_of_the_cascade_are_checked() -> None:
    with pytest.raises(ValueError, match="abstain_below >= 0"):
        BlendConfig(abstain_below=-1)
    with pytest.raises(ValueError, match="retry_period >= 1"):
        BlendConfig(retry_period=0)
