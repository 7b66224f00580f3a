"""What a benchmark runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .interleave import Arm

TRANSFORMERS = "transformers"
VLLM = "vllm"
LLAMA_CPP = "llama-cpp"
ENGINES = (TRANSFORMERS, VLLM, LLAMA_CPP)
PLAIN = "plain"
"""The arm that all others are compared with: the engine without speculation."""
PROMPT_LOOKUP = "prompt lookup"
"""The engine's own, with its own rule."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Settings of a benchmark.

    Attributes:
        model: an id, a folder, a GGUF file for llama-cpp, or ``default`` for transformers.
        engine: one of :data:`ENGINES`.
        drafters: names; each is an arm.
        max_new_tokens: of each run.
        num_rounds: that count.
        num_warmups: rounds before them, on each prompt.
        max_nodes: most drafted tokens of a step.
        cost_gate: verify only what pays.
        fast_path: with transformers, a further arm a drafter on the CPU fast path.
        dtype: of the model, by torch's name.
        max_context: tokens that the engine makes room for; not needed by transformers.
    """

    model: str
    engine: str = TRANSFORMERS
    drafters: tuple[str, ...] = ("blend",)
    max_new_tokens: int = 128
    num_rounds: int = 3
    num_warmups: int = 1
    max_nodes: int = 16
    cost_gate: bool = True
    fast_path: bool = False
    dtype: str = "float32"
    max_context: int = 2048

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: one is out of its range.
        """
        if self.engine not in ENGINES:
            raise ValueError(f"expected an engine among {', '.join(ENGINES)}, got {self.engine!r}")
        counts = (self.max_new_tokens, self.num_rounds, self.max_nodes, self.max_context)
        if min(counts) < 1 or self.num_warmups < 0:
            raise ValueError(
                "expected max_new_tokens, num_rounds, max_nodes and max_context >= 1 and "
                f"num_warmups >= 0, got {self}"
            )
        if self.fast_path and self.engine != TRANSFORMERS:
            raise ValueError(f"expected the engine transformers for fast_path, got {self.engine}")


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """An engine with its arms, ready to run.

    Attributes:
        arms: the plain one first.
        encode: a prompt's text to token ids, as a user's turn where the model has a chat template.
        notes: what could not be compared, and why.
    """

    arms: Sequence[Arm]
    encode: Callable[[str], list[int]]
    notes: Sequence[str] = field(default_factory=tuple)


def check_names(names: Sequence[str]) -> None:
    """Check the drafters' names.

    Raises:
        ValueError: a name comes twice or is not a drafter's.
    """
    from ...drafters.catalog import DRAFTER_NAMES, is_drafter_name

    unknown = [name for name in names if not is_drafter_name(name)]
    if unknown or len(set(names)) < len(names):
        raise ValueError(
            f"expected different drafters among {', '.join(DRAFTER_NAMES)}, got {', '.join(names)}"
        )
