"""How far drafted chains really come, learned from all that were offered, verified or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..drafters import CandidateTree, RequestId

FloatArray64 = npt.NDArray[np.float64]

# Promised shares of a length that are told apart: where drafts pay on a CPU, the last ones decide.
_EDGES = np.array([0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
_PRIOR = 10.0  # chains for which a promise is believed before there is a record
# Of what long chains promise, about nine tenths come true, and less of the best of several
# lengths; a chain that fails costs many steps, so the record begins with less.
_CAME_TRUE = 0.8
_MEMORY = 200.0  # chains over which the record is averaged


@dataclass(slots=True)
class _Pending:
    """A chain that was offered: how many of its tokens the text has spelled so far."""

    token_ids: list[int]
    bins: list[int]  # of each length, the promise's
    num_matched: int = 0


class ChainForecast:
    """Corrects the expected number of accepted tokens, by length and by what was promised.

    Once the text has gone on, it tells of any chain how far it would have been accepted, so the
    record grows while nothing is verified, and costs no verification.
    """

    def __init__(self, lengths: list[int]) -> None:
        """Start without a record.

        Args:
            lengths: chain lengths that are told apart, increasing.
        """
        self._lengths = lengths
        self._pending: dict[RequestId, list[_Pending]] = {}
        self._weight = np.zeros((len(lengths), _EDGES.size + 1))
        self._came_true = np.zeros_like(self._weight)  # shares of the length, summed

    def offer(self, request_id: RequestId, chain: CandidateTree) -> FloatArray64:
        """Note a chain and return what to expect of it.

        Returns:
            ``(num_lengths,)`` expected accepted tokens of each length that the chain reaches.
        """
        lengths = [length for length in self._lengths if length <= chain.num_nodes]
        if not lengths:
            return np.zeros(0)
        sizes = np.array(lengths)
        promised = np.cumsum(chain.probs, dtype=np.float64)[sizes - 1] / sizes
        bins = np.searchsorted(_EDGES, promised)
        rows = np.arange(sizes.size)
        weight, came_true = self._weight[rows, bins], self._came_true[rows, bins]
        share = (_PRIOR * _CAME_TRUE * promised + came_true) / (_PRIOR + weight)
        pending = _Pending(chain.token_ids[: lengths[-1]].tolist(), bins.tolist())
        self._pending.setdefault(request_id, []).append(pending)
        return np.asarray(share * sizes)

    def advance(self, request_id: RequestId, token_ids: Sequence[int]) -> None:
        """Take in how the text went on, and settle the chains that it decides."""
        going_on = []
        for pending in self._pending.get(request_id, ()):
            if not self._settle(pending, token_ids):
                going_on.append(pending)
        self._pending[request_id] = going_on

    def forget(self, request_id: RequestId) -> None:
        """Drop the open chains of a request that has ended."""
        self._pending.pop(request_id, None)

    def _settle(self, pending: _Pending, token_ids: Sequence[int]) -> bool:
        for token in token_ids:
            if pending.token_ids[pending.num_matched] != token:
                break
            pending.num_matched += 1
            if pending.num_matched == len(pending.token_ids):
                break
        else:
            return False
        for row, column in enumerate(pending.bins):
            length = self._lengths[row]
            fade = 1 - 1 / _MEMORY
            self._weight[row, column] = self._weight[row, column] * fade + 1
            came_true = min(pending.num_matched, length) / length
            self._came_true[row, column] = self._came_true[row, column] * fade + came_true
        return True
