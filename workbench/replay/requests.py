"""A recorded request in tokens, as a replay walks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...drafters.base import as_token_ids
from ...drafters.tree import FloatArray, IntArray
from ..traces import TokenTrace
from .match_lengths import match_buckets

ByteArray = npt.NDArray[np.uint8]
LongArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Alternatives:
    """What the target thought likely at each response token.

    Attributes:
        offsets: ``(response_length + 1,)`` int64, where each token's entries begin.
        token_ids: ``(num_entries,)`` int32, the emitted token first.
        probs: ``(num_entries,)`` float32 probabilities.
    """

    offsets: LongArray
    token_ids: IntArray
    probs: FloatArray

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[tuple[int, float]]]) -> Alternatives:
        """Pack one row of (token id, log-probability) a response token."""
        counts = np.array([len(row) for row in rows], np.int64)
        flat = [pair for row in rows for pair in row]
        return cls(
            np.concatenate(([0], np.cumsum(counts))),
            as_token_ids([pair[0] for pair in flat]),
            np.exp(np.array([pair[1] for pair in flat], np.float64)).astype(np.float32),
        )

    def row(self, position: int) -> dict[int, float]:
        """Return the probabilities by token id at a response token."""
        part = slice(int(self.offsets[position]), int(self.offsets[position + 1]))
        return dict(zip(self.token_ids[part].tolist(), self.probs[part].tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class TokenRequest:
    """One request in the tokens of one tokenizer.

    Attributes:
        place: ``file:line`` of the log.
        workload: what kind of traffic it is.
        prompt_ids: ``(prompt_length,)`` int32.
        response_ids: ``(response_length,)`` int32.
        arrival: seconds; NaN where unknown.
        finish: seconds; NaN where unknown.
        alternatives: where the log has log-probabilities.
        matches: ``(response_length,)`` uint8, bucket of the match length before each response
            token, see :mod:`.match_lengths`.
    """

    place: str
    workload: str
    prompt_ids: IntArray
    response_ids: IntArray
    arrival: float = float("nan")
    finish: float = float("nan")
    alternatives: Alternatives | None = None
    matches: ByteArray = field(default_factory=lambda: np.zeros(0, np.uint8))

    @classmethod
    def from_trace(cls, trace: TokenTrace) -> TokenRequest:
        """Take a trace over, with its match lengths."""
        return cls(
            trace.trace_id,
            trace.workload,
            trace.prompt_ids,
            trace.response_ids,
            matches=match_buckets(trace.prompt_ids, trace.response_ids),
        )


class RequestSource(Protocol):
    """Where requests come from by number: memory, or files."""

    def read(self, number: int) -> TokenRequest:
        """Return one request."""
        ...


@dataclass(frozen=True, slots=True)
class ListSource:
    """Requests in memory."""

    requests: Sequence[TokenRequest]

    def read(self, number: int) -> TokenRequest:
        """Return one request."""
        return self.requests[number]


OnTokens = Callable[[int], None]
"""Told how many response tokens were walked since the last call."""
