"""What callers pass as a prompt, checked and turned into ids and a mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Prompt = str | Sequence[str] | Tensor | Sequence[int]


def encode_prompt(
    model: PreTrainedModel, prompt: Prompt, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[Tensor, Tensor | None]:
    """Return ``(batch, length)`` int64 ids on the model's device and, where known, their mask.

    Raises:
        ValueError: no tokens, text without a tokenizer, a tokenizer with ids beyond the model's
            vocabulary, or a tensor of another shape or kind.
    """
    if isinstance(prompt, str):
        prompt = [prompt]
    if not isinstance(prompt, Tensor) and any(isinstance(part, str) for part in prompt):
        return _encode_texts(model, [str(part) for part in prompt], tokenizer)
    ids = torch.as_tensor(prompt)
    if ids.ndim == 1:
        ids = ids[None]
    if ids.numel() == 0:
        raise ValueError(f"expected a prompt of at least one token, got shape {tuple(ids.shape)}")
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(
            f"expected token ids of shape (batch, length), got {ids.dtype} of {tuple(ids.shape)}"
        )
    check_token_ids(ids, model.config.get_text_config(decoder=True).vocab_size)
    ids = ids.to(model.device, torch.int64)
    # A single prompt has no padding; left to itself, transformers would guess it from the ids.
    return ids, torch.ones_like(ids) if ids.shape[0] == 1 else None


def _encode_texts(
    model: PreTrainedModel, texts: list[str], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[Tensor, Tensor | None]:
    if tokenizer is None:
        raise ValueError("expected a tokenizer beside a text prompt, got none")
    vocab_size: int = model.config.get_text_config(decoder=True).vocab_size
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"expected a tokenizer of at most the model's {vocab_size} ids, got {len(tokenizer)}"
        )
    encoded: list[list[int]] = tokenizer(texts)["input_ids"]
    empty = [row for row, ids in enumerate(encoded) if not ids]
    if empty:
        raise ValueError(f"expected prompts of at least one token, got an empty one at {empty[0]}")
    longest = max(map(len, encoded))
    pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
    input_ids = torch.full((len(encoded), longest), pad, dtype=torch.int64)
    mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(encoded):
        input_ids[row, longest - len(ids) :] = torch.tensor(ids)
        mask[row, longest - len(ids) :] = 1
    check_token_ids(input_ids, vocab_size)
    return input_ids.to(model.device), mask.to(model.device)


def encode_prediction(
    model: PreTrainedModel,
    prediction: str | Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> list[int] | None:
    """Return the ids of a predicted output, or ``None``.

    Raises:
        ValueError: text without a tokenizer, or ids outside the vocabulary.
    """
    if prediction is None or len(prediction) == 0:
        return None
    if isinstance(prediction, str):
        if tokenizer is None:
            raise ValueError("expected a tokenizer beside a prediction's text, got none")
        ids: list[int] = tokenizer([prediction], add_special_tokens=False)["input_ids"][0]
    else:
        ids = [int(token) for token in prediction]
    check_token_ids(torch.tensor(ids), model.config.get_text_config(decoder=True).vocab_size)
    return ids


def check_token_ids(ids: Tensor, vocab_size: int) -> None:
    """Check that all ids lie in the vocabulary.

    Raises:
        ValueError: there is none, or one does not; the message names it.
    """
    if ids.numel() == 0:
        raise ValueError(f"expected prompts of at least one token, got shape {tuple(ids.shape)}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"expected token ids in 0..{vocab_size - 1}, got {low if low < 0 else high}: does the "
            f"tokenizer belong to the model?"
        )


def split_padding(input_ids: Tensor, attention_mask: Tensor | None) -> list[int]:
    """Return how many padding tokens each row has on its left.

    Args:
        input_ids: ``(batch, length)``.
        attention_mask: ``(batch, length)``, 1 at real tokens, or ``None`` for no padding.

    Raises:
        ValueError: a mask of another shape, padding elsewhere than on the left, or a row of
            padding only.
    """
    if attention_mask is None:
        return [0] * input_ids.shape[0]
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"expected an attention mask of shape {tuple(input_ids.shape)}, got "
            f"{tuple(attention_mask.shape)}"
        )
    mask = attention_mask.bool()
    lengths = mask.sum(-1).tolist()
    paddings = [input_ids.shape[1] - length for length in lengths]
    for row, (padding, length) in enumerate(zip(paddings, lengths, strict=True)):
        if length == 0:
            raise ValueError(f"expected at least one token in row {row}, got padding only")
        if not bool(mask[row, padding:].all()):
            raise ValueError(f"expected padding on the left only, got other padding in row {row}")
    return paddings
