"""A grammar that begins behind the end of the reasoning: held against re-reading the whole text."""

from __future__ import annotations

from typing import Any

import pytest
from grammars import CountingGrammar, decode
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import VOCAB_SIZE, RandomTreeDrafter

from freedraft.verifier import GrammarAfter

LONGER: dict[str, Any] = {"prompt_seed": 8, "max_new_tokens": 30}
_MOVES = st.lists(st.integers(-3, 9).filter(bool), max_size=30)


def legal(text: list[int], end: list[int], token: int) -> bool:
    """Read the whole text anew: where is its first end, and what does the grammar say behind it?"""
    for place in range(len(text) - len(end) + 1):
        if text[place : place + len(end)] == end:
            grammar = CountingGrammar()
            grammar.text = text[place + len(end) :]
            return grammar.legal(token)
    return True


@given(_MOVES, st.lists(st.integers(2, 4), min_size=1, max_size=3))
def test_equals_reading_the_text_anew(moves: list[int], end: list[int]) -> None:
    state = GrammarAfter(CountingGrammar(), end)
    text: list[int] = []
    for move in moves:
        if move < 0:
            back = min(-move, len(text))
            state.rollback(back)
            del text[len(text) - back :]
        else:
            wanted = legal(text, end, move)
            assert state.advance(move) is wanted
            text += [move] if wanted else []
        mask = [legal(text, end, token) for token in range(VOCAB_SIZE)]
        assert state.allowed().tolist() == mask


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "top_k": 9, "seed": 4}])
def test_the_switch_inside_an_accepted_run(options: dict[str, Any]) -> None:
    free = decode(None, **LONGER, **options)
    ends = [new[9] for new in free.token_ids]
    switches = [new.index(end) for new, end in zip(free.token_ids, ends, strict=True)]

    def grammar(row: int) -> GrammarAfter:
        return GrammarAfter(CountingGrammar(), [ends[row]])

    plain = decode(None, grammar=grammar, **LONGER, **options)
    crossed = 0
    for row, switch in enumerate(switches):
        new = plain.token_ids[row]
        assert new[: switch + 1] == free.token_ids[row][: switch + 1]
        assert new != free.token_ids[row]
        check = CountingGrammar()
        assert all(check.advance(token) for token in new[switch + 1 :])
    for answers in (plain, free):  # drafts that keep the grammar, and drafts that break it
        for seed in range(4):
            drafter = RandomTreeDrafter(seed, [row.tolist() for row in answers.sequences])
            result = decode(drafter, grammar=grammar, **LONGER, **options)
            assert result.token_ids == plain.token_ids
            done = [0, 0]
            for step in result.steps:
                begin, done[step.row] = done[step.row], done[step.row] + len(step.token_ids)
                accepted_end = begin + step.num_accepted
                crossed += begin <= switches[step.row] < accepted_end - 1
    assert crossed > 0


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="at least one token that ends the free part, got none"):
        GrammarAfter(CountingGrammar(), [])
    state = GrammarAfter(CountingGrammar(), [3])
    assert state.advance(3)
    assert state.is_bound
    with pytest.raises(ValueError, match="expected 0 to 1 tokens to take back, got 2"):
        state.rollback(2)
