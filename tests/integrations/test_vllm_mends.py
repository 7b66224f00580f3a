"""What replaces stock code of vLLM does what that code says it does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.integrations.vllm_mends import expand_batch_to_tokens

torch = pytest.importorskip("torch")

ROWS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.25]), st.integers(0, 4)), min_size=1)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.booleans())
def test_values_are_repeated_for_each_token(rows: list[tuple[float, int]], whole: bool) -> None:
    dtype = torch.int32 if whole else torch.float32
    values = [int(4 * value) if whole else value for value, _ in rows]
    counts = [count for _, count in rows]
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    expected = [
        1 if value == 0 else value
        for value, count in zip(values, counts, strict=True)
        for _ in range(count)
    ]
    expanded = expand_batch_to_tokens(
        torch.tensor(values, dtype=dtype), ends, sum(counts), replace_from=0, replace_to=1
    )
    assert expanded.dtype == dtype
    assert expanded.tolist() == expected


def test_the_mends_hold_in_real_vllm() -> None:
    pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops import topk_topp_sampler

    from freedraft.integrations.vllm_mends import mend_stock_faults

    assert mend_stock_faults() == mend_stock_faults()  # a second call changes nothing
    assert rejection_sampler.expand_batch_to_tokens is expand_batch_to_tokens
    nothing = torch.zeros(0, 8)
    assert (
        topk_topp_sampler.apply_top_k_only(nothing, torch.zeros(0, dtype=torch.int32)).numel() == 0
    )
    kept = topk_topp_sampler.apply_top_k_only(torch.arange(4.0)[None], torch.tensor([2]))
    assert kept.isneginf().tolist() == [[True, True, False, False]]
