"""What each adapter declares about its engine; README's table and the doctor are made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

TREE = "tree"
CHAIN = "chain"

RUN = "run for real"
CONTRACT = "contract-tested"
READ = "read"
EVIDENCE = (RUN, CONTRACT, READ)
"""How an adapter is tested: on the engine itself, against its code or recorded signatures, or not
at all: only written after its source."""

_MODULES = (
    "generation_support",
    "vllm_support",
    "sglang_support",
    "tensorrt_llm_support",
    "llama_cpp_support",
)


@dataclass(frozen=True, slots=True)
class EngineSupport:
    """An adapter's own words about what it does.

    Attributes:
        name: the engine, as users know it.
        package: its distribution.
        version: the release that the tests use, or whose signatures they hold the adapter to.
        how: what a user writes to get drafts there, without the details.
        shape: :data:`TREE` or :data:`CHAIN`: what the engine verifies.
        families: which drafters work there.
        sampling: which of the engine's sampling works, and what does not.
        evidence: one of :data:`EVIDENCE`.
        tested_on: what the evidence is: machine, package, stand-ins.
        page: its page in the documentation.
        module: the engine's Python module; named as the distribution when empty.
        plugin_group: the group of entry points in which the engine finds freedraft, if it needs to.
    """

    name: str
    package: str
    version: str
    how: str
    shape: str
    families: str
    sampling: str
    evidence: str
    tested_on: str
    page: str
    module: str = ""
    plugin_group: str = ""

    def __post_init__(self) -> None:
        """Check the words that have a fixed meaning.

        Raises:
            ValueError: an unknown shape or evidence.
        """
        if self.shape not in (TREE, CHAIN):
            raise ValueError(f"expected shape {TREE!r} or {CHAIN!r}, got {self.shape!r}")
        if self.evidence not in EVIDENCE:
            raise ValueError(f"expected evidence among {EVIDENCE}, got {self.evidence!r}")


def supported_engines() -> list[EngineSupport]:
    """Return every adapter's declaration; no engine is imported."""
    package = __name__.rpartition(".")[0]
    found = []
    for name in _MODULES:
        support = import_module(f"{package}.{name}").SUPPORT
        assert isinstance(support, EngineSupport)
        found.append(support)
    return found


def markdown_table(engines: Iterable[EngineSupport], docs: str) -> str:
    """Return the table of engines as Markdown.

    Args:
        engines: one row each, in this order.
        docs: the way to the documentation's folder from where the table stands, "" or ending in
            a slash.
    """
    header = ("engine", "version", "how", "shape", "drafters", "sampling", "how tested")
    rows = [
        (
            f"[{engine.name}]({docs}{engine.page})",
            engine.version,
            engine.how,
            engine.shape,
            engine.families,
            engine.sampling,
            f"{engine.evidence}: {engine.tested_on}",
        )
        for engine in engines
    ]
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
