"""What a drafter would propose, and how much of it would be accepted, at each token of a response.

A simulated engine verifies other numbers of nodes at other loads, so it comes by other tokens than
a replay with a fixed budget. The table has every token, and every number of nodes up to a limit:
trees are cut by path probability, and a path's probability never grows going down, so the nodes
that a smaller budget keeps are the most probable ones of the largest tree.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from ...drafters import CandidateTree, Drafter, Feedback
from ...drafters.base import as_token_ids
from ...drafters.tree import FloatArray, IntArray, accepted_path

ByteArray = npt.NDArray[np.uint8]
MAX_NODES = 255


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceTable:
    """One request's drafts.

    Attributes:
        prompt_length: tokens of the prompt.
        num_drafted: ``(num_tokens,)`` uint8, nodes proposed before each token of the response;
            0 before the first one, which the prefill emits.
        num_accepted: ``(num_tokens, max_nodes + 1)`` uint8, of them accepted where so many of the
            most probable are verified.
        probs: ``(num_tokens, max_nodes)`` float32, path probabilities in falling order, 0 behind.
        draft_seconds: what asking the drafter once takes, median on this machine.
    """

    prompt_length: int
    num_drafted: ByteArray
    num_accepted: ByteArray
    probs: FloatArray
    draft_seconds: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens of the response."""
        return int(self.num_drafted.size)

    @property
    def max_nodes(self) -> int:
        """Most nodes that a step of the simulation may verify."""
        return int(self.probs.shape[1])


def tabulate(
    drafter: Drafter,
    prompt_ids: npt.ArrayLike,
    response_ids: npt.ArrayLike,
    *,
    max_nodes: int,
    request_id: int = 0,
    chains: bool = True,
) -> AcceptanceTable:
    """Ask a drafter before each token of a response.

    The drafter hears of each token by itself, as if none had been drafted; what it learns of its
    own drafts' fate it learns a little faster than in an engine.

    Args:
        drafter: it learns from the request and is told of its end.
        prompt_ids: ``(prompt_length,)``, not empty.
        response_ids: ``(num_tokens,)``.
        max_nodes: of the table, at most :data:`MAX_NODES`.
        request_id: no running request of the drafter's.
        chains: take the best chain of each tree, as engines without trees do.

    Raises:
        ValueError: no prompt, or ``max_nodes`` out of its range.
    """
    prompt, response = as_token_ids(prompt_ids), as_token_ids(response_ids)
    if not prompt.size or not 0 <= max_nodes <= MAX_NODES:
        raise ValueError(
            f"expected a prompt and 0 <= max_nodes <= {MAX_NODES}, got {prompt.size} tokens and "
            f"{max_nodes}"
        )
    num_drafted = np.zeros(response.size, np.uint8)
    num_accepted = np.zeros((response.size, max_nodes + 1), np.uint8)
    probs = np.zeros((response.size, max_nodes), np.float32)
    seconds: list[float] = []
    drafter.start(request_id, prompt)
    drafter.extend(request_id, response[:1])
    for position in range(1, response.size):
        room = min(int(response.size) - position - 1, max_nodes)
        tree = CandidateTree.empty()
        if room > 0:
            begin = perf_counter()
            (tree,) = drafter.propose([request_id], max_nodes, room)
            seconds.append(perf_counter() - begin)
        if chains:
            tree = tree.best_chain()
        path = accepted_path(tree, response[position:])
        order = np.argsort(-tree.probs, kind="stable")
        ranks = np.empty(tree.num_nodes, np.int64)
        ranks[order] = np.arange(tree.num_nodes)
        num_drafted[position] = tree.num_nodes
        probs[position, : tree.num_nodes] = tree.probs[order]
        # Cut to n nodes, a tree keeps an accepted node where fewer than n are more probable.
        num_accepted[position] = (ranks[path][:, None] < np.arange(max_nodes + 1)).sum(0)
        token = response[position : position + 1]
        drafter.observe(request_id, tree, _feedback(tree, token))
        drafter.extend(request_id, token)
    drafter.stop(request_id)
    typical = statistics.median(seconds) if seconds else 0.0
    return AcceptanceTable(int(prompt.size), num_drafted, num_accepted, probs, typical)


def empty_table(prompt_length: int, num_tokens: int) -> AcceptanceTable:
    """Return the table of a request for which nothing is drafted."""
    return AcceptanceTable(
        prompt_length,
        np.zeros(num_tokens, np.uint8),
        np.zeros((num_tokens, 1), np.uint8),
        np.zeros((num_tokens, 0), np.float32),
    )


def _feedback(tree: CandidateTree, token: IntArray) -> Feedback:
    """Return what a target would say that committed one token."""
    choices = np.full(tree.num_nodes + 1, -1, np.int32)
    choices[0] = token[0]
    return Feedback(token, accepted_path(tree, token), choices)
