"""The corpus drafter, its index and its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from corpus_oracles import best_paths, joined, naive_paths, naive_votes, sorted_places
from hypothesis import given, settings
from hypothesis import strategies as st

from freedraft.drafters.base import Drafter
from freedraft.drafters.corpus import CorpusConfig, CorpusDrafter
from freedraft.drafters.corpus import _search_kernels as finder
from freedraft.drafters.corpus import _tree_kernels as grower
from freedraft.drafters.corpus.index import (
    CorpusIndex,
    build_index,
    check_order,
    check_structure,
    sort_by_doubling,
    suffix_array,
)
from freedraft.drafters.corpus.pool_file import (
    KIND,
    PoolDescription,
    open_pool,
    tokenizer_fingerprint,
    verify_pool,
    write_pool,
)
from freedraft.drafters.snapshot import SnapshotError, write_snapshot
from freedraft.drafters.tree import CandidateTree

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
EXAMPLES = 200 if COMPILED else 80
DESCRIPTION = PoolDescription("tiny", tokenizer_fingerprint({"a": 0, "b": 1}), 1, 10)
DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=5).filter(
    lambda documents: any(len(document) > 1 for document in documents)
)
TAILS = st.lists(st.sampled_from([0, 1, 2, 3, 0, 1, 2, 3, -1, 1 << 30]), max_size=12)


def index_of(documents: list[list[int]]) -> CorpusIndex:
    return build_index([np.array(document, np.int32) for document in documents])


def write(path: Path, documents: list[list[int]]) -> Path:
    write_pool(path, index_of(documents), DESCRIPTION)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that every example of a test overwrites."""
    return tmp_path_factory.mktemp("corpus") / "scratch.pool"


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of two documents, 10, 11, ... 29 and 30, 31, ... 49."""
    path = tmp_path_factory.mktemp("corpus") / "counting.pool"
    return write(path, [list(range(10, 30)), list(range(30, 50))])


def paths_of(tree: CandidateTree) -> dict[tuple[int, ...], float]:
    tree.validate()
    return {
        tuple(tree.token_ids[tree.path(node)].tolist()): float(tree.probs[node])
        for node in range(tree.num_nodes)
    }


def chain_of(drafter: CorpusDrafter, request_id: object, max_nodes: int = 4) -> list[int]:
    (tree,) = drafter.propose([request_id], max_nodes, max_nodes)
    tree.validate()
    return tree.best_chain().token_ids.tolist()


def assert_draws_as_counted(
    config: CorpusConfig, text: list[int], tail: list[int], limits: tuple[int, int]
) -> None:
    """A fresh drafter's tree for a tail is the oracle's, except among equals at the cut."""
    max_nodes, max_depth = limits
    drafter = CorpusDrafter(config)
    drafter.start("a", np.array(tail, np.int32))
    (tree,) = drafter.propose(["a"], max_nodes, max_depth)
    floor, escapes = config.min_prob, drafter.escapes.tolist()
    votes, longest = naive_votes(
        text,
        tail,
        min_match=config.min_match,
        max_places=config.max_places,
        floor=floor,
        escapes=escapes,
    )
    every = naive_paths(text, votes, longest, max_depth=max_depth, floor=floor, escapes=escapes)
    expected = best_paths(every, max_nodes)
    found = paths_of(tree)
    np.testing.assert_allclose(sorted(found.values()), sorted(expected.values()), rtol=1e-5)
    for path, prob in found.items():
        assert prob == pytest.approx(every[path], rel=1e-5)


@settings(max_examples=EXAMPLES)
@given(
    documents=DOCUMENTS,
    tail=TAILS,
    matches=st.tuples(st.integers(1, 4), st.integers(0, 4)),
    max_places=st.integers(1, 40),
    limits=st.tuples(st.integers(1, 12), st.integers(1, 6)),
)
def test_tree_is_that_of_plain_counting(
    scratch: Path,
    documents: list[list[int]],
    tail: list[int],
    matches: tuple[int, int],
    max_places: int,
    limits: tuple[int, int],
) -> None:
    min_match, max_match = matches[0], matches[0] + matches[1]
    settings = CorpusConfig(
        write(scratch, documents),
        min_match=min_match,
        max_match=max_match,
        max_places=max_places,
        min_prob=0.005,
    )
    assert_draws_as_counted(settings, joined(documents), tail, limits)


@pytest.mark.parametrize("seed", range(30))
def test_wide_levels_are_sampled_as_by_plain_counting(scratch: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, 3, 80).tolist() for _ in range(3)]
    settings = CorpusConfig(
        write(scratch, documents),
        min_match=1,
        max_match=5,
        max_places=int(rng.integers(2, 30)),
        min_prob=float(rng.choice([0.002, 0.05, 0.3])),
    )
    tail = rng.integers(0, 3, 6).tolist()
    assert_draws_as_counted(settings, joined(documents), tail, (16, 4))


@settings(max_examples=EXAMPLES)
@given(documents=DOCUMENTS)
def test_both_sorts_order_the_places_by_their_contexts(documents: list[list[int]]) -> None:
    text = joined(documents)
    reversed_text = np.array(text[::-1], np.int32)
    expected = sorted_places(text)
    for order in (sort_by_doubling(reversed_text), suffix_array(reversed_text)):
        assert sorted(order.tolist()) == list(range(len(text)))
        places = [len(text) - int(start) for start in order]
        assert [p for p in places if p in set(expected)] == expected
    index = index_of(documents)
    assert index.tokens.tolist() == text
    assert index.order.tolist() == expected
    assert check_structure(index) is None
    assert check_order(index) is None


def test_long_repeats_are_sorted_as_far_as_they_are_looked_up() -> None:
    index = build_index([np.zeros(1000, np.int32), np.zeros(700, np.int32)])
    assert check_order(index) is None


def test_order_check_sees_what_is_wrong() -> None:
    rng = np.random.default_rng(0)
    index = build_index([rng.integers(0, 9, 400, dtype=np.int32)])
    swapped = index.order.copy()
    swapped[[0, -1]] = swapped[[-1, 0]]
    assert "in order" in str(check_order(CorpusIndex(index.tokens, swapped, index.keys)))
    assert "keys" in str(check_order(CorpusIndex(index.tokens, index.order, index.keys + 1)))
    repeated = index.order.copy()
    repeated[0] = repeated[1]
    assert "missing" in str(check_order(CorpusIndex(index.tokens, repeated, index.keys)))
    shorter = CorpusIndex(index.tokens, index.order[:-1], index.keys)
    assert "expected 399 places" in str(check_order(shorter))


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "at least two tokens"),
        ([[5]], "at least two tokens"),
        ([[1, -1, 2]], "expected token ids within"),
        ([[1, 1 << 21]], "expected token ids within"),
    ],
)
def test_index_refuses_documents(documents: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        index_of(documents)


def test_largest_token_is_found(scratch: Path) -> None:
    largest = finder.MAX_TOKEN_ID
    drafter = CorpusDrafter(CorpusConfig(write(scratch, [[7, largest, largest, 8, 9]])))
    drafter.start("a", [largest, largest])
    assert chain_of(drafter, "a", 2) == [8, 9]


def test_proposes_what_followed(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting))
    assert isinstance(drafter, Drafter)
    assert drafter.name == "corpus"
    drafter.start("a", [99, 12, 13])
    assert chain_of(drafter, "a", 3) == [14, 15, 16]
    drafter.extend("a", [14, 15])
    assert chain_of(drafter, "a", 3) == [16, 17, 18]


def test_never_crosses_from_one_document_to_the_next(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting, min_match=1))
    drafter.start("a", [27, 28])
    assert chain_of(drafter, "a", 8) == [29]  # the document ends there
    drafter.extend("a", [29])
    assert chain_of(drafter, "a", 8) == []
    drafter.extend("a", [30])  # a match of one token, not of two
    assert chain_of(drafter, "a", 2) == [31, 32]
    longer = CorpusDrafter(CorpusConfig(counting, min_match=2))
    longer.start("a", [29, 30])
    assert chain_of(longer, "a", 2) == []


def test_abstains_under_the_shortest_match(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting, min_match=3))
    drafter.start("a", [99, 12, 13])
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [14])
    assert chain_of(drafter, "a", 2) == [15, 16]


def test_limits_and_unknown_requests(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting))
    drafter.start("a", [12, 13])
    known, unknown = drafter.propose(["a", "b"], 5, 2)
    assert (known.num_nodes, unknown.num_nodes) == (2, 0)
    assert drafter.propose([], 4, 4) == []
    assert drafter.propose(["a"], 0, 4)[0].num_nodes == 0
    assert drafter.propose(["a"], 4, 0)[0].num_nodes == 0
    drafter.extend("b", [1])
    drafter.truncate("b", 0)
    drafter.stop("b")
    with pytest.raises(ValueError, match="max_nodes >= 0"):
        drafter.propose(["a"], -1, 4)
    with pytest.raises(ValueError, match="length >= 0"):
        drafter.truncate("a", -1)
    with pytest.raises(ValueError, match="integer"):
        drafter.start("c", [0.5])


@pytest.mark.parametrize("strange", [-1, -7, 1 << 21, (1 << 31) - 1])
def test_ids_that_no_corpus_holds_match_nothing(counting: Path, strange: int) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting))
    drafter.start("a", [12, 13, strange])
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [14])  # one token behind it is less than min_match
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [15])
    assert chain_of(drafter, "a", 2) == [16, 17]
    shorter = CorpusDrafter(CorpusConfig(counting, min_match=1))
    shorter.start("a", [12, strange, 14])
    assert chain_of(shorter, "a", 2) == [15, 16]


def test_the_tail_goes_on_for_ever(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting, min_match=3, max_match=3))
    drafter.start("a", [10, 11])
    for _ in range(3):
        for token in range(12, 28):
            drafter.extend("a", [token])
            assert chain_of(drafter, "a", 2) == [token + 1, token + 2]
        drafter.extend("a", list(range(10, 28)))  # more than is kept
        assert chain_of(drafter, "a", 2) == [28, 29]
        drafter.extend("a", [10, 11])


def test_cut_back_as_far_as_the_tail_is_kept(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting, max_match=3))  # twice as many are kept
    for length, expected in ((18, [28, 29]), (16, [26, 27]), (5, [])):
        drafter.start("a", list(range(10, 30)))
        drafter.truncate("a", length)
        drafter.truncate("a", 100)  # nothing is there
        assert chain_of(drafter, "a", 2) == expected
        drafter.extend("a", [20, 21])
        assert chain_of(drafter, "a", 2) == [22, 23]


def test_rows_are_used_again(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting))
    for request in range(100):
        drafter.start(request, [12, 13])
        drafter.start("a", [12, 13])
        drafter.stop(request)
    assert len(drafter._sizes) == 4


def test_a_restarted_request_has_no_past(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting))
    drafter.start("a", [12])
    drafter.start("a", [13])
    assert chain_of(drafter, "a") == []
    drafter.extend("a", [14])
    drafter.stop("a")
    assert chain_of(drafter, "a") == []
    drafter.start("a", [15])
    assert chain_of(drafter, "a") == []


@settings(max_examples=EXAMPLES // 2)
@given(
    operations=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["start", "extend", "extend", "extend", "truncate", "stop"]),
            st.lists(st.integers(10, 14), max_size=5),
        ),
        max_size=25,
    )
)
def test_interleaved_requests_draft_as_if_alone(
    repeating: Path, operations: list[tuple[int, str, list[int]]]
) -> None:
    """After any operations a request drafts what a fresh one with the same text does."""
    drafter = CorpusDrafter(CorpusConfig(repeating, max_match=3))
    texts: dict[int, list[int]] = {}
    kept: dict[int, int] = {}  # tokens at the end that the drafter still has, at least
    for request, verb, tokens in operations:
        if verb == "start":
            drafter.start(request, np.array(tokens, np.int32))
            texts[request], kept[request] = list(tokens), len(tokens)
        elif verb == "extend":
            drafter.extend(request, np.array(tokens, np.int32))
            if request in texts:
                texts[request] += tokens
                kept[request] = min(3, kept[request] + len(tokens))
        elif verb == "truncate" and request in texts:
            length = max(0, len(texts[request]) - len(tokens))
            drafter.truncate(request, length)
            kept[request] = max(0, kept[request] - (len(texts[request]) - length))
            del texts[request][length:]
        elif verb == "stop":
            drafter.stop(request)
            texts.pop(request, None)
        for other, text in texts.items():
            if kept[other] >= min(3, len(text)):
                drafter.start("fresh", np.array(text, np.int32))
                mine, fresh = drafter.propose([other, "fresh"], 6, 4)
                assert paths_of(mine) == paths_of(fresh)


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("corpus") / "repeating.pool"
    return write(path, [rng.integers(10, 15, 60).tolist() for _ in range(4)])


def test_many_requests_at_once_draft_as_one(repeating: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(repeating))
    rng = np.random.default_rng(1)
    for request in range(70):
        drafter.start(request, rng.integers(10, 15, 1 + request))
    together = drafter.propose(range(70), 6, 4)
    assert sum(tree.num_nodes for tree in together) > 70
    for request in range(70):
        (alone,) = drafter.propose([request], 6, 4)
        assert paths_of(alone) == paths_of(together[request])


def test_promises_that_never_come_true_count_for_less(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting))
    drafter.start("a", [12, 13])
    (before,) = drafter.propose(["a"], 4, 4)
    for _ in range(300):
        drafter.propose(["a"], 4, 4)
        drafter.extend("a", [99, 12, 13])
    (after,) = drafter.propose(["a"], 4, 4)
    assert after.token_ids.tolist() == before.token_ids.tolist()
    assert after.probs[0] < 0.5 * before.probs[0]
    for _ in range(900):
        drafter.propose(["a"], 4, 4)
        drafter.extend("a", [14, 15, 16, 17, 12, 13])
    (later,) = drafter.propose(["a"], 4, 4)
    later.validate()
    assert later.probs[0] > 1.5 * after.probs[0]


def test_unverified_nodes_are_not_counted() -> None:
    grower.compile_kernels()
    nodes = np.array([[5, 6, 7, 8], [-1, 0, 1, -1]], np.int32)
    raw = np.array([0.5, 0.5, 0.5, 0.25], np.float32)
    tally = np.zeros((5, 2))
    grower.settle(nodes, raw, 4, np.array([5], np.int32), tally)
    # the first node is right, the second and third are not known, the last is wrong
    assert tally.tolist() == [[0, 0], [1, -0.25], [1, 0.5], [0, 0], [0, 0]]


@pytest.mark.skipif(not COMPILED, reason="needs the compiler")
def test_kernels_are_compiled_for_read_only_arrays(counting: Path) -> None:
    drafter = CorpusDrafter(CorpusConfig(counting))
    for module, names in (
        (finder, ("_usable", "_shared", "_find", "_reach", "_share", "_gather", "search")),
        (finder, ("count_misplaced",)),
        (grower, ("_split", "_enqueue", "_grow", "grow", "settle")),
    ):
        for name in names:
            assert len(getattr(module, name).signatures) == 1
    with pytest.raises(TypeError, match="No matching definition"):
        finder.count_misplaced(drafter.index.tokens, drafter.index.order, np.zeros(3), 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"min_match": 0},
        {"min_match": 9, "max_match": 8},
        {"max_match": 129},
        {"max_places": 0},
        {"min_prob": 0.0},
    ],
)
def test_refuses_settings(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        CorpusConfig("any.pool", **bad)  # type: ignore[arg-type]


def test_mapped_memory_is_read_only(counting: Path) -> None:
    index, description = verify_pool(counting)
    assert description == DESCRIPTION
    for array in (index.tokens, index.order, index.keys):
        assert type(array) is np.ndarray
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_another_tokenizer_is_refused_by_name(counting: Path) -> None:
    assert CorpusDrafter(CorpusConfig(counting, fingerprint=DESCRIPTION.fingerprint))
    other = tokenizer_fingerprint({"a": 1, "b": 0})
    with pytest.raises(SnapshotError, match=rf"{other}.*got one built with tiny .*counting\.pool"):
        CorpusDrafter(CorpusConfig(counting, fingerprint=other))


def test_fingerprint_tells_vocabularies_apart() -> None:
    vocabularies: list[dict[str, int]] = [
        {"a": 0, "b": 1},
        {"a": 1, "b": 0},
        {"a": 0, "bc": 1},
        {"ab": 0, "c": 1},
        {"a": 0},
        {"\ud800": 0, "b": 1},
        {},
    ]
    fingerprints = [tokenizer_fingerprint(vocabulary) for vocabulary in vocabularies]
    assert len(set(fingerprints)) == len(vocabularies)
    assert fingerprints[0] == tokenizer_fingerprint({"b": 1, "a": 0})
    assert fingerprints[0].startswith("2:")


def test_damage_anywhere_is_refused_by_name(counting: Path, tmp_path: Path) -> None:
    data = counting.read_bytes()
    path = tmp_path / "damaged.pool"
    rng = np.random.default_rng(2)
    cuts = [0, 1, 7, 63, 64, 100, len(data) - 1, *rng.integers(0, len(data), 20).tolist()]
    damaged = [data[:cut] for cut in cuts] + [data + b"\0", b"PK\3\4" + data[4:]]
    for place in (8, 12, 16, 30, 70, 200, *rng.integers(64, len(data), 20).tolist()):
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(SnapshotError, match=r"damaged\.pool"):
            open_pool(path)


def test_other_snapshots_are_refused(tmp_path: Path) -> None:
    index = index_of([[1, 2, 3, 1, 2]])
    arrays = {"tokens": index.tokens, "order": index.order, "keys": index.keys}
    metadata = {"tokenizer": "t", "fingerprint": "f", "num_documents": 1, "num_text_bytes": 1}
    path = tmp_path / "other.pool"
    outside, below = index.order.copy(), index.order.copy()
    outside[0], below[0] = index.tokens.size - 1, 1
    for kind, changed, described in (
        ("suffix", {}, metadata),
        (KIND, {}, {}),
        (KIND, {"order": outside}, metadata),
        (KIND, {"order": below}, metadata),
        (KIND, {"order": index.order.astype(np.int64)}, metadata),
        (KIND, {"tokens": index.tokens[1:]}, metadata),
        (KIND, {"tokens": index.tokens[:-1]}, metadata),
        (KIND, {"keys": np.zeros(0, np.int64)}, metadata),
        (KIND, {"keys": np.zeros(2, np.int64)}, metadata),
    ):
        write_snapshot(path, kind, {**arrays, **changed}, described)
        with pytest.raises(SnapshotError, match=r"expected.*other\.pool"):
            open_pool(path)
    write_snapshot(path, KIND, arrays, metadata)
    assert open_pool(path)[0].tokens.tolist() == index.tokens.tolist()
    wrong_order = index.order[::-1].copy()
    write_snapshot(path, KIND, {**arrays, "order": wrong_order}, metadata)
    open_pool(path)
    with pytest.raises(SnapshotError, match=r"in order.*other\.pool"):
        verify_pool(path)


def test_two_processes_share_a_file(repeating: Path, tmp_path: Path) -> None:
    path = tmp_path / "shared.pool"
    path.write_bytes(repeating.read_bytes())
    code = (
        "import sys\n"
        "from freedraft.drafters.corpus import CorpusConfig, CorpusDrafter\n"
        "drafter = CorpusDrafter(CorpusConfig(sys.argv[1]))\n"
        "drafter.start('a', [10, 11, 12])\n"
        "(tree,) = drafter.propose(['a'], 8, 8)\n"
        "print(tree.token_ids.tolist(), tree.parents.tolist(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    drafter = CorpusDrafter(CorpusConfig(path))
    drafter.start("a", [10, 11, 12])
    (mine,) = drafter.propose(["a"], 8, 8)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().strip()
        # both hold the file now; a new one takes its place without a change to what is mapped
        write(path, [[1, 2, 3]])
        (again,) = drafter.propose(["a"], 8, 8)
        other.communicate()
    assert theirs == f"{mine.token_ids.tolist()} {mine.parents.tolist()}"
    assert paths_of(again) == paths_of(mine)
    assert open_pool(path)[0].tokens.tolist() == [-1, 1, 2, 3, -1]
