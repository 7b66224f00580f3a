"""The embedded real model in float32: the same text with every drafter and with none."""

from __future__ import annotations

import pytest
import torch

import freedraft
from freedraft import GenerationResult
from freedraft.workbench.demo_prompts import DEMO_PROMPTS

NEW_TOKENS = 16


@pytest.mark.model
@pytest.mark.slow
def test_every_drafter_gives_the_models_own_text() -> None:
    model, tokenizer = freedraft.load_default_model()
    accepted = 0
    for prompt in DEMO_PROMPTS:
        chat = [{"role": "user", "content": prompt.text}]
        ids = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        wanted = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
        )
        for name in (*freedraft.DRAFTER_NAMES, "none"):
            result = freedraft.generate(
                model,
                ids,
                drafter=name,
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                cost_gate=False,
                return_dict=True,
            )
            assert isinstance(result, GenerationResult)
            assert torch.equal(result.sequences, wanted), (prompt.name, name)
            accepted += result.statistics.accepted
    assert accepted > 2 * NEW_TOKENS
