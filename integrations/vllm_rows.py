"""What a proposer must know of vLLM's rows and is not told: whose they are and what they may take.

The runner that holds the answers stands on the call stack while it makes its proposer. Where it
cannot be found, rows are told apart by their text.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..drafters import RequestId
from ..drafters.tree import IntArray
from .prefix_matcher import PrefixMatcher

SALT_ATTRIBUTE = "freedraft_cache_salt"
"""Where the scheduler's side writes a new request's cache salt, ``None`` when it has none."""
LIMIT_ARGUMENT = "freedraft_max_tokens"
"""Extra argument of a request: most drafted tokens of a step, 0 for none."""
PREDICTION_ARGUMENT = "freedraft_prediction"
"""Extra argument of a request: token ids of its probable output."""

_DEEPEST = 64  # frames between a proposer's constructor and the runner's, with room to spare
_NO_TOKEN = -1


@dataclass(slots=True)
class Row:
    """One row that drafts are wanted for.

    Attributes:
        index: in vLLM's batch.
        request_id: vLLM's, or a synthetic one.
        token_ids: ``(num_tokens,)`` int32, the prompt included; vLLM's own memory.
        namespace: which earlier requests it may learn from.
        num_prompt_tokens: how many of the tokens are the prompt, if known.
        num_verified: how many tokens of its last draft were verified, if known.
        most: most tokens that a draft may hold.
        num_left: most tokens that the request may still emit.
        prediction: token ids of the probable output; told once.
    """

    index: int
    request_id: RequestId
    token_ids: IntArray
    namespace: str
    num_prompt_tokens: int | None = None
    num_verified: int | None = None
    most: int = sys.maxsize
    num_left: int = sys.maxsize
    prediction: Sequence[int] | None = None


@dataclass(slots=True)
class _Request:
    """What is asked of a request once, when it is first seen."""

    namespace: str
    most: int
    max_tokens: int | None
    prediction: Sequence[int] | None
    has_embeddings: bool


@dataclass(slots=True)
class _Step:
    """What the scheduler said about a step."""

    num_tokens_to_draft: int | None = None
    verified: Mapping[str, Sequence[int]] | None = None


@dataclass(slots=True)
class RunnerRows:
    """Reads a runner's batch, which is never changed here.

    Attributes:
        shares: whether requests may learn from others at all.
    """

    runner: weakref.ref[Any]
    shares: bool
    _step: _Step = field(default_factory=_Step)
    _salts: dict[str, str | None] = field(default_factory=dict)
    _requests: dict[str, _Request] = field(default_factory=dict)
    _num_alone: int = 0  # requests that had a namespace of their own

    def begin_step(self, scheduler_output: Any) -> list[str]:
        """Take in what the scheduler says of the step; return the requests that have ended."""
        for new in scheduler_output.scheduled_new_reqs:
            if hasattr(new, SALT_ATTRIBUTE):
                self._salts[new.req_id] = getattr(new, SALT_ATTRIBUTE)
        finished = list(scheduler_output.finished_req_ids)
        for request_id in finished:
            self._salts.pop(request_id, None)
            self._requests.pop(request_id, None)
        self._step = _Step(
            getattr(scheduler_output, "num_spec_tokens_to_schedule", None),
            scheduler_output.scheduled_spec_decode_tokens,
        )
        return finished

    def take_step(self) -> int | None:
        """Return how many tokens the scheduler wants drafted; forget what it said."""
        wanted, self._step = self._step.num_tokens_to_draft, _Step()
        return wanted

    def read(
        self, indices: Sequence[int], num_tokens: Sequence[int], token_ids: IntArray
    ) -> list[Row]:
        """Return the rows of a step.

        Args:
            indices: of the rows in vLLM's batch.
            num_tokens: of each of these rows, how many of its tokens are committed.
            token_ids: ``(num_rows, max_model_len)`` int32.
        """
        runner = self._living_runner()
        batch = runner.input_batch
        verified = self._step.verified
        rows = []
        for index, size in zip(indices, num_tokens, strict=True):
            request_id = batch.req_ids[index]
            state = runner.requests[request_id]
            request = self._requests.get(request_id)
            is_new = request is None
            if request is None:
                request = self._requests[request_id] = self._ask(request_id, state)
            tokens = token_ids[index, :size]
            if request.has_embeddings:  # what stands there for embeddings is not text
                tokens = np.where(batch.is_token_ids[index, :size], tokens, np.int32(_NO_TOKEN))
            num_prompt = int(batch.num_prompt_tokens[index])
            num_left = sys.maxsize
            if request.max_tokens is not None:
                num_left = request.max_tokens - (size - num_prompt)
            rows.append(
                Row(
                    index=index,
                    request_id=request_id,
                    token_ids=tokens,
                    namespace=request.namespace,
                    num_prompt_tokens=num_prompt,
                    num_verified=None if verified is None else len(verified.get(request_id, ())),
                    most=min(request.most, num_left - 1),  # the step's own token fills a place
                    num_left=num_left,
                    prediction=request.prediction if is_new else None,
                )
            )
        return rows

    def running(self) -> set[RequestId]:
        """Return the requests that have not ended, preempted ones included."""
        running = set(self._living_runner().requests)
        if len(self._requests) > 2 * len(running) + 16:  # where nobody tells what has ended
            for request_id in [known for known in self._requests if known not in running]:
                del self._requests[request_id]
                self._salts.pop(request_id, None)
        return running

    def _living_runner(self) -> Any:
        runner = self.runner()
        if runner is None:
            raise RuntimeError("expected the runner that made the proposer, it is gone")
        return runner

    def _ask(self, request_id: str, state: Any) -> _Request:
        parameters = state.sampling_params
        extra = getattr(parameters, "extra_args", None) or {}
        limit, prediction = extra.get(LIMIT_ARGUMENT), extra.get(PREDICTION_ARGUMENT)
        return _Request(
            self._namespace(request_id, state.lora_request),
            sys.maxsize if limit is None else int(limit),
            getattr(parameters, "max_tokens", None),
            None if prediction is None else [int(token) for token in prediction],
            getattr(state, "prompt_embeds", None) is not None,
        )

    def _namespace(self, request_id: str, lora_request: Any) -> str:
        """Return the namespace: an adapter's or a salt's; a request whose salt is unknown has one.

        The base model without a salt has the default one.
        """
        if not self.shares or request_id not in self._salts:
            self._num_alone += 1  # an id may come again, for somebody else
            return f"request {self._num_alone}"
        salt = self._salts[request_id]
        if lora_request is None and salt is None:
            return ""
        adapter = "" if lora_request is None else str(lora_request.lora_int_id)
        return f"adapter {adapter} salt {salt or ''}"


@dataclass(slots=True)
class PrefixRows:
    """Tells rows apart by their text; each request stands alone, since its salt is not known."""

    matcher: PrefixMatcher = field(default_factory=PrefixMatcher)

    def begin_step(self, scheduler_output: Any) -> list[str]:
        """Return nothing: ids of the scheduler mean nothing here."""
        return []

    def take_step(self) -> int | None:
        """Return that nothing is known of the step."""
        return None

    def read(
        self, indices: Sequence[int], num_tokens: Sequence[int], token_ids: IntArray
    ) -> list[Row]:
        """Return the rows of a step; see :meth:`RunnerRows.read`."""
        texts = [token_ids[index, :size] for index, size in zip(indices, num_tokens, strict=True)]
        ids = self.matcher.match(texts)
        return [
            Row(index, request_id, text, f"request {request_id}")
            for index, request_id, text in zip(indices, ids, texts, strict=True)
        ]

    def running(self) -> set[RequestId]:
        """Return the requests that are remembered."""
        return set(self.matcher.request_ids)


def find_runner() -> Any | None:
    """Return the model runner that is making a proposer, ``None`` when none is on the stack."""
    frame = sys._getframe(1)
    for _ in range(_DEEPEST):
        subject = frame.f_locals.get("self")
        # methods are looked up on the class: the runner is not complete yet
        if callable(getattr(type(subject), "propose_draft_token_ids", None)):
            return subject
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
