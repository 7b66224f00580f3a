"""The phrase drafter, its book and the fixed parts of JSON schemas."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.drafters.base import Drafter
from freedraft.drafters.phrase import PhraseConfig, PhraseDrafter
from freedraft.drafters.phrase.book import PhraseBook
from freedraft.drafters.phrase.json_fragments import schema_phrases
from freedraft.drafters.tree import CandidateTree

EXAMPLES = 100 if os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0") else 30
EVERYTHING = PhraseConfig(min_prob=1e-12, prediction_match=2)


def paths(tree: CandidateTree) -> set[tuple[int, ...]]:
    tree.validate()
    return {tuple(tree.token_ids[tree.path(node)].tolist()) for node in range(tree.num_nodes)}


def agreement(text: Sequence[int], phrase: Sequence[int]) -> int:
    """Return how many last tokens of two sequences are equal and not negative."""
    length = 0
    while length < min(len(text), len(phrase)) and text[-1 - length] == phrase[-1 - length] >= 0:
        length += 1
    return length


def rests(text: Sequence[int], phrase: Sequence[int], least: int) -> set[tuple[int, ...]]:
    """Return every beginning of every rest of ``phrase`` that a text is inside of."""
    return {
        tuple(phrase[place:stop])
        for place in range(1, len(phrase))
        if agreement(text, phrase[:place]) >= least
        for stop in range(place + 1, len(phrase) + 1)
    }


TOKENS = st.integers(0, 3)
PHRASES = st.lists(st.lists(TOKENS, max_size=10), max_size=5)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    PHRASES,
    st.integers(1, 4),
    st.lists(TOKENS, max_size=20),
    st.lists(st.lists(st.integers(-1, 3), max_size=6), max_size=6),
    st.integers(0, 12),
)
def test_the_rests_of_all_phrases_are_proposed(
    phrases: list[list[int]],
    min_match: int,
    prompt: list[int],
    steps: list[list[int]],
    removed: int,
) -> None:
    book = PhraseBook(min_match, max_places=1000)
    for phrase in phrases:
        book.add(phrase)
    drafter = PhraseDrafter(book, EVERYTHING)
    drafter.start("r", prompt)
    text = list(prompt)

    def check() -> None:
        expected = set().union(*(rests(text, phrase, min_match) for phrase in phrases))
        (tree,) = drafter.propose(["r"], 1000, 1000)
        assert paths(tree) == expected
        shallow = {path for path in expected if len(path) <= 2}
        assert paths(drafter.propose(["r"], 1000, 2)[0]) == shallow
        (few,) = drafter.propose(["r"], 3, 1000)
        assert few.num_nodes == min(3, len(expected))
        # the most probable nodes are kept
        best = sorted(tree.probs.tolist(), reverse=True)[:3]
        assert sorted(few.probs.tolist(), reverse=True) == pytest.approx(best)

    check()
    for step in steps:
        drafter.extend("r", step)
        text += step
        check()
    length = max(len(text) - removed, 0)
    drafter.truncate("r", length)
    del text[length:]
    check()


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(TOKENS, min_size=1, max_size=12),
    st.lists(TOKENS, max_size=6),
    st.lists(TOKENS, max_size=12),
)
def test_a_prediction_is_of_the_output_alone(
    prediction: list[int], prompt: list[int], output: list[int]
) -> None:
    drafter = PhraseDrafter(config=EVERYTHING)
    drafter.start("r", prompt)
    drafter.start("other", prompt)
    drafter.set_prediction("r", prediction)
    beginnings = {tuple(prediction[:stop]) for stop in range(1, len(prediction) + 1)}
    assert paths(drafter.propose(["r"], 100, 100)[0]) == beginnings
    for number, token in enumerate(output, start=1):
        drafter.extend("r", [token])
        drafter.extend("other", [token])
        expected = rests(output[:number], prediction, 2)
        if prediction[:number] == output[:number]:  # followed from its beginning
            expected |= {
                tuple(prediction[number:stop]) for stop in range(number + 1, len(prediction) + 1)
            }
        mine, others = drafter.propose(["r", "other"], 100, 100)
        assert paths(mine) == expected
        assert others.num_nodes == 0


def test_a_prediction_can_be_replaced_and_withdrawn() -> None:
    drafter = PhraseDrafter()
    drafter.set_prediction("unknown", [1, 2])
    drafter.start("r", [9])
    drafter.set_prediction("r", [1, 2, 3])
    drafter.set_prediction("r", [4, 5, 6])
    assert drafter.propose(["r"], 8, 8)[0].token_ids.tolist() == [4, 5, 6]
    drafter.set_prediction("r", [])
    assert drafter.propose(["r"], 8, 8)[0].num_nodes == 0
    drafter.set_prediction("r", [4, 5, 6])
    drafter.stop("r")
    drafter.start("r", [9])
    assert drafter.propose(["r"], 8, 8)[0].num_nodes == 0


def test_a_prediction_is_found_again_behind_a_difference() -> None:
    drafter = PhraseDrafter()
    drafter.start("r", [])
    drafter.set_prediction("r", range(10, 30))
    drafter.extend("r", [10, 11, 12, 99, 14])
    assert drafter.propose(["r"], 8, 8)[0].num_nodes == 0
    drafter.extend("r", [15])
    assert drafter.propose(["r"], 4, 4)[0].token_ids.tolist() == [16, 17, 18, 19]


def test_probabilities_follow_what_was_seen() -> None:
    book = PhraseBook(min_match=1)
    book.add([1, 2])
    drafter = PhraseDrafter(book)
    drafter.start("r", [1])
    before = drafter.propose(["r"], 1, 1)[0].probs[0]
    drafter.extend("r", [3, 1] * 50)
    assert drafter.propose(["r"], 1, 1)[0].probs[0] < before / 4
    drafter.extend("r", [2, 1] * 200)
    assert drafter.propose(["r"], 1, 1)[0].probs[0] > before


# -- spellings

WORDS = {"\n": 1, " ": 2, "The": 10, " The": 11, " licence": 12, " is": 13, " free": 14, ".": 15}


def encode(text: str) -> list[int]:
    """Take the longest word at each place, as tokenizers do with the space before a word."""
    ids: list[int] = []
    while text:
        word = max((word for word in WORDS if text.startswith(word)), key=len)
        ids.append(WORDS[word])
        text = text[len(word) :]
    return ids


def test_each_spelling_of_a_first_word_is_known() -> None:
    book = PhraseBook()
    book.add_text("The licence is free.", encode)
    book.add_text("The licence is free.", encode)  # changes nothing
    drafter = PhraseDrafter(book)
    for before in ("The licence is", " The licence is", "\nThe licence"):
        drafter.start("r", encode(before))
        (tree,) = drafter.propose(["r"], 8, 8)
        assert tree.is_chain
        rest = encode("The licence is free.")[len(encode(before.lstrip())) :]
        assert tree.token_ids.tolist() == rest


def test_what_spellings_share_is_kept_once() -> None:
    book = PhraseBook()
    book.add_text("The licence is free.", encode)
    # the text itself, " The" and "\n"
    assert len(book.index().tokens) == 5 + 1 + 1


# -- phrases of several pieces, JSON schemas


def test_the_next_piece_is_expected_once_a_piece_has_ended() -> None:
    book = PhraseBook(min_match=2)
    book.add([1, 2, 3], [4, 5, 6], [4, 7])
    drafter = PhraseDrafter(book, PhraseConfig(min_prob=1e-6))
    drafter.start("r", [])
    drafter.extend("r", [4])
    assert drafter.propose(["r"], 8, 8)[0].num_nodes == 0  # not expected yet
    drafter.extend("r", [1, 2, 3, 50, 51])
    assert drafter.propose(["r"], 8, 8)[0].num_nodes == 0
    drafter.extend("r", [4])
    assert paths(drafter.propose(["r"], 8, 8)[0]) == {(5,), (5, 6)}
    drafter.extend("r", [5, 6, 60, 4])
    assert paths(drafter.propose(["r"], 8, 8)[0]) == {(5,), (5, 6), (7,)}


def test_a_piece_that_is_one_run_leads_on() -> None:
    book = PhraseBook(min_match=2)
    book.add([1, 2], [3, 4, 5])
    drafter = PhraseDrafter(book)
    drafter.start("r", [1, 2])
    drafter.extend("r", [9, 3])
    assert drafter.propose(["r"], 8, 8)[0].token_ids.tolist() == [4, 5]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
    },
    "required": ["name", "age"],
    "$defs": {"tag": {"type": "object", "properties": {"id": {"type": "number"}}}},
}


def matches(pieces: Sequence[str], text: str) -> bool:
    """Return whether the pieces stand in a text in their order, the first and last at its ends."""
    place = 0
    for piece in pieces:
        found = text.find(piece, place)
        if found < 0 or (place == 0 and found != 0):
            return False
        place = found + len(piece)
    return text.endswith(pieces[-1])


@pytest.mark.parametrize(
    "layout",
    [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}],
)
def test_the_pieces_of_a_schema_stand_in_its_texts(layout: dict[str, object]) -> None:
    phrases = schema_phrases(SCHEMA)
    whole = {"name": "Tom", "kind": "cat", "age": 3, "tags": [{"id": 1}, {"id": 2}]}
    for value, open_letters in ((whole, "Tom312"), ({"name": "Tom", "age": 3}, "Tom3")):
        text = json.dumps(value, **layout)  # type: ignore[arg-type]
        found = max(sum(map(len, pieces)) for pieces in phrases if pieces and matches(pieces, text))
        assert found == len(text) - len(open_letters)


def test_schemas_that_refer_to_themselves_or_are_huge_end() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert len(schema_phrases(tree)) <= 8 * 64
    choices = {str(number): {"enum": [1, 2, 3, 4]} for number in range(12)}
    wide = schema_phrases({"type": "object", "properties": choices})
    assert 1 < len(wide) <= 8 * 64
    assert any('"11": 4}' in pieces[-1] for pieces in wide)


@pytest.mark.parametrize(
    ("schema", "pieces"),
    [
        (True, []),
        ({}, []),
        ({"type": "boolean"}, [("true",), ("false",)]),
        ({"const": None}, [("null",)]),
        ({"type": "null"}, [("null",)]),
        ({"type": "string"}, [('"', '"')]),
        ({"$ref": "#/nowhere"}, []),
        ({"$ref": "elsewhere.json"}, []),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, [("1",), ("2",)]),
        ({"type": "object"}, [("{", "}")]),
        ({"type": "array"}, [("[", "]")]),
        ({"enum": []}, []),
    ],
)
def test_small_schemas(schema: object, pieces: list[tuple[str, ...]]) -> None:
    assert schema_phrases(schema) == pieces


def test_a_schema_is_drafted_between_its_values() -> None:
    book = PhraseBook()
    book.add_json_schema(SCHEMA, lambda text: [ord(letter) for letter in text])
    drafter = PhraseDrafter(book)
    drafter.start("r", [])
    text = json.dumps({"name": "Tom", "kind": "dog", "age": 3})
    steps = position = 0
    while position < len(text):
        (tree,) = drafter.propose(["r"], 32, 32)
        node, children = -1, tree.children()
        accepted = 0
        while position + accepted < len(text):
            node = children.get(node, {}).get(ord(text[position + accepted]), -2)
            if node < 0:
                break
            accepted += 1
        drafter.extend("r", [ord(letter) for letter in text[position : position + accepted + 1]])
        position += accepted + 1
        steps += 1
    assert steps <= len(text) / 2


# -- the contract


def test_it_is_a_drafter() -> None:
    drafter = PhraseDrafter()
    assert isinstance(drafter, Drafter)
    assert drafter.name == "phrase"
    drafter.extend("unknown", [1])
    drafter.truncate("unknown", 0)
    drafter.stop("unknown")
    assert [tree.num_nodes for tree in drafter.propose(["unknown"], 4, 4)] == [0]
    assert drafter.propose([], 4, 4) == []


def test_a_request_id_is_used_again_without_its_past() -> None:
    book = PhraseBook(min_match=2)
    book.add([1, 2, 3])
    drafter = PhraseDrafter(book)
    drafter.start("r", [1])
    drafter.start("r", [2])  # still running: stopped first
    assert drafter.propose(["r"], 4, 4)[0].num_nodes == 0
    drafter.stop("r")
    drafter.extend("r", [1, 2])
    assert drafter.propose(["r"], 4, 4)[0].num_nodes == 0


def test_later_additions_to_a_book_are_not_seen() -> None:
    book = PhraseBook(min_match=1)
    drafter = PhraseDrafter(book)
    book.add([1, 2])
    drafter.start("r", [1])
    assert drafter.propose(["r"], 4, 4)[0].num_nodes == 0


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="min_match >= 1, got 0"):
        PhraseBook(0)
    with pytest.raises(ValueError, match="token ids >= 0 in a phrase, got -2"):
        PhraseBook().add([1, -2])
    with pytest.raises(ValueError, match="got an empty one"):
        PhraseBook().add_text("", encode)
    with pytest.raises(ValueError, match="expected a JSON schema"):
        schema_phrases([1])
    with pytest.raises(ValueError, match=r"min_prob in \(0, 1\], got 2"):
        PhraseConfig(min_prob=2)
    with pytest.raises(ValueError, match="prediction_match >= 1, got 0"):
        PhraseConfig(prediction_match=0)
    drafter = PhraseDrafter()
    with pytest.raises(ValueError, match="max_depth >= 0"):
        drafter.propose([], 4, -1)
    with pytest.raises(ValueError, match="length >= 0, got -1"):
        drafter.truncate("r", -1)
    with pytest.raises(ValueError, match="one dimension"):
        drafter.start("r", [[1]])
