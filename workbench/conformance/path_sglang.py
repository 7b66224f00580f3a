"""The adapter to SGLang in the toy engine, on a stand-in of the worker that it derives from."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from ...drafters import CandidateTree, Drafter
from .alphabet import MAX_CONTEXT
from .simulated import Adapter, Running, SimulatedPath

_ADAPTER = "freedraft.integrations.sglang_adapter"
_BREADTH = 10


class SglangPath(SimulatedPath):
    """Trees go through the ids and masks that the engine reads; its own kernels have a test."""

    name = "sglang"

    def make_adapter(self, drafter: Drafter, max_nodes: int) -> Adapter:
        """Return the worker, as far as it needs no device."""
        return _Worker(drafter, self.vocab_size, max_nodes)


class _Worker:
    def __init__(self, drafter: Drafter, vocab_size: int, max_nodes: int) -> None:
        self._num_slots = max_nodes + 1
        adapter = adapter_on_stand_in(vocab_size, self._num_slots, MAX_CONTEXT)
        with (
            patch.object(adapter, "create_engine_drafter", lambda *_: drafter),
            patch.dict("os.environ", {adapter.CONFIG_VARIABLE: ""}),
        ):
            self._worker = adapter.FreedraftWorker(None, 0, 0, None)
        self._num_off = 0

    def draft(self, running: Sequence[Running]) -> list[CandidateTree]:
        """Run one step of the scheduler around the worker."""
        requests = [_request(each) for each in running]
        batch = SimpleNamespace(reqs=requests, grammar_needs_sync=lambda: False)
        ids, mask = self._worker._prepare_draft_tokens(batch)
        self._worker._prev_decode_rids = {request.rid for request in requests}
        slots = self._num_slots
        return [
            _tree(ids[row * slots : (row + 1) * slots], flags)
            for row, flags in enumerate(mask.reshape(-1, slots, slots))
        ]

    def end(self, running: Running) -> None:
        """Tell the worker that a request has ended."""
        self._worker.note_request_finished(rid=running.request_id, natural_stop=True)

    def is_switched_off(self, running: Running) -> bool:
        """Return whether a fault has been counted since this was last asked."""
        before, self._num_off = self._num_off, int(self._worker.statistics["switched_off"])
        return self._num_off > before


def adapter_on_stand_in(vocab_size: int, num_slots: int, max_context: int) -> Any:
    """Return a fresh import of the adapter whose base class needs neither engine nor device.

    Args:
        vocab_size: of the model that is not there.
        num_slots: tokens of a request that one step verifies.
        max_context: of the model.
    """

    class NGRAMWorker:
        def __init__(self, *_: object) -> None:
            self.draft_token_num, self.topk = num_slots, _BREADTH
            self.enable_overlap = False
            self._prev_decode_rids: set[str] = set()
            model = SimpleNamespace(
                context_len=max_context, vocab_size=vocab_size, hf_config=SimpleNamespace()
            )
            self.model_runner = SimpleNamespace(model_config=model)

    parts = ("sglang", "sglang.srt", "sglang.srt.speculative")
    stand_ins: dict[str, ModuleType] = {name: ModuleType(name) for name in parts}
    for module in stand_ins.values():
        module.__path__ = []
    worker = ModuleType("sglang.srt.speculative.ngram_worker")
    worker.__dict__["NGRAMWorker"] = NGRAMWorker
    stand_ins[worker.__name__] = worker
    with patch.dict(sys.modules, stand_ins):
        sys.modules.pop(_ADAPTER, None)
        return import_module(_ADAPTER)


def _request(running: Running) -> SimpleNamespace:
    num_prompt = len(running.request.prompt_ids)
    return SimpleNamespace(
        rid=running.request_id,
        origin_input_ids_unpadded=array("q", running.token_ids[:num_prompt]),
        output_ids=array("q", running.token_ids[num_prompt:]),
        sampling_params=SimpleNamespace(max_new_tokens=running.request.max_new_tokens),
        extra_key=running.request.namespace or None,
    )


def _tree(ids: Any, flags: Any) -> CandidateTree:
    """Read a tree off its ids and mask; what fills it up is token 0, which no text here has."""
    real = [slot for slot in range(1, len(ids)) if ids[slot]]
    place = {0: -1} | {slot: node for node, slot in enumerate(real)}
    parents = [place[int(np.flatnonzero(flags[slot, :slot])[-1])] for slot in real]
    return CandidateTree.from_arrays([int(ids[slot]) for slot in real], parents)
