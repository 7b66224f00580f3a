"""The steps of one request as a decode loop would take them, walked along a recorded response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from ..drafters import CandidateTree, Drafter, Feedback
from ..drafters.base import as_token_ids
from ..drafters.tree import IntArray, accepted_path

Cut = Callable[[CandidateTree], CandidateTree]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSteps:
    """What each step of one request did; the prefill, which emits the first token, is none.

    Attributes:
        prompt_length: tokens of the prompt.
        num_tokens: tokens of the response.
        drafted: ``(num_steps,)`` int32, nodes verified.
        emitted: ``(num_steps,)`` int32, tokens emitted, all at least 1.
        draft_seconds: ``(num_steps,)`` float64, time inside the drafter on this machine.
    """

    prompt_length: int
    num_tokens: int
    drafted: IntArray
    emitted: IntArray
    draft_seconds: npt.NDArray[np.float64]

    @property
    def num_steps(self) -> int:
        """Target steps after the prefill."""
        return int(self.drafted.size)

    def contexts(self) -> IntArray:
        """Return ``(num_steps,)``: tokens in the cache when each step begins."""
        before = np.cumsum(self.emitted, dtype=np.int32) - self.emitted
        return np.asarray(before + self.prompt_length, np.int32)


def record_steps(
    drafter: Drafter,
    prompt_ids: npt.ArrayLike,
    response_ids: npt.ArrayLike,
    *,
    max_nodes: int,
    request_id: int = 0,
    chains: bool = False,
    cut: Cut | None = None,
    clock: Callable[[], float] = perf_counter,
) -> RecordedSteps:
    """Walk a response with a drafter, in the order of calls of the decode loop.

    Args:
        drafter: it learns from the request and is told of its end.
        prompt_ids: ``(prompt_length,)``, not empty.
        response_ids: ``(num_tokens,)`` what was emitted; may be empty.
        max_nodes: most nodes of a step, also the largest depth.
        request_id: no running request of the drafter's.
        chains: verify the best chain of each tree, as engines without trees do.
        cut: what a budget makes of each tree, after it is cut to a chain.
        clock: seconds; the wall clock by default.

    Raises:
        ValueError: no prompt, or a negative ``max_nodes``.
    """
    prompt, response = as_token_ids(prompt_ids), as_token_ids(response_ids)
    if not prompt.size or max_nodes < 0:
        raise ValueError(
            f"expected a prompt and max_nodes >= 0, got {prompt.size} tokens and {max_nodes}"
        )
    drafted: list[int] = []
    emitted: list[int] = []
    seconds: list[float] = []
    drafter.start(request_id, prompt)
    drafter.extend(request_id, response[:1])
    position = 1
    while position < response.size:
        # A step emits one token more than it accepts, so a response's last token is not drafted.
        room = min(int(response.size) - position - 1, max_nodes)
        begin = clock()
        tree = CandidateTree.empty()
        if room > 0:
            (tree,) = drafter.propose([request_id], max_nodes, room)
        if chains:
            tree = tree.best_chain()
        spent = clock() - begin
        if cut is not None:
            tree = cut(tree)
        num_emitted, learning = _learn(drafter, request_id, tree, response[position:], clock)
        drafted.append(tree.num_nodes)
        emitted.append(num_emitted)
        seconds.append(spent + learning)
        position += num_emitted
    drafter.stop(request_id)
    return RecordedSteps(
        int(prompt.size),
        int(response.size),
        np.array(drafted, np.int32),
        np.array(emitted, np.int32),
        np.array(seconds, np.float64),
    )


def plain_steps(prompt_length: int, num_tokens: int) -> RecordedSteps:
    """Return the steps of a request without drafts.

    Args:
        prompt_length: at least 1.
        num_tokens: of the response.
    """
    num_steps = max(num_tokens - 1, 0)
    return RecordedSteps(
        prompt_length,
        num_tokens,
        np.zeros(num_steps, np.int32),
        np.ones(num_steps, np.int32),
        np.zeros(num_steps, np.float64),
    )


def total_emitted(requests: Sequence[RecordedSteps]) -> int:
    """Return the tokens of all responses."""
    return sum(request.num_tokens for request in requests)


def _learn(
    drafter: Drafter,
    request_id: int,
    tree: CandidateTree,
    left: IntArray,
    clock: Callable[[], float],
) -> tuple[int, float]:
    """Tell the drafter what the step emitted; return how many tokens, and the time it took."""
    accepted = accepted_path(tree, left)
    tokens = left[: accepted.size + 1]
    choices = np.full(tree.num_nodes + 1, -1, np.int32)
    choices[np.concatenate(([0], accepted + 1))[: tokens.size]] = tokens
    begin = clock()
    drafter.observe(request_id, tree, Feedback(tokens, accepted, choices))
    drafter.extend(request_id, tokens)
    return int(tokens.size), clock() - begin
