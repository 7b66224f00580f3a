"""The stochastic n-gram drafter: exact by enumeration of its draws and of the verifier's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from acceptance_enumeration import Branching, Path, RandomModel, enumerate_outcomes

from freedraft.drafters.base import Drafter, Feedback, TakesVocabSize, WantsTopIds
from freedraft.drafters.stochastic_ngram import StochasticNgramConfig, StochasticNgramDrafter
from freedraft.drafters.stochastic_ngram.drafter import _draw_index
from freedraft.drafters.stochastic_ngram.growth import DoubleArray, DrawnTree, grow_drawn_tree
from freedraft.drafters.tree import CandidateTree, IntArray
from freedraft.verifier.rejection import TreeDraft, verify_by_rejection

VOCAB_SIZE = 4
ACCEPTANCE = np.array([[0.5, 0.9], [0.6, 0.7]])  # siblings come early
Change = Callable[[CandidateTree], CandidateTree]


def grow(
    draft_model: RandomModel, branching: Branching, max_nodes: int, keep: int = VOCAB_SIZE
) -> DrawnTree:
    """Grow a tree whose draws are events; the class of a context depends on its last token."""

    def successors(context: IntArray) -> tuple[IntArray, DoubleArray, int]:
        path = tuple(int(token) for token in context[::-1] if token >= 0)
        row = draft_model(path)
        tokens = np.flatnonzero(row)[:keep].astype(np.int32)
        return tokens, row[tokens], int(context[0]) % 2

    return grow_drawn_tree(
        np.full(2, -1, np.int32),
        successors,
        lambda probs: branching.pick(probs.tolist()),
        ACCEPTANCE,
        vocab_size=VOCAB_SIZE,
        max_nodes=max_nodes,
        max_depth=3,
        min_prob=0.01,
    )


def largest_error(
    max_nodes: int, seed: int, change: Change = lambda tree: tree, keep: int = VOCAB_SIZE
) -> float:
    """Return how far the first two tokens' distribution is from the target's."""
    target, draft_model = RandomModel(VOCAB_SIZE, seed), RandomModel(VOCAB_SIZE, seed + 1000)

    def run(branching: Branching) -> Path:
        tree = change(grow(draft_model, branching, max_nodes, keep).tree)
        emitted: list[int] = []

        def emit(token: int, node: int) -> bool:
            emitted.append(token)
            return len(emitted) < 2

        def target_probs(node: int) -> DoubleArray:
            return target(tuple(tree.token_ids[tree.path(node)].tolist()))

        verify_by_rejection(TreeDraft(tree), target_probs, branching, emit)
        return tuple(emitted)

    mass: dict[Path, float] = {}
    for probability, emitted in enumerate_outcomes(run):
        mass[emitted] = mass.get(emitted, 0.0) + probability
    for path in [path for path in mass if len(path) == 1]:
        share = mass.pop(path)
        for token, probability in enumerate(target(path).tolist()):
            mass[*path, token] = mass.get((*path, token), 0.0) + share * probability
    return max(
        abs(prob - target(())[path[0]] * target(path[:1])[path[1]]) for path, prob in mass.items()
    )


@pytest.mark.parametrize("keep", [2, VOCAB_SIZE])
@pytest.mark.parametrize("max_nodes", [1, 2, 3, 4])
def test_text_is_distributed_as_the_targets(max_nodes: int, keep: int) -> None:
    for seed in range(4 if max_nodes < 4 else 2):
        assert largest_error(max_nodes, seed, keep=keep) < 1e-6  # q is stored in float32


def drop_unlikely(tree: CandidateTree) -> CandidateTree:
    """Take back the nodes that were drawn against the odds: what must never be done."""
    assert tree.draft_probs is not None
    own = tree.draft_probs[np.arange(tree.num_nodes), tree.token_ids]
    kept: list[int] = []
    for node, parent in enumerate(tree.parents.tolist()):
        if own[node] > 0.3 and (parent < 0 or parent in kept):
            kept.append(node)
    return tree.keep(kept)


def forget_order(tree: CandidateTree) -> CandidateTree:
    """Pass each sibling off as drawn with replacement."""
    assert tree.draft_probs is not None
    rows = tree.draft_probs.copy()
    first: dict[int, int] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        rows[node] = rows[first.setdefault(parent, node)]
    return CandidateTree(tree.token_ids, tree.parents, tree.probs, rows)


@pytest.mark.parametrize("change", [drop_unlikely, forget_order])
def test_a_wrong_use_of_the_draws_is_found_out(change: Change) -> None:
    assert max(largest_error(3, seed, change) for seed in range(4)) > 1e-2


def test_slots_are_chosen_before_their_tokens() -> None:
    """The shape drawn so far never depends on the newest token."""
    shapes: dict[Path, set[Path]] = {}
    model = RandomModel(VOCAB_SIZE, 7)
    for _, tree in enumerate_outcomes(lambda branching: grow(model, branching, 4).tree):
        tokens, parents = tuple(tree.token_ids.tolist()), tuple(tree.parents.tolist())
        for size in range(len(tokens)):
            shapes.setdefault(tokens[:size], set()).add(parents[: size + 1])
    assert all(len(found) == 1 for found in shapes.values())


def test_tree_is_valid_and_within_its_limits() -> None:
    for max_nodes in range(6):
        branching = Branching([])
        grown = grow(RandomModel(VOCAB_SIZE, 3), branching, max_nodes)
        grown.tree.validate(VOCAB_SIZE)
        assert grown.tree.num_nodes <= max_nodes
        assert len(grown.groups) == len(grown.ranks) == grown.tree.num_nodes
        if grown.tree.num_nodes:
            assert grown.tree.depths().max() <= 3
            draft = TreeDraft(grown.tree)
            assert all(draft.probs(node) is not None for node in range(grown.tree.num_nodes))


def taught(config: StochasticNgramConfig | None = None) -> StochasticNgramDrafter:
    """Return a drafter that has heard: after 1 comes 2 (0.6), 3 (0.3) or 4 (0.1)."""
    drafter = StochasticNgramDrafter(config or StochasticNgramConfig(1.0, max_vocab_size=16))
    drafter.set_vocab_size(16)
    drafter.start("a", [1])
    hear(drafter, "a", 1)
    return drafter


def hear(drafter: StochasticNgramDrafter, request_id: str, token: int) -> None:
    top_ids = np.array([[2, 3, 4]], np.int32)
    logprobs = np.log(np.array([[0.6, 0.3, 0.1]], np.float32))
    one = np.array([token], np.int32)
    drafter.observe(
        request_id, CandidateTree.empty(), Feedback(one, one[:0], one, top_ids, logprobs)
    )
    drafter.extend(request_id, one)


def test_draws_follow_the_stored_distribution_at_the_temperature() -> None:
    for temperature, share in ((1.0, 0.6), (0.5, 0.36 / (0.36 + 0.09 + 0.01))):
        drafter = taught(StochasticNgramConfig(temperature, max_vocab_size=16))
        counts = np.zeros(16)
        for _ in range(600):
            (tree,) = drafter.propose(["a"], 1, 1)
            counts[tree.token_ids[0]] += 1
        assert set(np.flatnonzero(counts)) == {2, 3, 4}
        assert counts[2] / 600 == pytest.approx(share, abs=0.06)  # three deviations
        assert tree.draft_probs is not None
        assert tree.draft_probs[0, 2] == pytest.approx(share, abs=1e-5)


def test_draws_are_those_of_the_seed() -> None:
    def draws(seed: int) -> list[list[int]]:
        config = StochasticNgramConfig(1.0, seed=seed, max_vocab_size=16)
        drafter = taught(config)
        return [drafter.propose(["a"], 3, 3)[0].token_ids.tolist() for _ in range(20)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_what_is_accepted_is_drafted_more() -> None:
    drafter = taught()
    top_ids = np.array([[2, 3, 4]], np.int32)
    before = drafter.propose(["a"], 8, 1)[0].probs[0]
    for _ in range(100):
        (tree,) = drafter.propose(["a"], 1, 1)
        logprobs = np.log(np.array([[0.6, 0.3, 0.1]] * 2, np.float32))
        drafter.observe(
            "a",
            tree,
            Feedback(
                np.array([tree.token_ids[0], 1], np.int32), np.zeros(1, np.int32),
                np.array([2, 2], np.int32), np.repeat(top_ids, 2, 0), logprobs,
            ),
        )  # fmt: skip
        drafter.extend("a", [int(tree.token_ids[0]), 1])
    assert drafter.propose(["a"], 1, 1)[0].probs[0] > before + 0.1


def test_edges() -> None:
    drafter = StochasticNgramDrafter(StochasticNgramConfig(max_vocab_size=16))
    for protocol in (Drafter, WantsTopIds, TakesVocabSize):
        assert isinstance(drafter, protocol)
    drafter.start("a", [1])
    hear(drafter, "a", 1)
    assert drafter.propose(["a"], 4, 4)[0].num_nodes == 0  # the vocabulary is not known
    with pytest.raises(ValueError, match="vocab_size >= 1, got 0"):
        drafter.set_vocab_size(0)
    drafter.set_vocab_size(4)
    (tree,) = drafter.propose(["a"], 4, 1)
    assert set(tree.token_ids.tolist()) <= {2, 3}  # 4 lies outside
    assert drafter.propose(["a", "b"], 0, 4)[0].num_nodes == 0
    assert drafter.propose(["nobody"], 4, 4)[0].num_nodes == 0
    drafter.extend("nobody", [1])
    drafter.truncate("a", 1)
    drafter.truncate("a", 0)
    assert drafter.propose(["a"], 4, 4)[0].num_nodes == 0
    with pytest.raises(ValueError, match="length >= 0"):
        drafter.truncate("a", -1)
    drafter.stop("a")
    drafter.stop("a")
    drafter.start("a", [])
    assert drafter.propose(["a"], 4, 4)[0].num_nodes == 0


def test_drawing_an_index() -> None:
    probs = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    assert [_draw_index(probs, u) for u in (0.0, 0.2, 0.25, 0.9, 1 - 2**-53)] == [1, 1, 3, 3, 3]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.0}, "temperature > 0, got 0"),
        ({"seed": -1}, "seed >= 0, got -1"),
        ({"num_successors": 0}, "num_successors within"),
        ({"min_prob": 1.0}, "min_prob within"),
        ({"max_namespaces": 0}, "max_namespaces >= 1"),
        ({"max_nodes": 0}, "max_nodes >= 1"),
    ],
)
def test_settings_are_checked(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StochasticNgramConfig(**wrong)  # type: ignore[arg-type]
