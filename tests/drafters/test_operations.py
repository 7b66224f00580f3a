"""Any sequence of calls, against plain bookkeeping: what every drafter owes its caller.

Namespaces use disjoint symbols, so a token of another tenant is seen at once. The pools are small,
so texts are evicted all the time. ``pytest --hypothesis-profile=soak`` runs 10**5 operations for
each drafter.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from freedraft import CandidateTree, Drafter
from freedraft.drafters import ExtendsInBatches
from freedraft.drafters.blend import BlendDrafter
from freedraft.drafters.edit import EditDrafter
from freedraft.drafters.ngram import NgramConfig, NgramDrafter
from freedraft.drafters.suffix import SuffixConfig, SuffixDrafter

SMALL = 4 << 16


def ngram() -> NgramDrafter:
    return NgramDrafter(NgramConfig(capacity=128, page_size=8, max_requests=8))


def suffix() -> SuffixDrafter:
    return SuffixDrafter(
        SuffixConfig(max_namespace_bytes=SMALL, max_bytes=8 * SMALL, slice_tokens=16)
    )


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": ngram,
    "suffix": suffix,
    "edit": EditDrafter,
    "blend": lambda: BlendDrafter([ngram(), suffix(), EditDrafter()]),
}
IDS = st.integers(0, 4)
NAMESPACES = st.integers(0, 1)
SYMBOLS = st.lists(st.integers(-1, 2), max_size=24)


def shifted(symbols: list[int], namespace: int) -> list[int]:
    """Give each namespace its own symbols; placeholders stay negative."""
    return [symbol + 10 * namespace if symbol >= 0 else symbol for symbol in symbols]


class Operations(RuleBasedStateMachine):
    """Drives a drafter and keeps the running texts and each namespace's symbols beside it."""

    make: Callable[[], Drafter]
    needs_a_match = False  # whether nothing may be proposed behind a placeholder

    def __init__(self) -> None:
        super().__init__()
        self.drafter = type(self).make()
        self.texts: dict[int, list[int]] = {}
        self.namespace_of: dict[int, int] = {}
        self.seen: dict[int, set[int]] = {0: set(), 1: set()}  # symbols each namespace has had

    @rule(request=IDS, symbols=SYMBOLS, namespace=NAMESPACES)
    def start(self, request: int, symbols: list[int], namespace: int) -> None:
        prompt = shifted(symbols, namespace)
        self.drafter.start(request, prompt, f"tenant {namespace}")
        self.texts[request] = prompt
        self.namespace_of[request] = namespace
        self.seen[namespace] |= set(prompt)

    @rule(request=IDS, symbols=SYMBOLS, repeat=st.integers(1, 3))
    def extend(self, request: int, symbols: list[int], repeat: int) -> None:
        tokens = shifted(symbols * repeat, self.namespace_of.get(request, 0))
        self.drafter.extend(request, tokens)
        if request in self.texts:
            self.texts[request] += tokens
            self.seen[self.namespace_of[request]] |= set(tokens)

    @rule(texts=st.lists(st.tuples(IDS, SYMBOLS), max_size=5, unique_by=lambda text: text[0]))
    def extend_batch(self, texts: list[tuple[int, list[int]]]) -> None:
        if not isinstance(self.drafter, ExtendsInBatches):
            return
        told = [(i, shifted(symbols, self.namespace_of.get(i, 0))) for i, symbols in texts]
        self.drafter.extend_batch([i for i, _ in told], [tokens for _, tokens in told])
        for request, tokens in told:
            if request in self.texts:
                self.texts[request] += tokens
                self.seen[self.namespace_of[request]] |= set(tokens)

    @rule(request=IDS, length=st.integers(0, 40))
    def truncate(self, request: int, length: int) -> None:
        self.drafter.truncate(request, length)
        if request in self.texts:
            del self.texts[request][length:]

    @rule(request=IDS)
    def stop(self, request: int) -> None:
        self.drafter.stop(request)
        self.texts.pop(request, None)
        self.namespace_of.pop(request, None)

    @rule(request=IDS, max_nodes=st.integers(0, 20), max_depth=st.integers(0, 9))
    def propose_and_accept(self, request: int, max_nodes: int, max_depth: int) -> None:
        tree = self.drafter.propose([request], max_nodes, max_depth)[0]
        self.check(request, tree, max_nodes, max_depth)
        chain = tree.best_chain().token_ids.tolist()
        self.drafter.extend(request, chain)
        if request in self.texts:
            self.texts[request] += chain

    @invariant()
    def a_batch_holds_what_each_has_alone(self) -> None:
        requests = [3, "nobody", 0, 1, 4, 2]
        for request, tree in zip(requests, self.drafter.propose(requests, 6, 4), strict=True):
            self.check(request, tree, 6, 4)

    def check(
        self, request: int | str, tree: CandidateTree, max_nodes: int, max_depth: int
    ) -> None:
        tree.validate()
        assert tree.num_nodes <= max_nodes
        assert tree.num_nodes == 0 or int(tree.depths().max()) <= max_depth
        if request not in self.texts or not isinstance(request, int):
            assert tree.num_nodes == 0
        else:
            assert set(tree.token_ids.tolist()) <= self.seen[self.namespace_of[request]] - {-1}
        if (
            self.needs_a_match
            and isinstance(request, int)
            and self.texts.get(request, [])[-1:] == [-1]
        ):
            assert tree.num_nodes == 0


class SavedOperations(Operations):
    """The suffix pool also saves and loads its namespaces in between."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    @rule(namespace=NAMESPACES)
    def save(self, namespace: int) -> None:
        assert isinstance(self.drafter, SuffixDrafter)
        self.drafter.save(f"tenant {namespace}", Path(self.folder.name) / f"{namespace}.pool")

    @rule(namespace=NAMESPACES)
    def load(self, namespace: int) -> None:
        assert isinstance(self.drafter, SuffixDrafter)
        path = Path(self.folder.name) / f"{namespace}.pool"
        if path.exists():
            self.drafter.load(path, f"tenant {namespace}")

    def teardown(self) -> None:
        self.folder.cleanup()


class NgramOperations(Operations):
    make = staticmethod(DRAFTERS["ngram"])
    needs_a_match = True


class SuffixOperations(SavedOperations):
    make = staticmethod(DRAFTERS["suffix"])
    needs_a_match = True


class EditOperations(Operations):
    make = staticmethod(DRAFTERS["edit"])


class BlendOperations(Operations):
    make = staticmethod(DRAFTERS["blend"])


TestNgram = NgramOperations.TestCase
TestSuffix = SuffixOperations.TestCase
TestEdit = EditOperations.TestCase
TestBlend = BlendOperations.TestCase


def set_scale(*cases: type) -> None:
    """Keep the suite short, except in a soak."""
    if settings.get_current_profile_name() != "soak":
        examples = 60 if os.environ.get("NUMBA_DISABLE_JIT") != "1" else 4
        for case in cases:
            case.settings = settings(max_examples=examples, stateful_step_count=30)  # type: ignore[attr-defined]


set_scale(TestNgram, TestSuffix, TestEdit, TestBlend)
