from __future__ import annotations

import numpy as np
import pytest
import torch

from freedraft.verifier.noise import NoiseKey, gumbel_noise, philox, uniform_noise


# Known answers of Philox4x32-10 published with Random123.
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            [0xFFFFFFFF] * 2,
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], words: list[int]) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    assert [int(word) for word in philox((c0, c1, c2, c3), (key[0], key[1]))] == words


def test_noise_is_a_function_of_seed_position_and_token() -> None:
    ids = torch.arange(1000)
    noise = uniform_noise(NoiseKey(7, 1), 5, ids)
    picked = torch.tensor([999, 3, 500])
    assert (uniform_noise(NoiseKey(7, 1), 5, picked) == noise[picked]).all()
    others = [
        uniform_noise(NoiseKey(8, 1), 5, ids),
        uniform_noise(NoiseKey(7 + (1 << 40), 1), 5, ids),
        uniform_noise(NoiseKey(7, 2), 5, ids),
        uniform_noise(NoiseKey(7, 1), 6, ids),
        uniform_noise(NoiseKey(7, 1), 5, ids, purpose=1),
    ]
    for other in others:
        assert not (other == noise).any()
        correlation = np.corrcoef(other.numpy(), noise.numpy())[0, 1]
        assert abs(correlation) < 0.15


def test_uniform_noise_is_uniform_and_open() -> None:
    noise = uniform_noise(NoiseKey(-3), 0, torch.arange(100_000))
    assert 0 < float(noise.min()) < 1e-4
    assert 1 - 1e-4 < float(noise.max()) < 1
    counts = torch.histc(noise, 20, 0, 1)
    chi_square = float(((counts - 5000) ** 2 / 5000).sum())
    assert chi_square < 43.8  # 0.1 % point of 19 degrees of freedom


def test_gumbel_noise_is_finite() -> None:
    assert torch.isfinite(gumbel_noise(NoiseKey(1), 0, torch.arange(100_000))).all()
