"""The book follows texts as an engine tells them, counts right, and never lets a fault out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.drafters import CandidateTree, Feedback, RequestId
from freedraft.drafters.base import as_token_ids
from freedraft.drafters.catalog import create_drafter
from freedraft.integrations.budget import BudgetConfig, PooledBudget
from freedraft.integrations.prefix_matcher import PrefixMatcher
from freedraft.integrations.request_book import RequestBook

VOCAB_SIZE = 10


class Scribe:
    """A drafter that writes down what it is told and proposes what it is given."""

    name = "scribe"

    def __init__(self) -> None:
        self.texts: dict[RequestId, list[int]] = {}
        self.prompts: dict[RequestId, list[int]] = {}
        self.namespaces: dict[RequestId, str] = {}
        self.observed: list[tuple[RequestId, CandidateTree, Feedback]] = []
        self.starts = 0
        self.next_tree = CandidateTree.empty()
        self.predictions: dict[RequestId, list[int]] = {}

    def start(self, request_id: RequestId, prompt_ids: npt.ArrayLike, namespace: str = "") -> None:
        self.starts += 1
        self.prompts[request_id] = as_token_ids(prompt_ids).tolist()
        self.texts[request_id] = list(self.prompts[request_id])
        self.namespaces[request_id] = namespace

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        self.texts[request_id] += as_token_ids(token_ids).tolist()

    def set_prediction(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        self.predictions[request_id] = as_token_ids(token_ids).tolist()

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [self.next_tree.cut(max_nodes, max_depth) for _ in request_ids]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        self.observed.append((request_id, tree, feedback))

    def truncate(self, request_id: RequestId, length: int) -> None:
        del self.texts[request_id][length:]

    def stop(self, request_id: RequestId) -> None:
        self.texts.pop(request_id, None)


class Saver(PooledBudget):
    """A budget that keeps one node a tree and writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[tuple[RequestId, int, int, list[int]]] = []
        self.forgotten: list[RequestId] = []

    def cut(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        num_left: Sequence[int] | None = None,
    ) -> list[CandidateTree]:
        return [tree.cut(1) for tree in trees]

    def record_outcome(
        self,
        request_id: RequestId,
        tree: CandidateTree,
        num_accepted: int,
        token_ids: Sequence[int] = (),
    ) -> None:
        self.outcomes.append((request_id, tree.num_nodes, num_accepted, list(token_ids)))

    def forget(self, request_id: RequestId) -> None:
        self.forgotten.append(request_id)


def test_a_request_is_started_with_its_prompt_and_extended_by_what_is_new() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    book.sync("a", [1, 2, 3, 4], num_prompt_tokens=3, namespace="lora-1")
    book.sync("a", np.array([1, 2, 3, 4, 5, 6]), namespace="lora-1")
    assert scribe.prompts["a"] == [1, 2, 3]
    assert scribe.texts["a"] == [1, 2, 3, 4, 5, 6]
    assert scribe.namespaces["a"] == "lora-1"
    assert scribe.starts == 1
    assert (book.statistics.steps, book.statistics.emitted) == (2, 3)
    assert "a" in book and len(book) == 1


def test_what_was_accepted_is_worked_out_and_reported() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    book.sync("a", [1, 2])
    # root ─ 3 ─ 4, and 5 beside 3
    scribe.next_tree = CandidateTree.from_arrays([3, 5, 4], [-1, -1, 0], [0.5, 0.4, 0.3])
    assert book.propose(["a"], 8, [4])[0].num_nodes == 3
    book.sync("a", [1, 2, 5, 7])
    request_id, tree, feedback = scribe.observed[0]
    assert (request_id, tree.num_nodes) == ("a", 3)
    assert feedback.accepted.tolist() == [1]
    assert feedback.token_ids.tolist() == [5, 7]
    assert feedback.choices.tolist() == [5, -1, 7, -1]  # after the root and after node 1
    statistics = book.statistics
    assert (statistics.drafted, statistics.accepted, statistics.emitted) == (3, 1, 2)
    assert statistics.draft_seconds > 0


def test_the_last_token_of_a_step_is_never_counted_as_accepted() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    scribe.next_tree = CandidateTree.from_chain([3, 4])
    book.sync("a", [1, 2])
    book.propose_chains(["a"], [4])
    book.sync("a", [1, 2, 3])  # the engine did not verify: its own token is the drafted one
    assert book.statistics.accepted == 0
    book.propose_chains(["a"], [4])
    book.sync("a", [1, 2, 3, 3, 4], num_verified=1)
    assert (book.statistics.drafted, book.statistics.accepted) == (3, 1)


def test_a_proposal_counts_once_and_for_the_next_step_only() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    scribe.next_tree = CandidateTree.from_chain([3])
    book.sync("a", [1])
    book.propose_chains(["a"], [4])
    book.sync("a", [1])  # nothing new: the proposal still stands
    book.sync("a", [1, 3, 4])
    book.sync("a", [1, 3, 4, 3, 5])
    assert (book.statistics.drafted, book.statistics.accepted) == (1, 1)


