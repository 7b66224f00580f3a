"""Random-weight models in float64 and drafters that misbehave, for tests without a download."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from freedraft import CandidateTree, Feedback

VOCAB_SIZE = 48


def tiny_llama(dtype: torch.dtype = torch.float64, seed: int = 0) -> LlamaForCausalLM:
    """Return a two-layer model with grouped heads, a context of 256 and no end token."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def random_prompt(rng: random.Random, length: int) -> list[int]:
    """Return a prompt over few symbols, so that drafters find repeats."""
    symbols = rng.sample(range(1, VOCAB_SIZE), rng.randint(2, 8))
    return [rng.choice(symbols) for _ in range(length)]


class RandomTreeDrafter:
    """Proposes random trees; with ``peek`` many of their tokens come from a known answer."""

    name = "random-tree"

    def __init__(self, seed: int, answers: Sequence[Sequence[int]] = ()) -> None:
        self._rng = random.Random(seed)
        self._answers = [list(answer) for answer in answers]
        self._texts: dict[object, list[int]] = {}

    def start(self, request_id: object, prompt_ids: Sequence[int], namespace: str = "") -> None:
        self._texts[request_id] = list(prompt_ids)

    def extend(self, request_id: object, token_ids: Sequence[int]) -> None:
        self._texts[request_id].extend(token_ids)

    def propose(
        self, request_ids: Sequence[object], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [self._tree(self._texts[request], max_nodes, max_depth) for request in request_ids]

    def _tree(self, text: list[int], max_nodes: int, max_depth: int) -> CandidateTree:
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for _ in range(self._rng.randint(0, max_nodes)):
            parent = self._rng.randint(-1, len(tokens) - 1)
            depth = 1 if parent < 0 else depths[parent] + 1
            token = self._guess(text, depth)
            if depth <= max_depth and (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
                depths.append(depth)
        return CandidateTree.from_arrays(tokens, parents)

    def _guess(self, text: list[int], depth: int) -> int:
        for answer in self._answers:
            place = len(text) + depth - 1
            if self._rng.random() < 0.8 and answer[: len(text)] == text and place < len(answer):
                return answer[place]
        return self._rng.randrange(VOCAB_SIZE)

    def observe(self, request_id: object, tree: CandidateTree, feedback: Feedback) -> None:
        text = self._texts[request_id]
        assert all(0 <= token < VOCAB_SIZE for token in feedback.token_ids), text

    def truncate(self, request_id: object, length: int) -> None:
        del self._texts[request_id][length:]

    def stop(self, request_id: object) -> None:
        self._texts.pop(request_id, None)
