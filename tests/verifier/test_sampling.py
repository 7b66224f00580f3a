from __future__ import annotations

import pytest
import torch

from freedraft.verifier import NoiseKey, choose_token


def test_greedy_takes_the_first_of_equal_scores() -> None:
    assert choose_token(torch.tensor([0.0, 2.0, 2.0]), None, 0) == 1


def test_sample_frequencies_follow_the_softmax() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    counts = torch.zeros(4, dtype=torch.float64)
    draws = 4000
    for position in range(draws):
        counts[choose_token(probs.log(), NoiseKey(11), position)] += 1
    chi_square = float(((counts - draws * probs) ** 2 / (draws * probs)).sum())
    assert chi_square < 16.3  # 0.1 % point of 3 degrees of freedom


def test_tokens_at_minus_infinity_are_never_drawn_and_change_nothing() -> None:
    scores = torch.tensor([0.5, 0.1, 0.2, 0.9])
    thinned = torch.tensor([0.5, -torch.inf, 0.2, -torch.inf])
    for position in range(200):
        token = choose_token(thinned, NoiseKey(3), position)
        assert token in (0, 2)
        full = choose_token(scores, NoiseKey(3), position)
        if full in (0, 2):  # the same noise decides whether or not the others take part
            assert token == full


def test_impossible_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one possible token"):
        choose_token(torch.full((3,), -torch.inf), NoiseKey(0), 0)