def test_chains_are_plain_integers_and_of_the_best_path() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    book.sync("a", [1])
    book.sync("b", [2])
    scribe.next_tree = CandidateTree.from_arrays(
        [3, 5, 4, 6], [-1, -1, 1, 2], [0.5, 0.45, 0.4, 0.3]
    )
    chains = book.propose_chains(["a", "b", "unknown"], [4, 1, 4])
    assert chains == [[5, 4, 6], [3], []]
    assert all(type(token) is int for chain in chains for token in chain)
    assert book.propose_chains([], []) == []
    assert book.propose_chains(["a"], [0]) == [[]]


def test_a_changed_text_is_cut_back_to_what_is_shared() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    book.sync("a", [1, 2, 3, 4, 5], num_prompt_tokens=2)
    book.sync("a", [1, 2, 3, 7, 7, 7], num_prompt_tokens=2)
    assert scribe.texts["a"] == [1, 2, 3, 7, 7, 7]
    assert scribe.starts == 1
    book.sync("a", [1, 2, 3, 7], num_prompt_tokens=2)  # preempted and shorter
    assert scribe.texts["a"] == [1, 2, 3, 7]
    assert scribe.starts == 1


def test_another_prompt_or_namespace_under_the_same_id_begins_anew() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    book.sync("a", [1, 2, 3, 4, 5], num_prompt_tokens=4)
    book.sync("a", [1, 2, 9, 9, 9, 9], num_prompt_tokens=5)
    assert scribe.prompts["a"] == [1, 2, 9, 9, 9]
    book.sync("a", [1, 2, 9, 9, 9, 9, 8], namespace="other", num_prompt_tokens=5)
    assert scribe.starts == 3
    assert scribe.namespaces["a"] == "other"


def test_placeholders_and_foreign_ids_are_hidden_from_the_drafter() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE, placeholder_ids={7})
    book.sync("a", [1, 7, 7, VOCAB_SIZE, -5, 2])
    book.sync("a", [1, 7, 7, VOCAB_SIZE, -5, 2, 7, 3])
    assert scribe.texts["a"] == [1, -1, -1, -1, -1, 2, -1, 3]
    assert scribe.starts == 1


def test_release_and_retain_end_requests() -> None:
    scribe, saver = Scribe(), Saver()
    book = RequestBook(scribe, VOCAB_SIZE, budget=saver)
    for request_id in "abc":
        book.sync(request_id, [1, 2])
    book.release("a")
    book.release("never seen")
    book.retain(["b", "never seen"])
    assert sorted(scribe.texts) == ["b"]
    assert len(book) == 1
    assert {"a", "c"} <= set(saver.forgotten)


def test_the_budget_cuts_and_learns() -> None:
    scribe, saver = Scribe(), Saver()
    book = RequestBook(scribe, VOCAB_SIZE, budget=saver)
    scribe.next_tree = CandidateTree.from_chain([3, 4])
    book.sync("a", [1, 2])
    assert book.propose_chains(["a"], [4]) == [[3]]
    book.sync("a", [1, 2, 3, 4])
    assert saver.outcomes == [("a", 1, 1, [3, 4])]


def test_a_budget_that_lets_sleep_is_not_asked_to_cut() -> None:
    scribe = Scribe()
    scribe.next_tree = CandidateTree.from_chain([3, 4])
    book = RequestBook(
        scribe, VOCAB_SIZE, budget=PooledBudget(config=BudgetConfig(schedule={1: 0}))
    )
    book.sync("a", [1, 2])
    assert book.propose_chains(["a"], [4]) == [[]]


def test_predictions_reach_the_drafter() -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    book.set_prediction("a", [4, 5])
    assert scribe.predictions == {}
    book.sync("a", [1])
    book.set_prediction("a", [4, 5])
    assert scribe.predictions == {"a": [4, 5]}


