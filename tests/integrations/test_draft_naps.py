"""Leaving a drafter alone while it brings nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from freedraft.drafters import CandidateTree, create_drafter
from freedraft.drafters.ngram import NgramDrafter
from freedraft.integrations import draft_naps, llama_cpp_adapter
from freedraft.integrations.budget import Calibration
from freedraft.integrations.draft_naps import DraftNaps
from freedraft.integrations.llama_cpp_adapter import LlamaDraft

NODES = (0, 1, 3, 7, 15, 31)


def make_draft(drafter: NgramDrafter, highest: float = 1.1) -> LlamaDraft:
    seconds = np.geomspace(1.0, highest, len(NODES)).reshape(1, 1, -1) * 0.01
    costs = Calibration("m", "llama-cpp", "cpu", "measured", (128,), (1,), NODES, seconds)
    return LlamaDraft(drafter, 5000, 4096, costs)


class Counting(NgramDrafter):
    """Counts what it is asked, and the tokens that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0
        self.num_told = 0

    def propose(self, *arguments: object) -> list[CandidateTree]:
        self.num_asked += 1
        return super().propose(*arguments)  # type: ignore[arg-type]

    def extend(self, request_id: object, token_ids: object) -> None:
        self.num_told += len(token_ids)  # type: ignore[arg-type]
        super().extend(request_id, token_ids)  # type: ignore[arg-type]


def naps_of(naps: DraftNaps, num_proposals: int) -> list[int]:
    """Return how many steps each of a row of empty proposals was slept before."""
    slept = []
    for _ in range(num_proposals):
        number = 0
        while naps.sleep():
            number += 1
        slept.append(number)
        assert naps.num_slept == number
        naps.wake(0)
    return slept


def test_naps_grow_and_end_with_the_first_draft() -> None:
    naps = DraftNaps()
    assert naps_of(naps, 8) == [4, 8, 16, 32, 64, 128, 128, 128]
    naps.wake(3)
    assert naps_of(naps, 4) == [0, 4, 8, 16]
    naps.restart()
    assert naps_of(naps, 3) == [4, 8, 16]
    naps.restart(asleep=False)
    assert naps_of(naps, 3) == [0, 4, 8]


def test_the_longest_nap_is_as_long_as_what_asking_costs_asks_for() -> None:
    for cost, longest in ((0.0, 4), (0.001, 4), (0.04, 16), (0.15, 60), (9.0, 128)):
        naps = DraftNaps()
        naps.wake(0, cost)
        assert naps_of(naps, 8)[-1] == longest
    naps = DraftNaps()
    for cost in (0.04, 0.04, 5.0):  # once the machine did something else meanwhile
        naps.wake(0, cost)
    assert naps_of(naps, 8)[-1] == 28
    for _ in range(30):
        naps.wake(0, 0.04)
    assert naps_of(naps, 8)[-1] == 16


