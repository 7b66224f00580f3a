"""What every engine's adapter must do with the requests that an engine throws at it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from adapter_harnesses import HARNESSES, LONGEST, MAX_CONTEXT, PLACEHOLDER, VOCAB, Paths, Texts

from freedraft.drafters import CandidateTree
from freedraft.drafters.ngram import NgramDrafter

RUN = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
OTHER = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]
REPEATED = [*RUN, *RUN, *RUN[:3]]
"""A text that goes on with 13 14 15 ..."""


@pytest.fixture(params=HARNESSES)
def make(request: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return what makes an adapter behind its harness."""
    return lambda: HARNESSES[request.param](monkeypatch)


def drafted(paths: list[list[int]]) -> set[int]:
    return {token for path in paths for token in path}


def check(paths: Paths, texts: Texts) -> None:
    """Bounds that hold for any draft."""
    assert set(paths) == set(texts)
    for name, found in paths.items():
        assert len(found) <= LONGEST
        for path in found:
            assert 0 < len(path) <= min(LONGEST, max(MAX_CONTEXT - len(texts[name]), 0))
            assert all(type(token) is int and 0 <= token < VOCAB for token in path)
            assert PLACEHOLDER not in path


def test_repeats_are_drafted(make: Callable[[], Any]) -> None:
    harness = make()
    paths = harness.draft({"a": REPEATED})
    check(paths, {"a": REPEATED})
    assert any(path[:3] == [13, 14, 15] for path in paths["a"])
    longest = max(paths["a"], key=len)
    again = {"a": [*REPEATED, *longest, 18 if longest[-1] == 17 else 20]}
    check(harness.draft(again), again)


def test_a_request_first_seen_in_mid_flight_is_served(make: Callable[[], Any]) -> None:
    harness = make()
    harness.draft({"a": [1, 2, 3]})
    texts = {"a": [1, 2, 3, 4], "late": REPEATED}
    paths = harness.draft(texts)
    check(paths, texts)
    assert any(path[:2] == [13, 14] for path in paths["late"])


def test_an_id_used_again_brings_nothing_of_the_old_text(make: Callable[[], Any]) -> None:
    harness = make()
    harness.draft({"a": REPEATED})
    harness.draft({"a": [*REPEATED, 13]})
    text = [*OTHER, *OTHER, *OTHER[:2]]
    for seen in (text, [*text, OTHER[2]]):
        paths = harness.draft({"a": seen})
        check(paths, {"a": seen})
        assert drafted(paths["a"]) <= set(OTHER)
    assert any(path[0] == OTHER[3] for path in paths["a"])


def test_an_aborted_request_is_released_and_the_others_go_on(make: Callable[[], Any]) -> None:
    harness = make()
    texts = {"a": REPEATED, "b": [*OTHER, *OTHER, OTHER[0]], "c": [1, 2, 3]}
    harness.draft(texts)
    del texts["a"]
    texts["b"] = [*texts["b"], OTHER[1]]
    texts["c"] = [*texts["c"], 4]
    paths = harness.draft(texts)
    check(paths, texts)
    assert any(path[0] == OTHER[2] for path in paths["b"])
    assert harness.num_followed() <= len(texts)


@pytest.mark.parametrize("kept", [1, 5, 12, len(REPEATED) - 1])
def test_a_text_that_comes_back_shorter_is_followed(make: Callable[[], Any], kept: int) -> None:
    """A preempted request may have lost its newest tokens and got others."""
    harness = make()
    harness.draft({"a": REPEATED})
    texts = {"a": [*REPEATED[:kept], *OTHER, *OTHER, *OTHER[:2]]}
    paths = harness.draft(texts)
    check(paths, texts)
    assert any(path[0] == OTHER[2] for path in paths["a"])
    assert not drafted(paths["a"]) & set(RUN[3:]) or kept > 3


def test_placeholders_and_ids_beyond_the_vocabulary_are_not_drafted(
    make: Callable[[], Any],
) -> None:
    harness = make()
    for strange in (PLACEHOLDER, VOCAB, VOCAB + 5, 2**31 - 1):
        for text in (
            [1, 2, strange, 1, 2, strange, 1, 2],
            [strange] * 12,
            [1, strange, 2, 3, 1, strange, 2, 3, 1, strange],
        ):
            texts = {"a": text}
            check(harness.draft(texts), texts)


def test_images_do_not_match_each_other(make: Callable[[], Any]) -> None:
    """What followed one image says nothing about what follows another."""
    image = [PLACEHOLDER] * 4
    texts = {"a": [*image, 20, 21, 22, 23, *image]}
    assert make().draft(texts)["a"] == []


def test_drafts_end_with_the_room(make: Callable[[], Any]) -> None:
    harness = make()
    text = (RUN * (MAX_CONTEXT // len(RUN) + 1))[: MAX_CONTEXT - 12]
    while len(text) <= MAX_CONTEXT:
        texts = {"a": list(text)}
        check(harness.draft(texts), texts)
        text.append(RUN[len(text) % len(RUN)])


def test_an_engine_without_requests_is_served(make: Callable[[], Any]) -> None:
    harness = make()
    harness.draft({"a": REPEATED})
    assert harness.draft({}) == {}
    texts = {"b": REPEATED}
    check(harness.draft(texts), texts)


def test_anything_in_any_order(make: Callable[[], Any]) -> None:
    """Several hundred steps: new, grown, cut, replaced and vanishing requests."""
    generator = random.Random(7)
    harness = make()
    texts: Texts = {}
    num_drafted = 0
    for _ in range(300):
        for name in list(texts):
            chance = generator.random()
            if chance < 0.05:
                del texts[name]
            elif chance < 0.1:
                kept = texts[name][: generator.randint(1, len(texts[name]))]
                texts[name] = [*kept, generator.randrange(VOCAB)]
            elif chance < 0.13:
                texts[name] = [generator.randrange(VOCAB) for _ in range(generator.randint(1, 30))]
            else:
                length = generator.randint(1, LONGEST + 1)
                texts[name] = [*texts[name], *(generator.randrange(3) for _ in range(length))]
            if name in texts and len(texts[name]) >= MAX_CONTEXT:
                del texts[name]
        while len(texts) < 5 and generator.random() < 0.7:
            length = generator.randint(1, 40)
            texts[f"r{generator.randrange(8)}"] = [generator.randrange(3) for _ in range(length)]
        paths = harness.draft({name: list(text) for name, text in texts.items()})
        check(paths, texts)
        num_drafted += sum(map(len, paths.values()))
        assert harness.num_followed() <= max(len(texts), 1)
    assert num_drafted > 300
    assert harness.book().statistics.switched_off == 0


def test_a_faulty_drafter_leaves_the_engine_alone(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[CandidateTree]:
        raise OSError("broken")

    harness = make()
    harness.draft({"a": REPEATED})
    monkeypatch.setattr(NgramDrafter, "propose", fail)
    with pytest.warns(RuntimeWarning, match="OSError: broken"):
        assert harness.draft({"a": [*REPEATED, 13]}) == {"a": []}
    assert harness.draft({"a": [*REPEATED, 13, 14]}) == {"a": []}
    assert harness.book().statistics.switched_off == 1