@pytest.mark.filterwarnings("ignore:drafter 'scribe' is switched off:RuntimeWarning")
@pytest.mark.parametrize("verb", ["start", "extend", "observe", "truncate", "propose", "stop"])
def test_a_fault_switches_one_request_off(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    genuine = getattr(scribe, verb)

    def faulty(subject: object, *arguments: object) -> object:
        if subject == "a" or subject == ["a", "b"] or subject == ["a"]:
            raise RuntimeError("out of order")
        return genuine(subject, *arguments)

    monkeypatch.setattr(scribe, verb, faulty)
    scribe.next_tree = CandidateTree.from_chain([3, 4])
    for request_id in "ab":
        book.sync(request_id, [1, 2], num_prompt_tokens=1)
    book.propose_chains(["a", "b"], [4, 4])
    for request_id in "ab":
        book.sync(request_id, [1, 2, 3, 5], num_prompt_tokens=1)
        book.sync(request_id, [1, 2, 3, 6], num_prompt_tokens=1)
    chains = book.propose_chains(["a", "b"], [4, 4])
    if verb == "stop":
        assert chains == [[3, 4], [3, 4]]
    else:
        assert chains == [[], [3, 4]]
        assert book.is_switched_off("a") and not book.is_switched_off("b")
        book.sync("a", [9, 9, 9], num_prompt_tokens=1)  # another text does not switch it on again
        assert book.propose_chains(["a"], [4]) == [[]]
    book.retain([])
    assert book.statistics.switched_off == 1
    assert not book.is_switched_off("a")


@pytest.mark.filterwarnings("ignore:drafter 'scribe' is switched off:RuntimeWarning")
def test_faults_met_elsewhere_switch_off_until_release() -> None:
    scribe = Scribe()
    scribe.next_tree = CandidateTree.from_chain([3])
    book = RequestBook(scribe, VOCAB_SIZE)
    book.switch_off("a", ValueError("no text"))
    book.switch_off("a", ValueError("no text"))
    book.sync("a", [1, 2])
    assert book.propose_chains(["a"], [4]) == [[]]
    assert book.statistics.switched_off == 1
    book.release("a")
    book.sync("a", [1, 2])
    assert book.propose_chains(["a"], [4]) == [[3]]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="expected vocab_size >= 1, got 0"):
        RequestBook(Scribe(), 0)
    with pytest.raises(ValueError, match="integer dtype"):
        RequestBook(Scribe(), VOCAB_SIZE).sync("a", [0.5])


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), TOKENS, st.integers(0, 4)), max_size=20))
def test_the_drafter_always_knows_the_last_text(
    calls: list[tuple[str, list[int], int]],
) -> None:
    scribe = Scribe()
    book = RequestBook(scribe, VOCAB_SIZE)
    texts: dict[str, list[int]] = {}
    for request_id, tokens, kept in calls:
        known = texts.get(request_id, [])
        text = known[: len(known) - kept] + tokens if kept < 4 else tokens
        book.sync(request_id, text, num_prompt_tokens=1)
        texts[request_id] = text
        assert scribe.texts[request_id] == text
    assert book.statistics.switched_off == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 6))
def test_true_drafters_follow_the_true_text(text: list[int], length: int) -> None:
    book = RequestBook(create_drafter("ngram"), 4)
    for stop in range(1, len(text) + 1, 3):
        book.sync("a", text[:stop], num_prompt_tokens=1)
        (chain,) = book.propose_chains(["a"], [length])
        assert len(chain) <= length
        assert all(0 <= token < 4 for token in chain)
    statistics = book.statistics
    assert statistics.accepted <= statistics.drafted
    assert statistics.accepted + statistics.steps <= statistics.emitted + 1
    assert statistics.switched_off == 0


def test_rows_keep_their_ids_while_they_grow_and_move() -> None:
    matcher = PrefixMatcher()
    first = matcher.match([[1, 2, 3], [4, 5, 6]])
    assert first == [0, 1]
    assert matcher.match([[4, 5, 6, 7], [1, 2, 3, 8, 9]]) == [1, 0]
    assert matcher.match([[1, 2, 3, 8, 9, 1]]) == [0]
    assert matcher.match([[9, 9], [4, 5, 6, 7, 8]]) == [2, 1]


def test_rows_of_equal_text_are_told_apart_by_where_they_stand() -> None:
    matcher = PrefixMatcher()
    assert matcher.match([[1, 2], [1, 2]]) == [0, 1]
    assert matcher.match([[1, 2, 5], [1, 2, 6]]) == [0, 1]
    assert matcher.match([[1, 2, 6, 7], [1, 2, 5, 7]]) == [1, 0]


def test_what_is_compared_is_copied() -> None:
    matcher = PrefixMatcher()
    row = np.array([1, 2, 3], np.int32)
    assert matcher.match([row]) == [0]
    row[:] = [7, 8, 9]
    assert matcher.match([[1, 2, 3, 4]]) == [0]


def test_the_longest_known_text_wins() -> None:
    matcher = PrefixMatcher()
    assert matcher.match([[1], [1, 2]]) == [0, 1]
    assert matcher.match([[7], [8], [1, 2, 3]]) == [2, 3, 1]


def test_memory_is_bounded() -> None:
    matcher = PrefixMatcher(max_requests=2, max_idle=3)
    for token in range(5):
        matcher.match([[token, token]])
    assert matcher.request_ids == [3, 4]
    for _ in range(3):
        matcher.match([])
    assert matcher.request_ids == []
    with pytest.raises(ValueError, match="expected max_requests >= 1"):
        PrefixMatcher(max_requests=0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(TOKENS, max_size=4), max_size=8))
def test_ids_of_a_call_are_distinct(calls: list[list[list[int]]]) -> None:
    matcher = PrefixMatcher(max_requests=3)
    for rows in calls:
        ids = matcher.match(rows)
        assert len(set(ids)) == len(rows)
