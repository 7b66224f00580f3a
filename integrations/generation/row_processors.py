"""Logits processors for one row of a batch: some hold something for each row and must be split."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def processors_for_row(processors: Sequence[LogitsProcessor], row: int) -> list[LogitsProcessor]:
    """Return the processors as they act on one row of the batch, called with that row alone.

    Processors of transformers that hold something for each row (a prompt, padding, a watermark's
    context, a second cache) are copied with the row's part; all others are shared.

    Args:
        processors: as prepared for the whole batch.
        row: which row.
    """
    return [_for_row(processor, row) for processor in processors]


def _for_row(processor: LogitsProcessor, row: int) -> LogitsProcessor:
    # Typed as Any: what is split are attributes of the concrete classes.
    own: Any = copy.copy(processor)
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        if isinstance(own.prompt_ignore_length, Tensor):
            own.prompt_ignore_length = own.prompt_ignore_length[row : row + 1]
    elif isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor):
        own.encoder_input_ids = own.encoder_input_ids[row : row + 1]
    elif isinstance(processor, EncoderNoRepeatNGramLogitsProcessor):
        own.generated_ngrams = own.generated_ngrams[row : row + 1]
        own.batch_size = 1
    elif isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed = own._prefix_allowed_tokens_fn
        own._prefix_allowed_tokens_fn = lambda _, ids: allowed(row, ids)
    elif isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
        own.unconditional_context = {
            name: value[row : row + 1] if isinstance(value, torch.Tensor) else value
            for name, value in own.unconditional_context.items()
        }
    elif not isinstance(processor, SynthIDTextWatermarkLogitsProcessor):
        return processor  # without a row's state; a watermark's starts with the copy's first call
    row_processor: LogitsProcessor = own
    return row_processor
