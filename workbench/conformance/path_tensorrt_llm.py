"""The adapter to TensorRT-LLM in the toy engine, on requests with the recorded fields."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import patch

from ...drafters import CandidateTree, Drafter
from ...integrations import tensorrt_llm_chains
from .alphabet import MAX_CONTEXT
from .simulated import Adapter, Running, SimulatedPath


class TensorRtLlmPath(SimulatedPath):
    """What of the adapter needs no engine: it follows requests and writes drafts into them."""

    name = "tensorrt-llm"

    def make_adapter(self, drafter: Drafter, max_nodes: int) -> Adapter:
        """Return the adapter's part behind the drafter class."""
        return _Chains(drafter, self.vocab_size, max_nodes)


class _Chains:
    def __init__(self, drafter: Drafter, vocab_size: int, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self._chains = tensorrt_llm_chains.RequestChains(vocab_size)
        with patch.object(tensorrt_llm_chains, "create_engine_drafter", lambda *_: drafter):
            self._book = self._chains.book  # made when it is first asked for

    def draft(self, running: Sequence[Running]) -> list[CandidateTree]:
        """Run one step of the engine's loop."""
        requests = [_request(each, place) for place, each in enumerate(running)]
        self._chains.prepare(requests, self._max_nodes)
        return [CandidateTree.from_chain(request.py_draft_tokens) for request in requests]

    def end(self, running: Running) -> None:
        """Free the request's resources."""
        self._chains.free(_request(running, 0))

    def is_switched_off(self, running: Running) -> bool:
        """Return whether a fault has switched the request off."""
        return self._book.is_switched_off(running.request_id)


def _request(running: Running, place: int) -> SimpleNamespace:
    num_prompt = len(running.request.prompt_ids)
    return SimpleNamespace(
        request_id=running.request_id,
        py_batch_idx=place,
        py_orig_prompt_len=num_prompt,
        py_max_new_tokens=min(running.request.max_new_tokens, MAX_CONTEXT - num_prompt),
        py_draft_tokens=[],
        cache_salt_id=running.request.namespace or None,
        get_tokens=lambda beam: list(running.token_ids),
    )
