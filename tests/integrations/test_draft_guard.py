"""What the guard knows of a drafter's wishes."""

from __future__ import annotations

from freedraft.drafters import CandidateTree, create_drafter
from freedraft.drafters.lookahead import LookaheadDrafter
from freedraft.drafters.recycling import RecyclingConfig, RecyclingDrafter
from freedraft.integrations.draft_guard import DraftGuard


class Changing(RecyclingDrafter):
    """Wants more from one moment to the next."""

    wanted = 3

    @property
    def num_top_ids(self) -> int:
        return self.wanted


def test_wishes_are_asked_for_anew() -> None:
    drafter = Changing(RecyclingConfig(max_vocab_size=64))
    guard = DraftGuard(drafter, 64)
    assert guard.num_top_ids == 3
    drafter.wanted = 0
    assert guard.num_top_ids == 0


def test_who_wishes_nothing_gets_nothing() -> None:
    tree = CandidateTree.from_chain([1])
    for drafter in (None, create_drafter("ngram"), create_drafter("edit")):
        guard = DraftGuard(drafter, 64)
        assert guard.num_top_ids == 0
        assert not guard.sends_probes
        assert guard.add_probes(["a"], [tree], 4, [4], None) == [tree]
    assert DraftGuard(LookaheadDrafter(), 64).sends_probes
