"""The in-place cache against plain lists of tokens, and inside a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB_SIZE, tiny_llama
from torch import Tensor
from transformers import DynamicCache

from freedraft.verifier.caches import keep_accepted, keepers_of
from freedraft.verifier.cpu.contiguous_cache import ContiguousCache, ContiguousLayer

HEADS, KEY_DIM, VALUE_DIM = 2, 3, 5
Rows = list[list[int]]  # of each row, the labels of its tokens


def layers_of(cache: ContiguousCache) -> list[Any]:
    return list(cache.layers)


def states(rows: Rows, head_dim: int, sign: int) -> Tensor:
    """Return ``(batch, heads, tokens, head_dim)`` in which every number tells its token's label."""
    labels = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), 1, -1, 1)
    place = torch.arange(HEADS * head_dim, dtype=torch.float64).reshape(1, HEADS, 1, head_dim)
    return sign * (labels * 100 + place)


def append(cache: ContiguousCache, rows: Rows, num_layers: int = 2) -> None:
    for layer in range(num_layers):
        cache.update(states(rows, KEY_DIM, 1 + layer), states(rows, VALUE_DIM, -1 - layer), layer)


def check(cache: ContiguousCache, rows: Rows) -> None:
    assert cache.get_seq_length() == len(rows[0])
    assert cache.get_mask_sizes(3, 0) == (len(rows[0]) + 3, 0)
    for number, layer in enumerate(layers_of(cache)):
        assert isinstance(layer, ContiguousLayer)
        assert layer.keys is not None and layer.values is not None
        torch.testing.assert_close(layer.keys, states(rows, KEY_DIM, 1 + number), rtol=0, atol=0)
        expected = states(rows, VALUE_DIM, -1 - number)
        torch.testing.assert_close(layer.values, expected, rtol=0, atol=0)


def draw_offsets(data: st.DataObject, length: int) -> list[int]:
    """Return increasing offsets, as an accepted path has them."""
    return sorted(data.draw(st.sets(st.integers(0, length - 1)))) if length else []


@settings(max_examples=150, deadline=None)
@given(data=st.data(), batch=st.integers(1, 3))
def test_any_sequence_of_operations_equals_lists(data: st.DataObject, batch: int) -> None:
    cache = ContiguousCache(data.draw(st.sampled_from([0, 700])))
    rows: Rows = [[] for _ in range(batch)]
    label = 0
    for _ in range(data.draw(st.integers(1, 12))):
        verbs = ["append", "crop", "compact", "compact rows", "assign", "write", "select"]
        verb = data.draw(st.sampled_from(verbs if rows[0] else ["append"]))
        length = len(rows[0])
        if verb == "append":
            count = data.draw(st.sampled_from([1, 2, 7, 90, 300]))
            new = [[label + row * 1000 + i for i in range(count)] for row in range(len(rows))]
            label += count
            append(cache, new)
            rows = [row + more for row, more in zip(rows, new, strict=True)]
        elif verb == "crop":
            count = data.draw(st.integers(0, length))
            cache.crop(-count)
            rows = [row[: length - count] for row in rows]
        elif verb == "compact":
            start = data.draw(st.integers(max(0, length - 9), length))
            kept = draw_offsets(data, length - start)
            as_tensor = data.draw(st.booleans())
            cache.compact(start, torch.tensor(kept, dtype=torch.int64) if as_tensor else kept)
            rows = [row[:start] + [row[start + i] for i in kept] for row in rows]
        elif verb == "compact rows":
            start = data.draw(st.integers(max(0, length - 9), length - 1))
            count = data.draw(st.integers(1, length - start))
            picks = st.lists(st.integers(0, length - start - 1), min_size=count, max_size=count)
            paths = [data.draw(picks) for _ in rows]
            cache.compact(start, torch.tensor(paths))
            pairs = zip(rows, paths, strict=True)
            rows = [row[:start] + [row[start + i] for i in path] for row, path in pairs]
        elif verb == "assign":  # as code for DynamicLayer does it
            first = data.draw(st.integers(0, length - 1))
            for layer in layers_of(cache):
                layer.keys, layer.values = layer.keys[:, :, first:], layer.values[:, :, first:]
            rows = [row[first:] for row in rows]
        elif verb == "write":
            slot = data.draw(st.integers(0, length - 1))
            for layer in layers_of(cache):
                layer.keys[0, :, slot] = layer.keys[-1, :, 0]
                layer.values[0, :, slot] = layer.values[-1, :, 0]
            rows[0][slot] = rows[-1][0]
        else:
            picked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=3))
            cache.batch_select_indices(torch.tensor(picked))
            rows = [list(rows[row]) for row in picked]
        check(cache, rows)


