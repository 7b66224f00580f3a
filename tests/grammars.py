"""A small grammar automaton for tests, and a run of the tiny model with it.

What may follow depends on the text modulo a few tokens.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from tiny_models import VOCAB_SIZE, random_prompt, tiny_llama
from torch import Tensor

import freedraft
from freedraft import GenerationResult

END = 1


class CountingGrammar:
    """Allows a token by the sum of all tokens so far; ends after ``length`` tokens.

    Attributes:
        num_masks: how often the mask was asked for.
    """

    def __init__(self, length: int = 1000) -> None:
        self.text: list[int] = []
        self.num_masks = 0
        self._length = length

    def legal(self, token: int) -> bool:
        if END in self.text:
            return False
        if len(self.text) >= self._length:
            return token == END
        return token != END and (token + sum(self.text)) % 3 != 0

    def advance(self, token_id: int) -> bool:
        if self.legal(token_id):
            self.text.append(token_id)
            return True
        return False

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= len(self.text)
        del self.text[len(self.text) - num_tokens :]

    def allowed(self) -> Tensor:
        self.num_masks += 1
        return torch.tensor([self.legal(token) for token in range(VOCAB_SIZE)])


def decode(drafter: Any, prompt_seed: int = 6, **options: Any) -> GenerationResult:
    """Decode two random prompts of five tokens on the tiny model, without a gate."""
    rng = random.Random(prompt_seed)
    ids = torch.tensor([random_prompt(rng, 5), random_prompt(rng, 5)])
    result = freedraft.generate(
        tiny_llama(),
        ids,
        attention_mask=torch.ones_like(ids),
        drafter=drafter,
        cost_gate=False,
        return_dict=True,
        **{"max_new_tokens": 20, "do_sample": False, **options},
    )
    assert isinstance(result, GenerationResult)
    return result
