"""The suite passes on what is right, and fails on what is wrong on purpose."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

import pytest
from typer.testing import CliRunner

from freedraft import Drafter
from freedraft.verifier import GrammarAfter
from freedraft.workbench.conformance import (
    __main__,
    kinds_choice,
    kinds_drafters,
    kinds_ending,
    kinds_requests,
    path_generate,
    runner,
)
from freedraft.workbench.conformance.contract import Fault, Feature, Kind, Outcome, Request
from freedraft.workbench.conformance.path_generate import CustomGeneratePath, GeneratePath
from freedraft.workbench.conformance.paths import DRAFTERS_PATH

KINDS = {kind.name: kind for kind in runner.PATH_KINDS}


@pytest.fixture(scope="module")
def path() -> GeneratePath:
    return GeneratePath()


@pytest.mark.parametrize("name", KINDS)
def test_generate_conforms(path: GeneratePath, name: str) -> None:
    (finding,) = runner.run_path(path, [KINDS[name]])
    skipped = {"same-id", "preemption"}
    assert (finding.result, finding.why[:2000]) == ("passed", "") or name in skipped


@pytest.mark.parametrize("name", ["end-in-run", "stop-string", "logprobs", "grammar", "prompts"])
def test_custom_generate_conforms(name: str) -> None:
    (finding,) = runner.run_path(CustomGeneratePath(), [KINDS[name]])
    assert (finding.result, finding.why) == ("passed", "")


@pytest.mark.parametrize(
    ("kind", "drafter"),
    [
        pytest.param(kind, drafter, id=f"{kind.name}-{drafter}")
        for kind in kinds_drafters.KINDS
        for drafter in kind.drafters
        if kind.name != "long-prompt"  # about time: for the command, not for a test
    ],
)
def test_drafters_conform(kind: kinds_drafters.DrafterKind, drafter: str) -> None:
    kind.check(drafter)


class WrongPath(GeneratePath):
    """Does one thing wrong with drafts."""

    def __init__(self, spoil: Callable[[Request, Outcome], None]) -> None:
        super().__init__()
        self._spoil = spoil

    def run(
        self, requests: Sequence[Request], drafter: Drafter | str | None, max_nodes: int = 8
    ) -> list[Outcome]:
        outcomes = super().run(requests, drafter, max_nodes)
        if drafter is not None:
            for request, outcome in zip(requests, outcomes, strict=True):
                self._spoil(request, outcome)
        return outcomes


def one_more(request: Request, outcome: Outcome) -> None:
    outcome.token_ids.append(5)


def leaks_text(request: Request, outcome: Outcome) -> None:
    outcome.text += "abc"


def other_reason(request: Request, outcome: Outcome) -> None:
    outcome.finish_reason = "criteria"


def streams_less(request: Request, outcome: Outcome) -> None:
    if outcome.streamed:
        outcome.streamed.pop()


def counts_more(request: Request, outcome: Outcome) -> None:
    outcome.counted = len(outcome.token_ids) + 1


def zero_logprob(request: Request, outcome: Outcome) -> None:
    if outcome.logprobs:
        outcome.logprobs[-1] = 0.0


def other_token(request: Request, outcome: Outcome) -> None:
    if len(outcome.token_ids) > 5:
        outcome.token_ids[5] = (outcome.token_ids[5] + 1) % 50


def overdrafts(request: Request, outcome: Outcome) -> None:
    outcome.steps = [(drafted + 60, accepted) for drafted, accepted in outcome.steps]


def stays_on(request: Request, outcome: Outcome) -> None:
    outcome.switched_off = False


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (one_more, ["end-in-run", "stop-string", "earliest-end", "cap", "no-tokens", "prompts"]),
        (leaks_text, ["stop-string", "grammar"]),
        (other_reason, ["end-in-run", "stop-string", "stop-in-prompt", "context-end"]),
        (streams_less, ["end-in-run", "stop-string", "cap"]),
        (counts_more, ["end-in-run", "cap"]),
        (zero_logprob, ["logprobs"]),
        (other_token, ["end-drafted", "same-text", "processors", "grammar", "reasoning", "crowd"]),
        (overdrafts, ["cap", "context-end", "budget"]),
        (stays_on, ["faulty-drafter"]),
    ],
)
def test_a_wrong_path_fails(spoil: Callable[[Request, Outcome], None], names: list[str]) -> None:
    wrong = WrongPath(spoil)
    findings = list(runner.run_path(wrong, [KINDS[name] for name in names]))
    assert [(f.kind, f.result) for f in findings] == [(name, "failed") for name in names]


def test_a_grammar_that_does_not_follow_the_text_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(GrammarAfter):
        """Lets everything behind the switch through, and does not move by it."""

        def advance(self, token_id: int) -> bool:
            return self.is_bound or super().advance(token_id)

    monkeypatch.setattr(path_generate, "GrammarAfter", Stuck)
    (finding,) = runner.run_path(GeneratePath(), [KINDS["reasoning"]])
    assert finding.result == "failed"


def test_a_drafter_that_looks_across_namespaces_fails(
    path: GeneratePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = kinds_requests.create_drafter

    def leaky(name: str) -> Drafter:
        drafter = make("ngram")
        start = drafter.start
        monkeypatch.setattr(
            type(drafter),
            "start",
            lambda self, request, prompt, namespace="": start(request, prompt),
        )
        return drafter

    monkeypatch.setattr(kinds_requests, "create_drafter", leaky)
    shared = (*path.encode("abcabc"), *path.encode("xyz"))
    texts = (
        Request(shared, 8),
        tuple(path.encode("abcq abcq abcq")),
        tuple(path.encode("xyz abc")),
    )
    monkeypatch.setattr(kinds_requests, "_two_texts", lambda _: texts)
    with pytest.raises(Fault, match="foreign tokens"):
        kinds_requests.check_tenants(path)


def test_wrong_drafters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful:
        """Ignores what it is told to forget, and keeps stopped requests."""

        def __init__(self) -> None:
            self._inner = real("ngram")

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def truncate(self, request: str, length: int) -> None:
            pass

        def stop(self, request: str) -> None:
            pass

    real = kinds_drafters.create_drafter
    monkeypatch.setattr(kinds_drafters, "create_drafter", lambda name: Forgetful())
    for check in (kinds_drafters.check_truncation, kinds_drafters.check_unknown_requests):
        with pytest.raises(Fault):
            check("ngram")


def test_an_exception_is_a_finding(path: GeneratePath) -> None:
    def breaks(_: object) -> None:
        raise ZeroDivisionError("nothing is divided")

    kind = Kind("breaks", "does not break", (Feature.TEXT,), breaks)
    (finding,) = runner.run_path(path, [kind])
    assert finding.result == "failed"
    assert re.match(r"ZeroDivisionError: nothing is divided \(test_conformance.py:", finding.why)


def test_first_difference() -> None:
    assert kinds_choice.first_difference([1, 2], [1, 2]) is None
    assert kinds_choice.first_difference([1, 2], [1, 3]) == 1
    assert kinds_choice.first_difference([1, 2], [1, 2, 3]) == 2


def test_a_wide_gap_in_half_precision_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part(GeneratePath):
        def in_half_precision(self) -> GeneratePath:
            return WrongPath(other_token)

    with pytest.raises(Fault, match="expected a tie"):
        kinds_choice.check_rounding(Part())


def test_the_command(tmp_path: FilePath) -> None:
    import typer

    app = typer.Typer()
    app.command()(__main__.main)
    out = tmp_path / "findings.json"
    run = CliRunner().invoke(
        app,
        ["--engine", "generate", "--only", "no-tokens", "--only", "same-id", "--json", str(out)],
    )
    assert run.exit_code == 0, run.output
    assert "1 passed, 1 skipped, 0 failed" in run.output
    assert "a call names its own requests" in " ".join(run.output.split())
    results = {f["kind"]: f["result"] for f in json.loads(out.read_text())["findings"]}
    assert results == {"no-tokens": "passed", "same-id": "skipped"}
    run = CliRunner().invoke(app, ["--engine", "nobody"])
    assert run.exit_code == 2 and "'nobody'" in run.output
    listed = CliRunner().invoke(app, ["--list"]).output.split()
    assert listed == runner.kind_names() and f"{DRAFTERS_PATH}/truncation" in listed


def test_a_failed_check_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    def breaks(path: GeneratePath) -> None:
        raise Fault("expected nothing, got something")

    wrong = replace(KINDS["no-tokens"], check=breaks)
    monkeypatch.setattr(runner, "PATH_KINDS", (wrong,))
    app = typer.Typer()
    app.command()(__main__.main)
    run = CliRunner().invoke(app, ["--engine", "generate"])
    assert run.exit_code == 1
    assert "expected nothing, got something" in run.output


def test_the_checks_have_teeth() -> None:
    """A path whose drafts are never accepted shows nothing about accepted runs."""

    class NeverAccepts(GeneratePath):
        def run(
            self, requests: Sequence[Request], drafter: Drafter | str | None, max_nodes: int = 8
        ) -> list[Outcome]:
            outcomes = super().run(requests, None, 0)
            for outcome in outcomes:
                outcome.steps = [(0, 0) for _ in outcome.token_ids]
            return outcomes

    with pytest.raises(Fault, match="expected accepted runs"):
        kinds_ending.check_eos(NeverAccepts())