def test_appending_token_by_token_rarely_moves_the_storage() -> None:
    cache = ContiguousCache()
    append(cache, [[0]], num_layers=1)
    capacities = set()
    for label in range(1, 3000):
        append(cache, [[label]], num_layers=1)
        capacities.add(layers_of(cache)[0].capacity)
    check(cache, [list(range(3000))])
    assert len(capacities) <= 8
    assert max(capacities) <= 3000 * 1.5 + 64


def test_min_capacity_is_room_from_the_start() -> None:
    cache = ContiguousCache(1000)
    append(cache, [[0]])
    storage = layers_of(cache)[1].keys.data_ptr()
    append(cache, [list(range(1, 1000))])
    assert layers_of(cache)[1].keys.data_ptr() == storage


def test_cutting_back_and_appending_leaves_the_storage_where_it_is() -> None:
    cache = ContiguousCache()
    append(cache, [list(range(50))])
    storage = layers_of(cache)[0].values.data_ptr()
    for _ in range(20):
        append(cache, [[50, 51, 52, 53, 54]])
        cache.compact(50, [0, 2, 4])
        check(cache, [[*range(50), 50, 52, 54]])
        cache.crop(-3)
    assert layers_of(cache)[0].values.data_ptr() == storage


def test_made_in_inference_mode_and_used_outside() -> None:
    cache = ContiguousCache()
    with torch.inference_mode():
        append(cache, [[1, 2]])
    with torch.no_grad():
        append(cache, [[3]])
    check(cache, [[1, 2, 3]])


def test_states_are_stored_without_a_graph() -> None:
    cache = ContiguousCache()
    new = torch.ones(1, HEADS, 1, KEY_DIM, requires_grad=True)
    keys, _ = cache.update(new, new, 0)
    assert not keys.requires_grad


def test_reset_and_reuse() -> None:
    cache = ContiguousCache()
    append(cache, [[1, 2], [3, 4]])
    cache.reset()
    assert cache.get_seq_length() == 0
    append(cache, [[5]])
    check(cache, [[5]])


@pytest.mark.parametrize(
    ("start", "kept", "message"),
    [
        (5, [], "start from 0 to 4, got 5"),
        (-1, [], "start from 0 to 4, got -1"),
        (2, [0, 2], r"offsets from 0 to 1, got \[0, 2\]"),
        (2, [-1], r"offsets from 0 to 1, got \[-1\]"),
    ],
)
def test_compact_names_a_wrong_argument(start: int, kept: list[int], message: str) -> None:
    cache = ContiguousCache()
    append(cache, [[1, 2, 3, 4]])
    with pytest.raises(ValueError, match=message):
        cache.compact(start, kept)
    check(cache, [[1, 2, 3, 4]])


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="at least 0, got -1"):
        ContiguousCache(-1)
    cache = ContiguousCache()
    append(cache, [[1, 2]])
    with pytest.raises(ValueError, match="at most 0, got 1"):
        cache.crop(1)
    with pytest.raises(ValueError, match="at most 2 tokens, got 3"):
        cache.crop(-3)
    with pytest.raises(ValueError, match=r"keys of shape \(1, 2, tokens, 3\), got \(2, 2, 1, 3\)"):
        append(cache, [[1], [2]])


def test_the_verifier_takes_it_and_compacts_ragged_rows() -> None:
    cache = ContiguousCache()
    keepers_of(cache)
    append(cache, [[0, 1, 2, 3], [10, 11, -1, -1]])
    append(cache, [[4, 5, 6], [12, 13, 14]])
    assert keep_accepted(cache, [4, 2], 4, [[0, 2], [0, 1]]) == [6, 4]
    assert layers_of(cache)[0].keys is not None
    torch.testing.assert_close(
        layers_of(cache)[0].keys[:1], states([[0, 1, 2, 3, 4, 6]], KEY_DIM, 1)
    )
    second = layers_of(cache)[0].keys[1:, :, :4]
    torch.testing.assert_close(second, states([[10, 11, 12, 13]], KEY_DIM, 1))


def test_a_model_gives_the_same_logits_as_with_its_own_cache() -> None:
    model = tiny_llama()
    ours, theirs = ContiguousCache(), DynamicCache()
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for length in (300, 5, 1, 1):
            ids = torch.randint(VOCAB_SIZE, (2, length), generator=generator)
            got = model(input_ids=ids, cache=ours).logits
            torch.testing.assert_close(got, model(input_ids=ids, cache=theirs).logits)


def test_generate_accepts_it() -> None:
    model: Any = tiny_llama()
    ids = torch.arange(1, 9)[None]
    options = {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, **options)
    assert torch.equal(model.generate(ids, cache=ContiguousCache(), **options), expected)
