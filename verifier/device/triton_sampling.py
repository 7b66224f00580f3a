"""Triton kernel for the target's choice: temperature, top-k, top-p, min-p and Gumbel-max in one.

The twin of :func:`.batched_sampling.choose_tokens`. Nothing is sorted. Each cut keeps the tokens
above some score, so whether the best noisy token survives is one pass: how many tokens, and how
much probability, lie above it. If it does not, nothing at or below its score does, and the best of
the rest is looked for. That takes 1 / (kept probability) rounds on average.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
# Triton is optional, and carries no types where it is there.

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from .batched_sampling import RowSampling
from .triton_support import jit, next_power_of_2

_MAX_BLOCK = 4096


@jit
def _philox(
    token_ids: tl.tensor,
    position: tl.tensor,
    stream: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
) -> tl.tensor:
    """Return two words of Philox4x32-10 for purpose 0, as int64; see noise.philox."""
    c0 = token_ids.to(tl.uint32)
    zero = c0 & 0  # the scalars become blocks, so that they wrap around as words do
    c1 = zero + position.to(tl.uint32)
    c2 = zero + stream.to(tl.uint32)
    c3 = zero
    k0 = zero + seed_low.to(tl.uint32)
    k1 = zero + seed_high.to(tl.uint32)
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = (p1 & 0xFFFFFFFF).to(tl.uint32)
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = (p0 & 0xFFFFFFFF).to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0.to(tl.int64), c1.to(tl.int64)


@jit
def _gumbel(
    token_ids: tl.tensor,
    position: tl.tensor,
    stream: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
) -> tl.tensor:
    """Return noise.gumbel_noise."""
    high, low = _philox(token_ids, position, stream, seed_low, seed_high)
    bits = (high >> 5).to(tl.float64) * 67108864.0 + (low >> 6).to(tl.float64)
    uniform = (bits + 0.5) * 1.1102230246251565e-16  # 2**-53
    return -tl.log(-tl.log(uniform))


@jit
def _load_scores(
    row_start: tl.tensor,
    start: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return a block's token ids and scores, and int64 keys of their order, -1 outside the row."""
    offsets = start + tl.arange(0, BLOCK)
    inside = offsets < vocab_size
    logits = tl.load(row_start + offsets, mask=inside, other=float("-inf")).to(tl.float32)
    scores = tl.div_rn(logits, tl.full((BLOCK,), temperature, tl.float32))
    bits = tl.where(scores == 0, 0.0, scores).to(tl.int32, bitcast=True).to(tl.int64)
    # Floats in order as unsigned words: positive ones above, negative ones turned round.
    keys = tl.where(bits < 0, -bits - 1, bits + 0x80000000) & 0xFFFFFFFF
    return offsets, scores, tl.where(inside, keys, -1)


