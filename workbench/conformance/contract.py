"""What the suite asks of a path under test, and how a check says how it went."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from ...drafters import DEFAULT_NAMESPACE, Drafter
from .pattern import Pattern


class Feature(Enum):
    """What a check needs of a path; one that lacks it says why, and the check is skipped."""

    TEXT = "runs a model to text"
    BATCH = "several requests at once"
    ARRIVALS = "requests that join a running batch"
    OWN_DRAFTER = "any drafter, the suite's faulty ones too"
    REQUEST_IDS = "request ids chosen by the caller"
    NAMESPACES = "namespaces"
    EOS = "end tokens chosen by the caller"
    MIN_TOKENS = "a least number of new tokens"
    STOP_STRINGS = "stop strings"
    STREAM = "tokens as they are emitted"
    NO_TOKENS = "a request for no tokens"
    LOGPROBS = "log-probabilities"
    SEED = "a seed that gives the same tokens with and without drafts"
    REPETITION_PENALTY = "repetition penalty"
    FREQUENCY_PENALTY = "frequency and presence penalties"
    MIN_P = "min-p"
    LOGIT_BIAS = "logit bias"
    BAD_WORDS = "bad words"
    GRAMMAR = "a grammar"
    REASONING = "a grammar that begins behind a token"
    PREEMPTION = "requests that are put aside for want of memory and resumed"
    RECURRENT = "recurrent and hybrid models"
    ROUNDED = "half precision"
    EXACT = "greedy text that does not depend on the batch's shape"
    STEPS = "what was drafted and accepted in each step"
    BUDGET_CHANGES = "a node budget that changes while a request runs"


class Skipped(Exception):
    """The path cannot be asked this; the message says why."""


class Fault(Exception):
    """The path did something wrong; the message says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        prompt_ids: the prompt.
        max_new_tokens: the cap.
        request_id: the caller's id; the path's own when absent.
        namespace: where the drafter learns.
        eos_token_ids: tokens that end the text; none when empty.
        min_new_tokens: end tokens are banned before that many.
        stop_strings: strings that end the text.
        seed: sample with this seed at temperature 1; greedy when absent.
        options: further options by transformers' names, such as ``repetition_penalty``.
        logprobs: ask for log-probabilities.
        pattern: what the new text must be, up to an end token.
        pattern_after: the pattern binds only behind the first token of this id among the new ones,
            as a grammar does behind a model's reasoning. One such request runs at a time.
        abort_after: the caller leaves after that many tokens.
        arrives_at: step of the run at which the request comes.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    request_id: Hashable | None = None
    namespace: str = DEFAULT_NAMESPACE
    eos_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    seed: int | None = None
    options: tuple[tuple[str, object], ...] = ()
    logprobs: bool = False
    pattern: Pattern | None = None
    pattern_after: int | None = None
    abort_after: int | None = None
    arrives_at: int = 0


@dataclass(slots=True)
class Outcome:
    """What came of a request.

    Attributes:
        token_ids: new tokens.
        text: their text, as the path gives it.
        finish_reason: ``"eos"``, ``"stop"``, ``"length"``, ``"context"`` or ``"abort"``.
        logprobs: of each new token, if asked for.
        streamed: tokens in the order in which they were shown, if the path streams.
        counted: new tokens by the path's own count.
        steps: drafted and accepted nodes of each of the request's steps, if the path tells.
        switched_off: whether a fault has switched its drafter off.
        preemptions: how often it was put aside and resumed.
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: list[float] | None = None
    streamed: list[int] | None = None
    counted: int | None = None
    steps: list[tuple[int, int]] = field(default_factory=list)
    switched_off: bool = False
    preemptions: int = 0

    @property
    def accepted(self) -> int:
        """Accepted nodes of all steps."""
        return sum(accepted for _, accepted in self.steps)


class Path(Protocol):
    """A way to run freedraft: an engine with its adapter.

    Attributes:
        name: as the command line has it.
        how: ``"run"`` for a real engine, ``"contract"`` for an adapter in a simulated one.
        vocab_size: ids lie below it.
        max_context: prompt and new tokens together.
        missing: the features that it lacks, with the reason.
    """

    name: str
    how: str
    vocab_size: int
    max_context: int
    missing: dict[Feature, str]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        ...

    def run(
        self, requests: Sequence[Request], drafter: Drafter | str | None, max_nodes: int = 8
    ) -> list[Outcome]:
        """Run the requests together.

        Args:
            requests: what is asked.
            drafter: a drafter, a name of one, or ``None`` for plain decoding.
            max_nodes: most drafted tokens of a request and step.
        """
        ...


@runtime_checkable
class MeetsRecurrent(Protocol):
    """A path that may be handed a recurrent model."""

    def run_recurrent(
        self, request: Request, drafter: Drafter | str | None
    ) -> dict[str, Outcome | str]:
        """Return for each recurrent or hybrid model what came, or the text of the refusal."""
        ...


@runtime_checkable
class Rounds(Protocol):
    """A path that also runs in half precision."""

    def in_half_precision(self) -> Path:
        """Return the same path with its model in bfloat16."""
        ...

    def gap(self, token_ids: Sequence[int], first: int, second: int) -> float:
        """Return how far the target's logits of two tokens lie apart behind a text.

        The unit is the spacing of bfloat16 numbers at the larger of the two logits.
        """
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: short, for tables and ``--only``.
        right: the right behaviour, in one sentence.
        needs: what a path must have.
        check: raises :class:`Fault`, or :class:`Skipped` with the reason.
    """

    name: str
    right: str
    needs: tuple[Feature, ...]
    check: Callable[[Path], None]


def require(path: Path, *features: Feature) -> None:
    """Skip the rest of a check unless the path has all of the features.

    Raises:
        Skipped: it lacks one.
    """
    for feature in features:
        if feature in path.missing:
            raise Skipped(f"{feature.value}: {path.missing[feature]}")


def expect(what: str, wanted: object, got: object) -> None:
    """Compare what should be with what is.

    Raises:
        Fault: they differ.
    """
    if wanted != got:
        raise Fault(f"{what}: expected {_short(wanted)}, got {_short(got)}")


def expect_true(what: str, holds: bool) -> None:
    """Demand that something holds.

    Raises:
        Fault: it does not.
    """
    if not holds:
        raise Fault(what)


def _short(value: object, most: int = 160) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
