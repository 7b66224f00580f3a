"""One row of a generation: its history, how its next token is chosen, when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from ...drafters import CandidateTree
from ...verifier import GrammarState, NoiseKey, choose_token
from ...verifier.grammar import commit_token, mask_scores, prune
from ...verifier.rejection import FloatArray64

# Their parameters are narrower tensor types in some versions of transformers than in others.
Processor = Callable[..., Tensor]
"""Called with ``(1, length)`` ids and ``(1, vocab_size)`` scores; returns scores."""
Criterion = Callable[..., Tensor]
"""Called with ``(1, length)`` ids and the scores so far; returns ``(1,)`` bool."""


_MEMORYLESS: tuple[type[object], ...] = (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
"""Processors that look at the scores only, whatever the history."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a row ends; of several that hold at one token, the first in this order names it.

    Attributes:
        eos_token_ids: tokens that end the text.
        criteria: further criteria by the reason they give, each called once a token with the
            row's history ``(1, length)``, as in plain decoding.
        max_length: longest history, padding and prompt included.
        max_context: longest text of the model, padding excluded.
    """

    eos_token_ids: frozenset[int]
    criteria: Sequence[tuple[str, Criterion]]
    max_length: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Recording:
    """What is kept of each emitted token beside its id."""

    logprobs: bool = False
    scores: bool = False
    logits: bool = False
    hidden_states: bool = False


@dataclass(slots=True)
class DecodeRow:
    """A row's state between steps.

    Attributes:
        index: row of the caller's batch.
        history: ``(1, capacity)`` int64; left padding, prompt, then what was emitted. Processors
            and criteria see it as plain decoding would show it.
        length: used part of the history.
        num_padding: left padding in it.
        key: noise for sampling, ``None`` for greedy choice.
        grammar: what the text must keep to, standing behind it, or ``None``.
        token_ids: emitted tokens.
        logprobs: log-probability of each emitted token under the raw logits, if recorded.
        scores: ``(1, vocab_size)`` processed scores of each emitted token, if recorded.
        logits: ``(1, vocab_size)`` raw logits of each emitted token, if recorded.
        hidden_states: of each emitted token, one ``(1, num_columns, hidden_size)`` for the
            embeddings and each layer, if recorded: the prompt's columns at the first token, later
            the one column that the token was chosen after.
        finish_reason: why the row has ended, or ``None``.
    """

    index: int
    history: Tensor
    length: int
    num_padding: int
    key: NoiseKey | None
    processors: Sequence[Processor]
    rules: StopRules
    recording: Recording
    grammar: GrammarState | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    hidden_states: list[tuple[Tensor, ...]] = field(default_factory=list)
    finish_reason: str | None = None
    _raw: Tensor = field(init=False)  # (1, vocab_size), of the token that is chosen now

    @property
    def position(self) -> int:
        """Absolute position of the next token, padding excluded."""
        return self.length - self.num_padding

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return min(
            self.rules.max_length - self.length,
            self.rules.max_context - self.position,
        )

    @property
    def takes_argmax(self) -> bool:
        """Whether the next token is the argmax of the raw logits and nothing is recorded."""
        is_plain = self.recording == Recording() and self.grammar is None
        return self.key is None and not self.processors and is_plain

    @property
    def reads_no_history(self) -> bool:
        """Whether what follows a token depends on the raw logits alone, and not on the text."""
        return self.grammar is None and all(type(p) in _MEMORYLESS for p in self.processors)

    def legal(self, tree: CandidateTree) -> CandidateTree:
        """Return the tree without what the row's grammar forbids."""
        return tree if self.grammar is None else prune(tree, self.grammar)

    def choose(self, logits: Tensor) -> int:
        """Return the target's next token.

        Args:
            logits: ``(vocab_size,)``, the target's row after the history's last token.
        """
        return choose_token(self._process(logits), self.key, self.position)

    def target_probs(self, logits: Tensor) -> FloatArray64:
        """Return ``(vocab_size,)`` float64: p of the next token, after all processors.

        Args:
            logits: ``(vocab_size,)``, the target's row after the history's last token.
        """
        probs: FloatArray64 = torch.softmax(self._process(logits).double(), -1).cpu().numpy()
        return probs

    def peek_probs(self, logits: Tensor) -> FloatArray64:
        """Return the same for a token that may never be asked for; nothing is recorded.

        Only for rows that read no history.
        """
        scores = self._scores(logits[None].float())[0]
        probs: FloatArray64 = torch.softmax(scores.double(), -1).cpu().numpy()
        return probs

    def emit_after(self, token: int, logits: Tensor) -> bool:
        """Commit a token that was chosen by :meth:`peek_probs` of the given ``logits``."""
        if self.recording != Recording():
            self._process(logits)
        return self.emit(token)

    def emit(self, token: int, logprob: float | None = None) -> bool:
        """Commit one token and say whether the row goes on.

        Args:
            token: the target's token.
            logprob: under the raw logits, where it was not chosen from the row that was processed
                last.

        Raises:
            IllegalTokenError: the row's grammar forbids the token.
        """
        if self.grammar is not None:
            commit_token(self.grammar, token)
        if self.recording.logprobs:
            if logprob is None:
                logprob = float(torch.log_softmax(self._raw[0], -1)[token])
            self.logprobs.append(logprob)
        self.history[0, self.length] = token
        self.length += 1
        self.token_ids.append(token)
        self.finish_reason = self._reason(token)
        return self.finish_reason is None

    def record_hidden_states(self, layers: Sequence[Tensor], columns: slice) -> None:
        """Keep the given columns of ``(width, hidden_size)`` layers, if they are recorded."""
        if self.recording.hidden_states:
            self.hidden_states.append(tuple(layer[None, columns].clone() for layer in layers))

    def _process(self, logits: Tensor) -> Tensor:
        """Return the processed scores, in float32 as plain decoding in transformers has them."""
        raw = logits[None].float()
        scores = self._scores(raw)
        self._raw = raw
        if self.recording.scores:
            self.scores.append(scores.clone())  # a view would keep the whole step's logits
        if self.recording.logits:
            self.logits.append(raw.clone())
        return scores[0]

    def _scores(self, raw: Tensor) -> Tensor:
        """Return ``(1, vocab_size)``: the grammar's mask, then the processors."""
        scores = raw
        if self.grammar is not None:
            scores = mask_scores(scores, self.grammar)
        if self.processors:
            scores = scores.clone()
            for process in self.processors:
                scores = process(self.history[:, : self.length], scores)
        return scores

    def _reason(self, token: int) -> str | None:
        reasons = ["eos"] if token in self.rules.eos_token_ids else []
        scores = tuple(self.scores) if self.recording.scores else None
        for reason, criterion in self.rules.criteria:
            # Each is called at each token, as plain decoding does: some of them count.
            if bool(criterion(self.history[:, : self.length], scores).all()):
                reasons.append(reason)
        if not reasons and self.length >= self.rules.max_length:
            reasons.append("length")
        if not reasons and self.room <= 0:
            reasons.append("context")
        return reasons[0] if reasons else None