@jit
def _measure_above(
    row_start: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    highest: tl.tensor,
    key: tl.tensor,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return how many tokens lie above ``key``, and their weight relative to the highest."""
    count = tl.full((), 0, tl.int64)
    mass = tl.full((), 0.0, tl.float64)
    for start in range(0, vocab_size, BLOCK):
        _, scores, keys = _load_scores(row_start, start, vocab_size, temperature, BLOCK)
        above = keys > key
        block_count = tl.sum(above.to(tl.int64), 0)
        count += block_count
        if WEIGHED and block_count > 0:
            weights = tl.exp(scores.to(tl.float64) - highest.to(tl.float64))
            mass += tl.sum(tl.where(above, weights, 0.0), 0)
    return count, mass


@jit
def _top_k_floor(
    row_start: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    highest: tl.tensor,
    top_k: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the largest key that top_k tokens reach, or a smaller one that no more reach."""
    floor = tl.full((), 0, tl.int64)
    step = tl.full((), 0x80000000, tl.int64)
    while step > 0:
        count, _ = _measure_above(
            row_start, vocab_size, temperature, highest, floor + step - 1, False, BLOCK
        )
        floor = tl.where(count >= top_k, floor + step, floor)
        step = tl.where(count == top_k, 0, step >> 1)
    return floor


@jit
def _best_noisy(
    row_start: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    floor: tl.tensor,
    lowest: tl.tensor,
    sampled: tl.tensor,
    position: tl.tensor,
    seed: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the token of the largest noisy score whose key is ``floor`` or more, and its key."""
    seed_low = tl.load(seed)
    seed_high = tl.load(seed + 1)
    stream = tl.load(seed + 2)
    best = tl.full((), float("-inf"), tl.float64)
    best_token = tl.full((), 0, tl.int64)
    best_key = tl.full((), 0xFFFFFFFF, tl.int64)  # a row of nan must not be searched for ever
    for start in range(0, vocab_size, BLOCK):
        offsets, scores, keys = _load_scores(row_start, start, vocab_size, temperature, BLOCK)
        noisy = scores.to(tl.float64)
        kept = (keys >= floor) & (noisy >= lowest)
        # Most blocks of a row that was cut hold nothing, and need no noise.
        if tl.max(kept.to(tl.int32), 0) > 0:
            if sampled:
                noisy += _gumbel(offsets, position, stream, seed_low, seed_high)
            noisy = tl.where(kept, noisy, float("-inf"))
            block_best = tl.max(noisy, 0)
            if block_best > best:
                best = block_best
                token = tl.min(tl.where(noisy == block_best, offsets, vocab_size), 0)
                best_token = token.to(tl.int64)
                best_key = tl.max(tl.where(offsets == token, keys, -1), 0)
    return best_token, best_key


@jit
def _choose_kernel(
    logits: tl.tensor,
    positions: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    min_ps: tl.tensor,
    seeds: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    vocab_size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    place = (row * width + tl.program_id(1)).to(tl.int64)
    row_start = logits + place * vocab_size
    temperature = tl.load(temperatures + row)
    sampled = temperature > 0
    temperature = tl.where(sampled, temperature, 1.0)
    top_k = tl.load(top_ks + row)
    top_k = tl.where(sampled & (top_k > 0), top_k, vocab_size)
    top_p = tl.where(sampled, tl.load(top_ps + row), 1.0)
    min_p = tl.where(sampled, tl.load(min_ps + row), 0.0)

    highest = tl.full((), float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        _, scores, _ = _load_scores(row_start, start, vocab_size, temperature, BLOCK)
        highest = tl.maximum(highest, tl.max(scores, 0))
    lowest = tl.full((), float("-inf"), tl.float64)
    if min_p > 0:
        lowest = highest.to(tl.float64) + tl.log(min_p)

    floor = tl.full((), 0, tl.int64)
    total = tl.full((), 0.0, tl.float64)
    if top_p < 1:
        # Top-p counts within what top-k leaves, so here top-k's own cut must be known.
        if top_k < vocab_size:
            floor = _top_k_floor(row_start, vocab_size, temperature, highest, top_k, BLOCK)
        _, total = _measure_above(
            row_start, vocab_size, temperature, highest, floor - 1, True, BLOCK
        )

    position = tl.load(positions + place) & 0xFFFFFFFF
    seed = seeds + row * 3
    token = tl.full((), 0, tl.int64)
    looking = True
    while looking:
        token, key = _best_noisy(
            row_start, vocab_size, temperature, floor, lowest, sampled, position, seed, BLOCK
        )
        looking = False
        if (top_p < 1) | (top_k < vocab_size):
            count, mass = _measure_above(
                row_start, vocab_size, temperature, highest, key, True, BLOCK
            )
            # Stays when fewer than top_k lie above, and with its equals it crosses top_p.
            looking = (count >= top_k) | ((top_p < 1) & (mass >= top_p * total))
            floor = key + 1
    tl.store(out + place, token)


def choose_tokens(logits: Tensor, positions: Tensor, sampling: RowSampling) -> Tensor:
    """Return ``(num_rows, width)`` int64: the target's token after each column.

    Args:
        logits: ``(num_rows, width, vocab_size)``, contiguous, each with a finite score.
        positions: ``(num_rows, width)`` int64, absolute position of the token that is chosen.
        sampling: of each row, on the device of the logits.
    """
    num_rows, width, vocab_size = logits.shape
    chosen = torch.empty((num_rows, width), dtype=torch.int64, device=logits.device)
    _choose_kernel[(num_rows, width)](
        logits.contiguous(),
        positions.contiguous(),
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.keys,
        chosen,
        width,
        vocab_size,
        BLOCK=min(next_power_of_2(vocab_size), _MAX_BLOCK),
        num_warps=8,
    )
    return chosen
