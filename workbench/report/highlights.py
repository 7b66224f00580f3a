"""The requests that gain most and least; tokens that a draft would have brought are coloured."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..replay.encoder import Encoder
from ..replay.requests import RequestSource, TokenRequest
from ..replay.samples import Highlight

MAX_PROMPT_TOKENS = 160
MAX_RESPONSE_TOKENS = 700
_KEPT_CONTROLS = "\n\t"


def highlight_blocks(
    highlights: Sequence[Highlight], source: RequestSource, encoder: Encoder
) -> str:
    """Return one folded block a request.

    Args:
        highlights: in their order.
        source: of their tokens.
        encoder: tokens to text.
    """
    return "".join(_block(one, source.read(one.number), encoder) for one in highlights)


def _block(highlight: Highlight, request: TokenRequest, encoder: Encoder) -> str:
    prompt = request.prompt_ids[-MAX_PROMPT_TOKENS:].tolist()
    cut = "... " if request.prompt_ids.size > len(prompt) else ""
    more = request.response_ids.size - MAX_RESPONSE_TOKENS
    rest = f'<span class="soft"> ... {more} more tokens</span>' if more > 0 else ""
    return (
        f"<details><summary><b>{highlight.tokens_per_step:.2f}</b> tokens per step, "
        f"{highlight.tokens} tokens <span class="
        f'"soft">{clean(highlight.place)}</span></summary>'
        f'<pre class="prompt">{cut}{clean(encoder.decode(prompt))}</pre>'
        f"<pre>{_coloured(request, highlight.accepted, encoder)}{rest}</pre></details>"
    )


def _coloured(request: TokenRequest, accepted: Sequence[int], encoder: Encoder) -> str:
    """Return the response with the accepted draft tokens marked."""
    tokens = request.response_ids[:MAX_RESPONSE_TOKENS].tolist()
    parts: list[str] = []
    position = 0
    for count in accepted:
        drafted = tokens[position : position + count]
        own = tokens[position + count : position + count + 1]
        if drafted:
            parts.append(f"<mark>{clean(encoder.decode(drafted))}</mark>")
        if own:
            parts.append(clean(encoder.decode(own)))
        position += count + 1
        if position >= len(tokens):
            break
    return "".join(parts)


def clean(text: str) -> str:
    """Return text that HTML shows as it is: escaped, control characters as their pictures."""
    shown = "".join(
        letter
        if letter in _KEPT_CONTROLS or _is_plain(ord(letter))
        else chr(0x2400 + ord(letter))
        if ord(letter) < 32
        else "\ufffd"
        for letter in text
    )
    return escape(shown)


def _is_plain(code: int) -> bool:
    """Return whether a character may stand in a document."""
    return (
        code >= 32
        and not 0x7F <= code < 0xA0
        and not 0xD800 <= code < 0xE000
        and (code & 0xFFFE != 0xFFFE)
    )
