"""What a replay counts beside steps, and which requests see which others' responses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_oracles import expected_accepted, match_bucket, match_length

from freedraft.drafters.catalog import create_drafter
from freedraft.drafters.tree import CandidateTree, accepted_path
from freedraft.workbench.replay.expectation import expected_acceptance
from freedraft.workbench.replay.match_lengths import match_buckets
from freedraft.workbench.replay.requests import Alternatives, ListSource, TokenRequest
from freedraft.workbench.replay.samples import Highlight, TimeHistogram, keep_extremes
from freedraft.workbench.replay.store import StoreWriter, TokenStore
from freedraft.workbench.replay.tally import Counts, Sampling, Tally
from freedraft.workbench.replay.walk import AS_LOGGED, Walk, follow

IDS = st.lists(st.integers(-1, 3), max_size=40)
CHAINS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=5)


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def request(
    prompt: list[int], response: list[int], arrival: float = 0.0, finish: float = 0.0
) -> TokenRequest:
    matches = match_buckets(ids(prompt), ids(response))
    return TokenRequest("f:1", "w", ids(prompt), ids(response), arrival, finish, None, matches)


@given(IDS, st.lists(st.integers(-1, 3), min_size=1, max_size=40))
def test_match_buckets(prompt: list[int], response: list[int]) -> None:
    whole = prompt + response
    wanted = [
        match_bucket(match_length(whole[: len(prompt) + place])) for place in range(len(response))
    ]
    assert match_buckets(ids(prompt), ids(response)).tolist() == wanted


def test_match_buckets_of_long_repeats() -> None:
    text = list(range(200))
    buckets = match_buckets(ids(text), ids(text)).tolist()
    assert buckets == [match_bucket(n) for n in range(200)]


@given(CHAINS, st.lists(st.integers(0, 2), max_size=6))
def test_the_walk_follows_the_accepted_path(chains: list[list[int]], target: list[int]) -> None:
    tree = CandidateTree.from_chains(chains)
    path, has_more = follow(tree, target[: tree.num_nodes])
    assert path == accepted_path(tree, ids(target)).tolist()
    assert has_more == bool((tree.parents == (path[-1] if path else -1)).any())


@given(
    CHAINS,
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.lists(st.tuples(*[st.floats(0.01, 1)] * 3), min_size=6, max_size=6),
    st.integers(0, 3),
)
def test_expected_acceptance(
    chains: list[list[int]], target: list[int], weights: list[tuple[float, ...]], known: int
) -> None:
    tree = CandidateTree.from_chains(chains)
    probs = [{t: w / sum(row) for t, w in enumerate(row)} for row in weights]
    # The emitted token is always logged, `known` of the others.
    rows = []
    for token, row in zip(target, probs, strict=False):
        others = [other for other in row if other != token][:known]
        rows.append([(each, float(np.log(row[each]))) for each in (token, *others)])
    path = accepted_path(tree, ids(target)).tolist()
    emitted = min(len(path) + 1, len(target))
    sampling = Sampling()
    expected_acceptance(tree, path, Alternatives.from_rows(rows), 0, emitted, sampling)
    wanted = expected_accepted(chains, probs, target)
    assert (sampling.steps, sampling.accepted) == (1, len(path))
    assert sampling.low <= wanted + 1e-5 and sampling.high >= wanted - 1e-5
    if known >= 2:
        assert sampling.low == pytest.approx(wanted, abs=1e-5)
        assert sampling.high == pytest.approx(wanted, abs=1e-5)


def test_expected_acceptance_has_the_mean_of_the_accepted_nodes() -> None:
    tree = CandidateTree.from_chains([[0, 0], [1]])
    rng = np.random.default_rng(0)
    first, second = np.array([0.5, 0.2, 0.3]), np.array([0.6, 0.3, 0.1])
    sampling = Sampling()
    for _ in range(4000):
        target = [int(rng.choice(3, p=first)), int(rng.choice(3, p=second))]
        path = accepted_path(tree, ids(target)).tolist()
        rows = [
            [(t, float(np.log(p[t]))) for t in (token, *(x for x in range(3) if x != token))]
            for token, p in zip(target, (first, second), strict=True)
        ]
        emitted = min(len(path) + 1, 2)
        expected_acceptance(tree, path, Alternatives.from_rows(rows), 0, emitted, sampling)
    exact = 0.7 + 0.5 * 0.6
    assert sampling.low / sampling.steps == pytest.approx(exact, abs=0.01)
    assert sampling.accepted / sampling.steps == pytest.approx(exact, abs=0.05)


class Recorder:
    """A drafter that proposes nothing and records when requests begin and end."""

    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, request_id: int, prompt_ids: object, namespace: str = "") -> None:
        self.calls.append(f"+{request_id}")

    def stop(self, request_id: int) -> None:
        self.calls.append(f"-{request_id}")

    def extend(self, request_id: int, token_ids: np.ndarray) -> None:
        self.calls.append(f"{request_id}:{token_ids.tolist()[0]}")

    def propose(
        self, request_ids: list[int], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [CandidateTree.empty() for _ in request_ids]

    def observe(self, request_id: int, tree: CandidateTree, feedback: object) -> None:
        return

    def truncate(self, request_id: int, length: int) -> None:
        raise AssertionError("a replay never truncates")


def calls(requests: list[TokenRequest], concurrency: int) -> str:
    recorder = Recorder()
    walk = Walk(lambda: recorder, ListSource(requests), Tally(4), concurrency=concurrency)
    walk.run(range(len(requests)), sum(r.response_ids.size for r in requests))
    return " ".join(recorder.calls)


def test_requests_overlap_as_asked() -> None:
    three = [request([0], [10, 11, 12]), request([0], [20]), request([0], [30])]
    assert calls(three, 1) == "+0 0:10 0:11 0:12 -0 +1 1:20 -1 +2 2:30 -2"
    assert calls(three, 2) == "+0 +1 0:10 1:20 0:11 -1 +2 2:30 0:12 -2 -0"
    assert calls(three, 8).startswith("+0 +1 +2 0:10 1:20 2:30")


def test_requests_overlap_as_logged() -> None:
    logged = [
        request([0], [10, 11], 0, 4),  # tokens end at 2 and 4
        request([0], [20], 1, 3),
        request([0], [30], 4, 5),  # after the first one's last token
        request([0], [40], 9, 9),
    ]
    wanted = "+0 0:10 +1 1:20 0:11 -1 -0 +2 2:30 -2 +3 3:40 -3"
    assert calls(logged, AS_LOGGED) == wanted


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_what_is_learnt_depends_on_the_overlap(name: str) -> None:
    text = [(7 * n) % 101 for n in range(90)]
    pair = [request([1], text, 0, 10), request([2], text, 0.05, 10.05)]
    steps = {}
    for concurrency in (1, 2, AS_LOGGED):
        tally = Tally(8)
        walk = Walk(lambda: create_drafter(name), ListSource(pair), tally, concurrency=concurrency)
        walk.run([0, 1], 180)
        steps[concurrency] = tally.total.steps
    # One after the other, the second request finds the first one's response.
    assert steps[1] < steps[2] - 40
    assert steps[AS_LOGGED] > steps[1] + 40


def test_sums_add_up_and_survive_json() -> None:
    requests = [request([1, 2, 3], [1, 2, 3, 1, 2, 3, 4] * n) for n in range(1, 6)]
    tally = Tally(6)
    Walk(lambda: create_drafter("ngram"), ListSource(requests), tally).run(range(5), 100)
    total = tally.total
    # Each step emits one token more than it accepts, but for drafts that reach a response's end.
    assert 0 <= total.accepted + total.steps - total.tokens <= len(requests)
    assert sum(tally.steps_by_accepted) == sum(tally.steps_by_drafted) == total.steps
    assert sum(n * steps for n, steps in enumerate(tally.steps_by_drafted)) == total.drafted
    assert sum(tally.bin_nodes) == total.drafted and sum(tally.bin_hits) == total.accepted
    assert tally.offered[1] >= sum(tally.steps_by_accepted[1:])
    for table in (tally.by_workload, tally.by_prompt, tally.by_response):
        sums = Counts()
        for counts in table.values():
            sums.add(counts)
        assert sums == total
    assert sum(counts.tokens for counts in tally.by_match) == total.tokens
    again = Tally.from_dict(json.loads(json.dumps(tally.to_dict())))
    assert again.to_dict() == tally.to_dict()
    again.merge(Tally.from_dict(tally.to_dict()))
    assert again.total.steps == 2 * total.steps
    assert [h.number for h in again.most] == [h.number for h in tally.most]


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=300))
def test_percentiles_of_times(times: list[int]) -> None:
    histogram = TimeHistogram()
    for nanoseconds in times:
        histogram.add(nanoseconds)
    for percent in (50, 99):
        exact = sorted(times)[max(0, int(np.ceil(percent / 100 * len(times))) - 1)] / 1000
        assert histogram.percentile_us(percent) == pytest.approx(exact, rel=0.03)
    assert histogram.mean_us(100) == pytest.approx(np.mean(times) / 1000, rel=0.03)
    assert histogram.mean_us(50) <= histogram.mean_us(100) * 1.0001


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=40))
def test_the_extremes_are_kept(pairs: list[tuple[int, int]]) -> None:
    most: list[Highlight] = []
    least: list[Highlight] = []
    all_of_them = [
        Highlight(n, "f:1", tokens, [0] * steps) for n, (tokens, steps) in enumerate(pairs)
    ]
    for one in all_of_them:
        keep_extremes(most, least, one)
    order = sorted(all_of_them, key=lambda h: (-h.tokens_per_step, -h.tokens, h.number))
    assert most == order[:10]
    order = sorted(all_of_them, key=lambda h: (h.tokens_per_step, -h.tokens, h.number))
    assert least == order[:10]


def test_the_store_gives_back_what_it_got(tmp_path: Path) -> None:
    alternatives = Alternatives.from_rows([[(5, -0.1), (6, -2.0)], [(7, -0.5)]])
    rich = TokenRequest("a.log:3", "w", ids([1, 2]), ids([5, 7]), 1.5, 2.5, alternatives)
    rich = TokenRequest(
        rich.place, "w", rich.prompt_ids, rich.response_ids, 1.5, 2.5, alternatives,
        match_buckets(rich.prompt_ids, rich.response_ids),
    )  # fmt: skip
    plain = request([], [9])
    with StoreWriter(tmp_path) as writer:
        writer.add(plain, 0, 1, 1, 0)
        sizes = writer.flush()
        writer.add(plain, 0, 2, 0, 0)  # what a killed run left behind
    with StoreWriter(tmp_path, sizes) as writer:
        writer.add(rich, 1, 3, 0, 0)
    store = TokenStore(tmp_path, ["b.log", "a.log"], ["w", "v"])
    assert len(store.rows) == 2
    assert (store.read(0).place, store.read(0).workload) == ("b.log:1", "v")
    got = store.read(1)
    assert (got.place, got.arrival, got.finish) == ("a.log:3", 1.5, 2.5)
    assert got.prompt_ids.tolist() == [1, 2] and got.response_ids.tolist() == [5, 7]
    assert got.response_ids.flags.writeable
    assert got.alternatives is not None
    assert got.alternatives.row(0) == pytest.approx({5: np.exp(-0.1), 6: np.exp(-2.0)})
    assert got.alternatives.row(1) == pytest.approx({7: np.exp(-0.5)})
    store.close()