def test_a_repeat_that_is_long_enough_wakes_the_drafter() -> None:
    naps = DraftNaps(least_repeat=5)
    naps.follow([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
    lengths = []
    for token in range(1, 10):
        naps.follow([token])
        lengths.append(naps.repeat)
        assert naps.sleep() is (naps.repeat < 5), token
    assert lengths == [0, 0, 3, 4, 5, 6, 7, 8, 9], "a gram ends with the third token"
    naps.follow([5])
    assert naps.repeat == 0


def test_after_a_proposal_in_vain_the_repeat_must_grow_by_a_quarter() -> None:
    naps = DraftNaps(least_repeat=4)
    naps.follow([*range(100), 1, 2, 3])
    asked_at = []
    for token in range(4, 60):
        naps.follow([token])
        if not naps.sleep():
            asked_at.append(naps.repeat)
            naps.wake(0)
    assert asked_at == [4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 51]
    naps.wake(7)
    assert not naps.sleep(), "a draft ends all waiting"


def test_repeats_in_vain_make_the_next_ones_wait_longer() -> None:
    naps = DraftNaps(least_repeat=3)
    naps.follow([1, 2, 3, 4, 5, 6, 7, 8])
    asked_at = []
    for end in range(100, 112):
        for token in (1, 2, 3, 4, 5, 6, 7, 8, end):
            naps.follow([token])
            if naps.repeat and not naps.sleep():
                asked_at.append(naps.repeat)
                naps.wake(0)
    assert asked_at[:6] == [3, 4, 5, 6, 7, 8], "each token of the first repeat"
    assert asked_at[6:9] == [6, 7, 8] and asked_at[9:11] == [7, 8]
    assert len(asked_at) <= 13, "then hardly any of this length"


def test_an_earlier_text_and_a_prediction_are_known_again() -> None:
    naps = DraftNaps()
    naps.follow([1, 2, 3, 4, 5])
    naps.restart()
    naps.follow([9, 2, 3])
    assert naps.repeat == 0, "tokens before the text do not count"
    naps.follow([4])
    assert naps.repeat == 3 and not naps.sleep()
    naps.restart(least_repeat=9)
    naps.follow([2, 3, 4])
    assert naps.repeat == 3 and naps.sleep()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_naps, "_MOST_GRAMS", 50)
    naps = DraftNaps()
    for start in range(0, 10_000, 40):
        naps.follow(range(start, start + 40))
    assert len(naps._grams) + len(naps._older_grams) < 200
    naps.follow([5, 6, 7])
    assert naps.repeat == 0
    naps.follow([9990, 9991, 9992])
    assert naps.repeat == 3


def test_a_text_that_repeats_nothing_is_seldom_looked_at() -> None:
    drafter = Counting()
    draft = make_draft(drafter)
    text = list(range(5))
    for token in range(5, 205):
        text.append(token)
        assert draft(np.array(text, np.intc)).size == 0
    assert drafter.num_asked < 10
    # Each step is counted, but for those that the book has not seen yet.
    assert 70 <= drafter.num_told <= 200
    assert draft.statistics.steps == draft.statistics.emitted == drafter.num_told
    draft(np.array([1, 2], np.intc))
    assert drafter.num_told == 200, "with the next text no token of this one is lost"
    assert draft.statistics.steps == draft.statistics.emitted == 200


def test_a_text_that_was_slept_through_is_known_to_the_next_one() -> None:
    drafter = Counting()
    draft = make_draft(drafter)
    for text in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]):
        draft(np.array(text, np.intc))
    assert drafter.num_asked == 0
    chain = draft(np.array([9, 8, 2, 3, 4], np.intc))
    assert chain[:3].tolist() == [5, 6, 7]
    assert drafter.num_asked == 1 and draft.statistics.steps == draft.statistics.emitted == 4


def test_after_2000_tokens_of_nothing_to_copy_asking_is_rare_and_copying_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock by which a step takes 10 ms and asking the drafter 1.5 ms."""
    now = [0.0]
    monkeypatch.setattr(llama_cpp_adapter, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(Counting):
        def propose(self, *arguments: object) -> list[CandidateTree]:
            now[0] += 0.0015
            return super().propose(*arguments)

    drafter = Slow()
    draft = make_draft(drafter, highest=10.0)
    text = np.random.default_rng(5).permutation(4000)[:2048].tolist()
    for length in range(40, len(text) + 1):
        now[0] += 0.01
        assert draft(np.array(text[:length], np.intc)).size == 0
        if length == 1048:
            asked_before = drafter.num_asked
    assert (drafter.num_asked - asked_before) * 0.0015 < 0.0025 * 1000 * 0.01
    for token in text[100:120]:
        text.append(token)
        now[0] += 0.01
        if draft(np.array(text, np.intc)).size:
            break
    assert len(text) < 2048 + 20, "drafted before that much was copied"


@pytest.mark.parametrize("name", ["ngram", "suffix", "edit", "blend"])
def test_a_repeat_is_noticed_within_a_nap(name: str) -> None:
    draft = make_draft(create_drafter(name))  # type: ignore[arg-type]
    text = list(range(5))
    for token in [*range(5, 105), *range(40, 60)]:
        text.append(token)
        chain = draft(np.array(text, np.intc))
        if chain.size:
            break
    assert chain.size and chain[0] == text[-1] + 1
    assert 105 < len(text) <= 105 + 10


def test_another_text_that_looks_like_a_step_is_noticed_in_a_nap() -> None:
    draft = make_draft(Counting())
    text = list(range(5))
    for token in range(5, 60):
        text.append(token)
        draft(np.array(text, np.intc))
    assert draft._naps.num_slept > 0 and draft._request == 1
    draft(np.array([500, *text[1:], 60], np.intc))  # of that length and with that end
    assert draft._request == 2 and draft.statistics.switched_off == 0


def test_another_text_is_noticed_in_a_nap() -> None:
    draft = make_draft(Counting())
    text = list(range(5))
    for token in range(5, 60):
        text.append(token)
        draft(np.array(text, np.intc))
    other = [500, 501, 502, 503, 504, 505] * 3
    assert draft(np.array(other, np.intc)).size > 0
    assert draft.statistics.switched_off == 0
