"""A toy engine around an adapter: it schedules, verifies greedily and samples from a toy model.

For engines that cannot run here. What belongs to the engine itself (end tokens, stop strings,
sampling) is not checked with it, because it would be this module that was checked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...drafters import CandidateTree, Drafter, create_drafter
from ...verifier.walk import walk
from .alphabet import CHARACTERS, MAX_CONTEXT
from .contract import Feature, Outcome, Request

_MOST_TOKENS = 3 * MAX_CONTEXT
"""What the toy engine's memory holds of all requests together."""
_ENGINES_PART = "the engine's own part: an adapter only proposes"
ENGINES_PART = {
    feature: _ENGINES_PART
    for feature in (
        Feature.EOS,
        Feature.MIN_TOKENS,
        Feature.STOP_STRINGS,
        Feature.STREAM,
        Feature.NO_TOKENS,
        Feature.LOGPROBS,
        Feature.SEED,
        Feature.REPETITION_PENALTY,
        Feature.FREQUENCY_PENALTY,
        Feature.MIN_P,
        Feature.LOGIT_BIAS,
        Feature.BAD_WORDS,
        Feature.GRAMMAR,
        Feature.REASONING,
        Feature.RECURRENT,
        Feature.ROUNDED,
    )
}


@dataclass(slots=True)
class Running:
    """A request in the toy engine.

    Attributes:
        request: what was asked.
        request_id: unique among those that run.
        token_ids: the prompt and what was emitted.
        draft: what is verified in the next step.
        outcome: what came so far.
        is_resident: whether its cache is in memory; once put aside, it must be read anew.
    """

    request: Request
    request_id: Hashable
    token_ids: list[int]
    draft: CandidateTree = field(default_factory=CandidateTree.empty)
    outcome: Outcome = field(default_factory=lambda: Outcome([], "", ""))
    is_resident: bool = False

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        left = self.request.max_new_tokens - len(self.outcome.token_ids)
        return min(left, MAX_CONTEXT - len(self.token_ids))


class Adapter(Protocol):
    """An adapter's calls, in the engine's place."""

    def draft(self, running: Sequence[Running]) -> list[CandidateTree]:
        """Tell the adapter the requests' tokens and return what it drafts for the next step."""
        ...

    def end(self, running: Running) -> None:
        """Tell the adapter that a request has ended."""
        ...

    def is_switched_off(self, running: Running) -> bool:
        """Return whether a fault has switched the request off."""
        ...


class SimulatedPath:
    """A path whose engine is simulated; a subclass makes the adapter."""

    name = "simulated"
    how = "contract"

    def __init__(self) -> None:
        """Use an alphabet for tokens."""
        self.vocab_size = len(CHARACTERS) + 1
        self.max_context = MAX_CONTEXT
        self.missing = dict(ENGINES_PART)
        self._adapters: dict[tuple[int, int], tuple[Drafter | str | None, Adapter]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return [1 + CHARACTERS.index(character) for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return "".join(CHARACTERS[token - 1] for token in token_ids if token)

    def make_adapter(self, drafter: Drafter, max_nodes: int) -> Adapter:
        """Return the adapter, drafting with a drafter."""
        raise NotImplementedError

    def run(
        self, requests: Sequence[Request], drafter: Drafter | str | None, max_nodes: int = 8
    ) -> list[Outcome]:
        """Run the requests; those that arrive later join the batch.

        Raises:
            ValueError: a prompt is empty or fills the context.
        """
        for request in requests:
            if not 1 <= len(request.prompt_ids) < MAX_CONTEXT:
                raise ValueError(
                    f"expected a prompt of 1 to {MAX_CONTEXT - 1} tokens, got "
                    f"{len(request.prompt_ids)}"
                )
        adapter = None if drafter is None else self._adapter(drafter, max_nodes)
        waiting = [
            Running(
                request,
                f"{id(request)}" if request.request_id is None else request.request_id,
                list(request.prompt_ids),
            )
            for request in requests
        ]
        everyone = list(waiting)
        batch: list[Running] = []
        step = 0
        while waiting or batch:
            batch += [each for each in waiting if each.request.arrives_at <= step]
            waiting = [each for each in waiting if each.request.arrives_at > step]
            resident = _resident(batch)
            for running in resident:
                _verify(running)
            for running in [each for each in resident if each.outcome.finish_reason]:
                batch.remove(running)
                resident.remove(running)
                if adapter is not None:
                    running.outcome.switched_off = adapter.is_switched_off(running)
                    adapter.end(running)
            if adapter is not None and resident:
                for running, tree in zip(resident, adapter.draft(resident), strict=True):
                    running.draft = tree
            step += 1
        for running in everyone:
            running.outcome.text = self.decode(running.outcome.token_ids)
        return [running.outcome for running in everyone]

    def _adapter(self, drafter: Drafter | str, max_nodes: int) -> Adapter:
        """Return the adapter of a drafter, kept while the drafter is: an engine starts once."""
        if isinstance(drafter, str):
            return self.make_adapter(create_drafter(drafter), max_nodes)
        kept = self._adapters.get((id(drafter), max_nodes))
        if kept is None or kept[0] is not drafter:
            kept = (drafter, self.make_adapter(drafter, max_nodes))
            self._adapters = {(id(drafter), max_nodes): kept}
        return kept[1]


def next_token(token_ids: Sequence[int]) -> int:
    """Return the toy model's next token: it repeats itself, with an odd token now and then."""
    last = token_ids[-1]
    before = token_ids[-2] if len(token_ids) > 1 else 7
    odd = len(token_ids) % 11 == 0
    return 1 + (31 * last + 17 * before + 5 * odd) % 23


def _resident(batch: Sequence[Running]) -> list[Running]:
    """Return the requests whose text is in memory; who came last is put aside first."""
    resident: list[Running] = []
    room = _MOST_TOKENS
    for running in batch:
        room -= len(running.token_ids)
        if room >= 0:
            running.is_resident = True
            resident.append(running)
        elif running.is_resident:
            running.is_resident = False
            running.draft = CandidateTree.empty()
            running.outcome.preemptions += 1
    return resident


def _verify(running: Running) -> None:
    """Emit one step's tokens: the accepted draft and one more, up to the request's end."""
    outcome = running.outcome
    request = running.request

    def emit(token: int, _: int | None) -> bool:
        running.token_ids.append(token)
        outcome.token_ids.append(token)
        if request.abort_after is not None and len(outcome.token_ids) >= request.abort_after:
            outcome.finish_reason = "abort"
        elif len(outcome.token_ids) >= request.max_new_tokens:
            outcome.finish_reason = "length"
        elif len(running.token_ids) >= MAX_CONTEXT:
            outcome.finish_reason = "context"
        return not outcome.finish_reason

    result = walk(running.draft, lambda _: next_token(running.token_ids), emit)
    outcome.steps.append((running.draft.num_nodes, len(result.accepted)))
    running.draft = CandidateTree.empty()
