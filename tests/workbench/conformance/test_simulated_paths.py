"""The toy engine is right, adapters pass in it, and adapters that are wrong on purpose fail."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path as FilePath

import pytest

from freedraft import CandidateTree, Drafter
from freedraft.workbench.conformance import runner
from freedraft.workbench.conformance.alphabet import MAX_CONTEXT
from freedraft.workbench.conformance.contract import Request, Skipped
from freedraft.workbench.conformance.path_sglang import SglangPath
from freedraft.workbench.conformance.path_tensorrt_llm import TensorRtLlmPath
from freedraft.workbench.conformance.paths import NEED_MODEL, make_path
from freedraft.workbench.conformance.simulated import (
    Adapter,
    Running,
    SimulatedPath,
    next_token,
)

PROMPT = (3, 4, 5, 3, 4)


def plain(prompt: Sequence[int], num_new: int) -> list[int]:
    text = list(prompt)
    for _ in range(num_new):
        text.append(next_token(text))
    return text[len(prompt) :]


@pytest.mark.parametrize("make", [TensorRtLlmPath, SglangPath])
def test_adapters_conform(make: type[SimulatedPath]) -> None:
    findings = list(runner.run_path(make()))
    failed = [(finding.kind, finding.why) for finding in findings if finding.result == "failed"]
    assert failed == []
    assert sum(finding.result == "passed" for finding in findings) >= 10


def test_the_toy_engine_decodes_plainly() -> None:
    requests = [
        Request(PROMPT, 20),
        Request(PROMPT[:2], 30, abort_after=7),
        Request((9,), 12, arrives_at=4),
        Request((5,) * (MAX_CONTEXT - 3), 12),
    ]
    outcomes = SimulatedPath().run(requests, None)
    reasons = [outcome.finish_reason for outcome in outcomes]
    assert reasons == ["length", "abort", "length", "context"]
    lengths = [20, 7, 12, 3]
    for request, outcome, length in zip(requests, outcomes, lengths, strict=True):
        assert outcome.token_ids == plain(request.prompt_ids, length)
    with pytest.raises(ValueError, match="expected a prompt of 1 to 383 tokens, got 0"):
        SimulatedPath().run([Request((), 1)], None)


class WrongAdapter:
    """Drafts past every limit, and from all texts that it has ever seen."""

    seen: list[int] = []  # noqa: RUF012  # shared by all, on purpose

    def draft(self, running: Sequence[Running]) -> list[CandidateTree]:
        for each in running:
            self.seen.extend(each.token_ids)
        return [CandidateTree.from_chain(self.seen[-60:]) for _ in running]

    def end(self, running: Running) -> None:
        pass

    def is_switched_off(self, running: Running) -> bool:
        return False


class WrongPath(SimulatedPath):
    def make_adapter(self, drafter: Drafter, max_nodes: int) -> Adapter:
        return WrongAdapter()


@pytest.mark.parametrize("name", ["cap", "context-end", "tenants", "faulty-drafter", "budget"])
def test_a_wrong_adapter_fails(name: str) -> None:
    kind = next(kind for kind in runner.PATH_KINDS if kind.name == name)
    (finding,) = runner.run_path(WrongPath(), [kind])
    assert finding.result == "failed"


class Gone(WrongAdapter):
    """Takes a request that is put aside for one that has ended."""

    def __init__(self) -> None:
        self.before: set[object] = set()
        self.gone: set[object] = set()

    def draft(self, running: Sequence[Running]) -> list[CandidateTree]:
        ids = {each.request_id for each in running}
        if ids & self.gone:
            raise KeyError(f"unknown requests {ids & self.gone}")
        self.gone |= self.before - ids
        self.before = ids
        return [CandidateTree.empty()] * len(running)


def test_an_adapter_that_loses_what_was_put_aside_fails() -> None:
    class Path(SimulatedPath):
        def make_adapter(self, drafter: Drafter, max_nodes: int) -> Adapter:
            return Gone()

    kind = next(kind for kind in runner.PATH_KINDS if kind.name == "preemption")
    (finding,) = runner.run_path(Path(), [kind])
    assert finding.result == "failed"
    assert "unknown requests" in finding.why


def test_stand_ins_do_not_stay() -> None:
    names = ("sglang.srt.speculative.ngram_worker", "freedraft.integrations.sglang_adapter")
    before = [sys.modules.get(name) for name in names]
    SglangPath().run([Request(PROMPT, 4)], "ngram")
    assert [sys.modules.get(name) for name in names] == before


@pytest.mark.parametrize("name", NEED_MODEL)
def test_engines_without_a_model_are_skipped_with_a_reason(name: str, tmp_path: FilePath) -> None:
    for model in (None, str(tmp_path / "missing")):
        with pytest.raises(Skipped, match="expected --model"):
            make_path(name, model)
    findings = list(runner.run([name]))
    assert {finding.result for finding in findings} == {"skipped"}
