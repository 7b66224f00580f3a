"""What the adapter asks a ``Llama`` about its model; it imports the engine's package to do so."""

from __future__ import annotations

from typing import Any


def check_model(llama: Any) -> None:
    """Check that the model and its settings let drafts be verified.

    Raises:
        ValueError: the model is recurrent or hybrid, or ``logits_all`` is not set.
    """
    import llama_cpp  # pyright: ignore[reportMissingImports]

    for kind in ("recurrent", "hybrid"):
        if getattr(llama_cpp, f"llama_model_is_{kind}")(llama.model):
            raise ValueError(
                f"expected a model whose cache can be cut back to the accepted tokens, got a "
                f"{kind} one: llama.cpp would go on from rejected drafts without a word"
            )
    rows, needed = llama.scores.shape[0], int(llama.n_ctx())
    if rows >= needed and getattr(llama, "_logits_all", True):
        return
    hint = ""
    if rows < needed and getattr(llama, "_logits_all", False):
        hint = f"; llama.cpp rounds n_ctx up to {needed}: pass that"
    raise ValueError(
        f"expected Llama(..., logits_all=True) with the logits of all of its {needed} tokens, got "
        f"one with those of {rows}: drafts could not be compared, and longer prompts would fail"
        f"{hint}"
    )


def end_ids_of(llama: Any) -> frozenset[int]:
    """Return the tokens at which the engine ends a text."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    ends = llama_cpp.llama_vocab_is_eog
    return frozenset(token for token in range(int(llama.n_vocab())) if ends(vocab, token))
