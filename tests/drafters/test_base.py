"""Token ids from outside: what is taken, what is copied, what is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.drafters.base import as_token_ids
from freedraft.drafters.catalog import create_drafter


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.sampled_from(["list", "int64", "strided"]))
def test_integers_of_any_kind_become_int32(values: list[int], kind: str) -> None:
    given_ids: npt.ArrayLike = values
    if kind == "int64":
        given_ids = np.array(values, np.int64)
    elif kind == "strided":
        given_ids = np.array(values, np.int64).repeat(3)[::-3][::-1]
    token_ids = as_token_ids(given_ids)
    assert token_ids.dtype == np.int32 and token_ids.flags.c_contiguous
    assert token_ids.flags.writeable and token_ids.tolist() == values


def test_an_int32_array_is_copied_only_where_kernels_would_refuse_it() -> None:
    own = np.arange(6, dtype=np.int32)
    assert as_token_ids(own) is own
    assert as_token_ids(own[::2]).flags.c_contiguous
    own.setflags(write=False)
    copied = as_token_ids(own)
    assert copied.flags.writeable and copied.tolist() == own.tolist()
    assert not np.shares_memory(copied, own)


@pytest.mark.parametrize("name", ["ngram", "suffix", "edit", "recycling", "blend"])
def test_drafters_take_read_only_arrays(name: str) -> None:
    prompt = np.array([1, 2, 3, 4] * 8, np.int32)
    prompt.setflags(write=False)
    drafter = create_drafter(name)
    drafter.start("a", prompt)
    drafter.extend("a", prompt[:2])
    if name != "recycling":  # which knows nothing before the target has spoken
        assert drafter.propose(["a"], 4, 4)[0].token_ids[0] == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1]], "one dimension"),
        ([1.5], "integer dtype"),
        ([2**31], "within int32, got 2147483648..2147483648"),
        (np.array([5, 2**64 - 1], np.uint64), "within int32, got 5..18446744073709551615"),
        ([-(2**31) - 1, 7], "within int32, got -2147483649..7"),
    ],
)
def test_other_values_are_refused(values: npt.ArrayLike, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_token_ids(values)
