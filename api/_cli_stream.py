"""Text as it is generated, token by token, with the drafted tokens in a colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedTokenizerBase

    from .integrations.statistics import StepReport

DRAFTED_STYLE = "green"
_DRAFTED_ON = "\x1b[32m"
_DRAFTED_OFF = "\x1b[39m"
_MAX_CONTEXT = 64
_KEPT_CONTEXT = 16


class TextPieces:
    """Turns token ids into text one by one; the pieces together are the text of all ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Start with no text."""
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._num_given = 0

    def push(self, token_id: int) -> str:
        """Return the text that ``token_id`` completes; empty inside a character of several."""
        self._ids.append(token_id)
        text = self._text()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        piece = text[self._num_given :]
        if len(self._ids) > _MAX_CONTEXT:
            # What a token reads as depends on its neighbours alone: a space at the start of a
            # text is dropped by some tokenizers.
            del self._ids[:-_KEPT_CONTEXT]
            text = self._text()
        self._num_given = len(text)
        return piece

    def rest(self) -> str:
        """Return what was held back because a character was not complete."""
        text = self._text()
        piece = text[self._num_given :]
        self._num_given = len(text)
        return piece

    def _text(self) -> str:
        return str(
            self._tokenizer.decode(
                self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


class StepPrinter:
    """Prints the tokens of each step at once; give it to ``generate`` as ``on_step``."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, console: Console, show_drafts: bool
    ) -> None:
        """Print to ``console`` as it is: no wrapping, no expanded tabs, so that a pipe is exact.

        Args:
            tokenizer: of the model.
            console: where to.
            show_drafts: colour the drafted tokens, where the console has colours.
        """
        self._pieces = TextPieces(tokenizer)
        self._write: Callable[[str], object] = console.file.write
        self._flush = console.file.flush
        self._color = show_drafts and console.color_system is not None

    def __call__(self, report: StepReport) -> None:
        """Print one step's tokens."""
        pieces = [self._pieces.push(token_id) for token_id in report.token_ids]
        drafted = "".join(pieces[: report.num_accepted])
        if drafted and self._color:
            drafted = f"{_DRAFTED_ON}{drafted}{_DRAFTED_OFF}"
        self._write(drafted + "".join(pieces[report.num_accepted :]))
        self._flush()

    def finish(self) -> None:
        """Print what is left and end the line."""
        self._write(self._pieces.rest() + "\n")
        self._flush()
