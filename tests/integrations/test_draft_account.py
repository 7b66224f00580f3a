"""The account that bounds what drafting may lose, alone and in the budget and the adapter."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.drafters import CandidateTree
from freedraft.drafters.ngram import NgramDrafter
from freedraft.integrations import llama_cpp_adapter
from freedraft.integrations.budget import Calibration, StepCosts
from freedraft.integrations.chain_budget import RoundChainBudget
from freedraft.integrations.draft_account import DraftAccount
from freedraft.integrations.llama_cpp_adapter import LlamaDraft

NODES = (0, 1, 3, 7, 15, 31)
STEEP = (1.0, 1.9, 2.5, 3.5, 4.5, 8.2)
STEEPER = (1.0, 2.1, 3.5, 5.7, 9.6, 18.1)


def calibration(ratios: Sequence[float]) -> Calibration:
    seconds = np.array(ratios).reshape(1, 1, -1) * 0.01
    return Calibration("m", "llama-cpp", "cpu", "measured", (128,), (1,), NODES, seconds)


@given(
    deposit=st.floats(0, 20),
    outcomes=st.lists(st.tuples(st.floats(0, 20), st.integers(0, 32)), max_size=60),
)
def test_no_sequence_of_chains_loses_more_than_the_deposit_and_the_share(
    deposit: float, outcomes: list[tuple[float, int]]
) -> None:
    account = DraftAccount(deposit)
    gained, num_tokens, dearest = 0.0, 0, deposit
    for loss, num_accepted in outcomes:
        afforded = account.affords(loss)
        dearest = max(dearest, loss)
        gain = num_accepted - loss if afforded else 0.0
        emitted = 1 + num_accepted if afforded else 1
        account.settle(gain)
        account.earn(emitted)
        gained, num_tokens = gained + gain, num_tokens + emitted
        assert gained >= -deposit - 0.015 * num_tokens - 1e-9
        assert account.balance <= 2 * dearest


def test_gains_pay_for_losses_and_time_for_both() -> None:
    account = DraftAccount(4.0)
    account.settle(-4.0)
    assert not account.affords(0.5)
    account.earn(100)
    assert account.affords(1.5) and not account.affords(1.6)
    account.settle(3.0)
    assert account.affords(4.5) and not account.affords(4.6)
    account.earn(10_000)
    assert account.balance == 2 * 4.6, "old gains are not piled up"
    assert not account.affords(100.0)
    account.earn(10_000)
    assert account.affords(100.0), "it saves up for what is asked of it"


def test_the_budget_stops_when_the_account_is_empty_and_goes_on_when_it_has_filled() -> None:
    costs = StepCosts(calibration(STEEP))
    budget = RoundChainBudget(costs, longest=31)
    chain = CandidateTree.from_chain(list(range(31)))
    lost, num_tokens, widths = 0.0, 0, []
    nothing = CandidateTree.empty()
    for request in range(2000):  # each a new request, so that only the account remembers
        verified = budget.cut([request], [chain])[0]
        widths.append(verified.num_nodes)
        cost = float(costs.relative(1, 1 + verified.num_nodes))
        budget.record_outcome(request, verified if widths[-1] else nothing, 0, [99])
        lost, num_tokens = lost + cost - 1, num_tokens + 1
        assert lost <= STEEP[-1] - 1 + 0.015 * num_tokens + 1e-6
        budget.forget(request)
    assert max(widths[:3]) > 0, "the first chains are verified"


class Clock:
    """Stands still but for the steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        module = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(llama_cpp_adapter, "time", module)


def drive(
    draft: LlamaDraft,
    prompt: list[int],
    answer: list[int],
    seconds: Sequence[float],
    clock: Clock,
    disturbed_every: int = 0,
) -> float:
    """Return the time of an answer in plain steps, on a clock of the given step times.

    With ``disturbed_every`` the clock shows each so manieth step ten times as long.
    """
    text, spent, position, number = [*prompt, answer[0]], 0.0, 1, 0
    while position < len(answer):
        chain = draft(np.array(text, np.intc)).tolist()
        accepted = 0
        while accepted < len(chain) and chain[accepted] == answer[position]:
            text.append(answer[position])
            accepted, position = accepted + 1, position + 1
            if position == len(answer):
                break
        else:
            text.append(answer[position])
            position += 1
        step = float(np.interp(len(chain), NODES, seconds))
        number += 1
        disturbed = disturbed_every and number % disturbed_every == 0
        clock.now += 0.01 * step * (10 if disturbed else 1)
        spent += step
    return spent


class Liar:
    """Promises with certainty what never comes."""

    name = "liar"

    def start(self, *_: object) -> None: ...

    def extend(self, *_: object) -> None: ...

    def observe(self, *_: object) -> None: ...

    def truncate(self, *_: object) -> None: ...

    def stop(self, *_: object) -> None: ...

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return chains of a token that no text has."""
        length = min(max_nodes, max_depth)
        return [CandidateTree.from_chain([499] * length) for _ in request_ids]


@pytest.mark.parametrize("disturbed_every", [0, 13])
@pytest.mark.parametrize("ratios", [STEEP, STEEPER])
def test_whatever_a_drafter_promises_the_text_is_hardly_slower(
    ratios: Sequence[float], disturbed_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = [1 + index % 7 for index in range(3000)]  # repeats, so that the liar is asked
    draft = LlamaDraft(Liar(), 500, 8192, calibration(ratios))  # type: ignore[arg-type]
    spent = drive(draft, [1, 2, 3], answer, ratios, Clock(monkeypatch), disturbed_every)
    assert draft.statistics.drafted > 0
    slack = 1.0 if disturbed_every == 0 else 1.01  # the loss is reckoned at the times that it saw
    assert spent <= (len(answer) * 1.015 + ratios[-1]) * slack


@pytest.mark.parametrize("ratios", [STEEP, STEEPER])
def test_after_losses_a_text_that_repeats_itself_still_gains(
    ratios: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(3)
    passage = generator.integers(10, 400, 200).tolist()
    draft = LlamaDraft(NgramDrafter(), 500, 8192, calibration(ratios))
    misleading: list[int] = []  # of each passage a bit, then something else
    for start in range(0, 180, 18):
        misleading += [*passage[start : start + 18], int(generator.integers(400, 490))]
    clock = Clock(monkeypatch)
    assert drive(draft, passage, misleading, ratios, clock) < 1.015 * len(misleading) + ratios[-1]
    copied = passage * 2
    assert drive(draft, passage, copied, ratios, clock) < 0.8 * len(copied)
