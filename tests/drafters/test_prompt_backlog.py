"""Prompts that are indexed in slices end up where whole ones do, and no step does more."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.drafters import Drafter, RequestId
from freedraft.drafters.edit import EditConfig, EditDrafter
from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.prompt_backlog import PromptBacklog
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter
from freedraft.drafters.tree import IntArray

COMPILED = os.environ.get("NUMBA_DISABLE_JIT") != "1"
TOKENS = st.lists(st.integers(0, 3), max_size=60)


class Log:
    """Remembers what was indexed, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[RequestId, list[int], bool]] = []

    def __call__(self, request_id: RequestId, tokens: IntArray, is_output: bool) -> None:
        self.calls.append((request_id, tokens.tolist(), is_output))

    def text(self, request_id: RequestId, is_output: bool) -> list[int]:
        """Return the tokens of one kind that were indexed for a request."""
        parts = [part for name, part, kind in self.calls if (name, kind) == (request_id, is_output)]
        return [token for part in parts for token in part]


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


def test_a_step_indexes_no_more_than_its_slice() -> None:
    log = Log()
    backlog = PromptBacklog(4, log)
    backlog.start("a", ids(1, 2, 3))
    backlog.start("b", ids(4, 5, 6))
    assert log.calls == [("a", [1, 2, 3], False), ("b", [4], False)]
    backlog.start("c", ids(*range(10)))
    assert len(log.calls) == 2
    backlog.begin_step()
    assert log.calls[2:] == [("b", [5, 6], False), ("c", [0, 1], False)]
    assert "b" not in backlog and "c" in backlog


def test_the_shortest_rest_comes_first() -> None:
    log = Log()
    backlog = PromptBacklog(2, log)
    backlog.start("long", ids(*range(100)))
    backlog.start("short", ids(7, 8))
    backlog.begin_step()
    assert log.calls[-1] == ("short", [7, 8], False)


def test_what_is_emitted_meanwhile_comes_behind_the_prompt() -> None:
    log = Log()
    backlog = PromptBacklog(2, log)
    prompt = list(range(100))
    backlog.start("a", ids(*prompt))
    emitted = ids(8, 9)
    backlog.extend("a", emitted)
    emitted[:] = 0  # the caller's array is its own
    for _ in range(50):
        backlog.begin_step()
    assert log.text("a", is_output=False) == prompt
    assert log.calls[-1] == ("a", [8, 9], True)


def test_a_prompt_comes_in_even_where_nobody_asks_for_drafts() -> None:
    log = Log()
    backlog = PromptBacklog(2, log)
    backlog.start("a", ids(*range(100)))
    for token in range(20):
        backlog.extend("a", ids(token))
    assert "a" not in backlog
    assert log.text("a", is_output=True) == list(range(20))


def test_dropped_requests_are_not_indexed() -> None:
    log = Log()
    backlog = PromptBacklog(1, log)
    backlog.start("a", ids(1, 2, 3))
    backlog.drop("a")
    backlog.begin_step()
    assert log.calls == [("a", [1], False)]


@given(st.lists(TOKENS, max_size=4), st.integers(1, 9))
def test_everything_is_indexed_once_and_in_order(
    prompts: list[list[int]], slice_tokens: int
) -> None:
    log = Log()
    backlog = PromptBacklog(slice_tokens, log)
    for name, prompt in enumerate(prompts):
        backlog.start(name, np.array(prompt, np.int32))
    for _ in range(300):
        before = sum(len(tokens) for _, tokens, _ in log.calls)
        backlog.begin_step()
        assert sum(len(tokens) for _, tokens, _ in log.calls) - before <= slice_tokens
    for name, prompt in enumerate(prompts):
        assert name not in backlog
        assert log.text(name, is_output=False) == prompt


def drafters(slice_tokens: int | None) -> list[Drafter]:
    small = {"capacity": 1 << 14}
    suffix = SuffixConfig(
        max_bytes=1 << 24, max_namespace_bytes=1 << 20, learning_rate=0.0,
        slice_tokens=slice_tokens or 1 << 20,
    )  # fmt: skip
    return [
        NgramDrafter(NgramConfig(slice_tokens=slice_tokens, **small)),
        EditDrafter(EditConfig(slice_tokens=slice_tokens, **small)),
        SuffixDrafter(suffix),
    ]


def tree_of(drafter: Drafter, request_id: RequestId) -> tuple[list[int], list[int]]:
    (tree,) = drafter.propose([request_id], 12, 8)
    tree.validate()
    return tree.token_ids.tolist(), tree.parents.tolist()


@given(prompt=TOKENS, output=TOKENS, slice_tokens=st.integers(1, 20))
@settings(max_examples=30 if COMPILED else 4, deadline=None)
def test_sliced_drafters_end_up_where_whole_ones_do(
    prompt: list[int], output: list[int], slice_tokens: int
) -> None:
    for whole, sliced in zip(drafters(None), drafters(slice_tokens), strict=True):
        for drafter in (whole, sliced):
            drafter.start("a", prompt)
            for token in output:
                drafter.extend("a", [token])
        for _ in range(130):
            sliced.propose(["other"], 1, 1)
            sliced.propose(["a"], 0, 0)
            sliced.extend("a", [])
        while isinstance(sliced, SuffixDrafter) and sliced._requests["a"].pending.size:
            sliced.propose(["a"], 1, 1)
        assert tree_of(sliced, "a") == tree_of(whole, "a")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_many_long_prompts_at_once(number: int) -> None:
    """Requests that wait have no drafts, may be cut back and may end; all others are served."""
    drafter = drafters(64)[number]
    text = [*range(200), *range(200)]
    for name in "abcdef":
        drafter.start(name, text)
    drafter.truncate("a", 300)
    drafter.stop("b")
    drafter.start("c", text[:250])  # again
    (tree,) = drafter.propose(["b"], 4, 4)
    assert tree.num_nodes == 0
    for _ in range(60):
        drafter.propose(list("abcdef"), 4, 4)
    for name, following in {"a": 100, "c": 50}.items():
        (tree,) = drafter.propose([name], 4, 4)
        assert tree.token_ids[0] == following


@pytest.mark.parametrize("config", [NgramConfig, EditConfig])
def test_a_slice_holds_a_token_at_least(config: type) -> None:
    with pytest.raises(ValueError, match="expected slice_tokens >= 1 or None, got 0"):
        config(slice_tokens=0)
