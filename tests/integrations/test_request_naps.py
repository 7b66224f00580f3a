"""Naps miss nothing: what was slept through is counted at once and followed later."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.drafters import CandidateTree
from freedraft.drafters.catalog import create_drafter
from freedraft.integrations.budget import PooledBudget
from freedraft.integrations.request_book import RequestBook
from freedraft.integrations.request_naps import RequestNaps
from freedraft.integrations.seen_grams import GRAM, SeenGrams
from tests.integrations.test_request_book import VOCAB_SIZE, Scribe


class Miser(PooledBudget):
    """A budget that leaves nothing of any tree."""

    def cut(
        self,
        request_ids: object,
        trees: list[CandidateTree],  # type: ignore[override]
        num_left: object = None,
    ) -> list[CandidateTree]:
        return [CandidateTree.empty()] * len(trees)


def repeat_oracle(text: list[int], start: int) -> int:
    """Length of the end of a text whose runs have all stood before, read from ``start`` on."""
    padded = [0] * (GRAM - 1) + text
    repeat = 0
    for stop in range(start + GRAM, len(padded) + 1):
        run = padded[stop - GRAM : stop]
        known = any(padded[i : i + GRAM] == run for i in range(stop - GRAM))
        repeat = (repeat + 1 if repeat else GRAM) if known else 0
    return repeat


@given(st.lists(st.integers(-2, 3), max_size=40), st.integers(0, 40))
def test_repeats_are_known_again(text: list[int], start: int) -> None:
    start = min(start, len(text))
    seen = SeenGrams(np.array(text[:start], np.int32))
    seen.append(text[start:])
    assert seen.repeat >= repeat_oracle(text, start)


def test_what_never_stood_there_is_rarely_known() -> None:
    rng = np.random.default_rng(0)
    seen = SeenGrams(rng.integers(0, 50_000, 5_000).astype(np.int32))
    known = 0
    for token in rng.integers(0, 50_000, 2_000).tolist():
        seen.append([token])
        known += seen.repeat > 0
    assert known < 2_000 // 8


def test_naps_grow_and_end_with_a_draft() -> None:
    naps = RequestNaps(np.arange(8, dtype=np.int32))
    asked = []
    for step in range(80):
        naps.follow([100 + step])
        if not naps.sleep(step):
            asked.append(step)
            naps.wake(0)
    assert asked == [0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72]
    naps.wake(3)
    assert not any(naps.sleep(step) for step in range(80))


def test_a_repeat_shortens_naps() -> None:
    text = list(range(20, 60))
    naps = RequestNaps(np.array(text, np.int32))
    for _ in range(20):
        naps.wake(0)
    naps.follow(text[5 : 5 + GRAM])
    assert not any(naps.sleep(step) for step in range(16))
    naps.follow([900])
    assert [step for step in range(17) if not naps.sleep(step)] == [0, 8, 16]


def test_requests_that_nap_wake_together() -> None:
    early, late = (RequestNaps(np.arange(8, dtype=np.int32)) for _ in range(2))
    for _ in range(20):
        early.wake(0)
    for _ in range(9):
        late.wake(0)
    assert all(early.sleep(step) == late.sleep(step) for step in range(100))


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(-1, VOCAB_SIZE), min_size=1, max_size=3), max_size=40))
def test_counts_and_texts_are_those_of_a_book_without_naps(steps: list[list[int]]) -> None:
    scribe, plain = Scribe(), Scribe()
    scribe.next_tree = plain.next_tree = CandidateTree.from_chain([1, 2])
    napping = RequestBook(scribe, VOCAB_SIZE, (), Miser(), naps=True)
    awake = RequestBook(plain, VOCAB_SIZE, (), Miser())
    text = [1, 2, 3]
    for book in (napping, awake):
        book.sync("a", text)
    num_naps = 0
    for step in steps:
        text += step
        for book in (napping, awake):
            book.sync("a", np.array(text), num_verified=0)
            assert book.propose_chains(["a"], [2]) == [[]]
        num_naps += napping.all_asleep("a")
        if not napping.all_asleep("a"):
            assert scribe.texts["a"] == plain.texts["a"]
    assert napping.statistics.steps == awake.statistics.steps
    assert napping.statistics.emitted == awake.statistics.emitted
    assert num_naps > 0 or len(steps) < 8
    told: list[list[int]] = []
    scribe.stop = lambda request_id: told.append(scribe.texts[request_id])  # type: ignore[assignment,method-assign]
    expected = plain.texts["a"]
    napping.release("a")
    assert told == [expected]


def test_a_text_that_changes_during_a_nap_is_followed() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, 1000, (), Miser(), naps=True)
    text = [1, 2, 3]
    book.sync("a", text)
    while not book.all_asleep("a"):
        text = [*text, len(text) + 100]
        book.sync("a", text)
        book.propose_chains(["a"], [2])
    book.sync("a", text[:-1])
    assert not book.all_asleep("a")
    assert scribe.texts["a"] == text[:-1]
    book.sync("a", [7, 7, 7])
    assert scribe.texts["a"] == [7, 7, 7]


def test_a_copy_that_begins_during_a_nap_is_drafted_soon() -> None:
    rng = np.random.default_rng(1)
    source = rng.integers(0, 5_000, 200).tolist()
    text = [*source, *rng.permutation(np.arange(5_000, 5_400)).tolist()]
    book = RequestBook(create_drafter("ngram"), 10_000, (), PooledBudget(), naps=True)
    book.sync("a", text[:200])
    for stop in range(201, len(text) + 1):
        book.sync("a", text[:stop], num_prompt_tokens=200)
        book.propose_chains(["a"], [8])
    assert book.all_asleep("a")
    waited = 0
    while not book.propose_chains(["a"], [8])[0]:
        text.append(source[waited])
        waited += 1
        book.sync("a", text, num_prompt_tokens=200)
    assert waited <= 20
