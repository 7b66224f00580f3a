"""Texts of logs to token ids: with a transformers tokenizer, or none for logs of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..logs.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Encoder(Protocol):
    """What a replay needs of a tokenizer."""

    @property
    def name(self) -> str:
        """Told in reports."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's token ids, without special tokens."""
        ...

    def render(self, turns: Sequence[Message]) -> str:
        """Return the text of a conversation that waits for the assistant's turn."""
        ...

    def token_id(self, text: str) -> int | None:
        """Return the one token that stands for a text; None where there is none."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, for reports."""
        ...


class IdsOnly:
    """For logs that hold token ids: every text is an error."""

    name = "none"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return nothing for nothing.

        Raises:
            ValueError: there is a text.
        """
        if texts:
            raise ValueError("expected token ids since there is no tokenizer, got text")
        return []

    def render(self, turns: Sequence[Message]) -> str:
        """Refuse.

        Raises:
            ValueError: always.
        """
        raise ValueError("expected token ids since there is no tokenizer, got a conversation")

    def token_id(self, text: str) -> int | None:
        """Return None."""
        return None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the ids in brackets."""
        return "".join(f"[{token_id}]" for token_id in token_ids)


class TokenizerEncoder:
    """A transformers tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: its special tokens in texts are read as such: logs of rendered prompts hold
                them.
            name: told in reports.
        """
        self.name = name
        self._tokenizer = tokenizer
        self._ids: dict[str, int] | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return each text's token ids, without special tokens of the tokenizer's own."""
        if not texts:
            return []
        # verbose=False: a text longer than the model's context is no news here
        ids: list[list[int]] = self._tokenizer(
            list(texts), add_special_tokens=False, verbose=False, return_attention_mask=False
        )["input_ids"]
        return ids

    def render(self, turns: Sequence[Message]) -> str:
        """Return the text by the tokenizer's chat template, or a line a turn where it has none.

        Raises:
            ValueError: the template refuses the conversation.
        """
        plain = [{"role": turn.role, "content": turn.content} for turn in turns]
        if self._tokenizer.chat_template:
            try:
                text = self._tokenizer.apply_chat_template(
                    plain, tokenize=False, add_generation_prompt=True
                )
            except Exception as error:  # templates raise what they like
                raise ValueError(f"the chat template refuses the conversation: {error}") from error
            return str(text)
        lines = [f"{turn.role}: {turn.content}\n" for turn in turns]
        return "".join([*lines, "assistant: "])

    def token_id(self, text: str) -> int | None:
        """Return the one token that stands for a text; None where there is none."""
        if self._ids is None:  # made once, and only for logs with log-probabilities
            size = len(self._tokenizer)
            self._ids = {str(self._tokenizer.decode([i])): i for i in reversed(range(size))}
        return self._ids.get(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, for reports; unknown ids in brackets."""
        size = len(self._tokenizer)
        if all(0 <= token_id < size for token_id in token_ids):
            return str(self._tokenizer.decode(list(token_ids)))
        return "".join(
            str(self._tokenizer.decode([token_id])) if 0 <= token_id < size else f"[{token_id}]"
            for token_id in token_ids
        )
