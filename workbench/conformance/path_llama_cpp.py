"""Real llama-cpp-python with the adapter; plain decoding is the same model without a draft model.

The weights and the cache should be float32: with others the kernels for one and for several tokens
round differently, and greedy texts part at ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any
from unittest.mock import patch

import numpy as np

from ...drafters import CandidateTree, Drafter, RequestId, create_drafter
from ...integrations import llama_cpp_adapter
from ...integrations.budget import Calibration
from ...integrations.chain_budget import RoundChainBudget
from ...integrations.draft_naps import DraftNaps
from .contract import Feature, Outcome, Request, Skipped
from .drafters import SwitchDrafter

_MAX_CONTEXT = 512  # a multiple of 256: the library rounds up, and its scores do not
_MOST_NODES = 8
_FLOAT32 = 0  # GGML_TYPE_F32
_NEVER = -1e9
_OPTIONS = {
    "repetition_penalty": "repeat_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}


class LlamaCppPath:
    """One text at a time through ``create_completion``."""

    name = "llama-cpp"
    how = "run"

    def __init__(self, model: str | None) -> None:
        """Load the model.

        Args:
            model: a GGUF file.

        Raises:
            Skipped: llama-cpp-python is not installed, or no file is given.
        """
        if model is None or not FilePath(model).is_file():
            raise Skipped(f"expected --model with a GGUF file, got {model}")
        try:
            from llama_cpp import Llama
        except ImportError as error:
            raise Skipped(f"llama-cpp-python is not installed here: {error}") from error
        self._llama: Any = Llama(
            model,
            n_ctx=_MAX_CONTEXT,
            logits_all=True,
            type_k=_FLOAT32,
            type_v=_FLOAT32,
            verbose=False,
        )
        self._switch = SwitchDrafter()
        flat = Calibration(
            model="any",
            engine="llama-cpp",
            device="any",
            source="computed from data sheets",
            contexts=(128,),
            batches=(1,),
            nodes=(0, 1, 3, 7),
            seconds=np.array([[[1.0, 1.01, 1.02, 1.03]]]),
        )
        config = llama_cpp_adapter.LlamaDraftConfig(max_length=_MOST_NODES, calibration=flat)
        with (
            patch.object(llama_cpp_adapter, "RoundChainBudget", _Uncut),
            patch.object(llama_cpp_adapter, "DraftNaps", _Awake),
        ):
            self._draft = llama_cpp_adapter.attach(self._llama, self._switch, config)
        self._generate = self._llama.generate
        self._seen: list[int] = []
        self._llama.generate = self._recorded
        self.vocab_size = int(self._llama.n_vocab())
        self.max_context = _MAX_CONTEXT
        one = "the library decodes one text at a time"
        self.missing = {
            Feature.BATCH: one,
            Feature.ARRIVALS: one,
            Feature.REQUEST_IDS: one,
            Feature.NAMESPACES: "an attached model has one namespace",
            Feature.EOS: "the library ends at the model's own end tokens only",
            Feature.MIN_TOKENS: "the library has none",
            Feature.STREAM: "tokens come through the same generator as without streaming",
            Feature.NO_TOKENS: "max_tokens=0 means no cap there",
            Feature.SEED: "its sampler draws in order, so drafts shift the draws",
            Feature.MIN_P: "it changes nothing where the most likely token is taken",
            Feature.BAD_WORDS: "the library has none",
            Feature.LOGIT_BIAS: "taken to keep the model from its end token",
            Feature.REASONING: "its grammars bind from the first token on",
            Feature.PREEMPTION: one,
            Feature.RECURRENT: "refused when it is attached; no model of that kind is at hand",
            Feature.ROUNDED: "its float32 is what is checked",
        }

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._llama.tokenize(text.encode(), add_bos=False, special=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return bytes(self._llama.detokenize(list(token_ids))).decode(errors="replace")

    def run(
        self, requests: Sequence[Request], drafter: Drafter | str | None, max_nodes: int = 8
    ) -> list[Outcome]:
        """Run the requests, one after the other.

        Raises:
            ValueError: the library refuses a request.
        """
        self._switch.drafter = create_drafter(drafter) if isinstance(drafter, str) else drafter
        self._switch.max_nodes = max_nodes
        self._llama.draft_model = None if drafter is None else self._draft
        return [self._run_one(request) for request in requests]

    def _run_one(self, request: Request) -> Outcome:
        if not request.prompt_ids:
            raise ValueError("expected a prompt of at least one token, got none")
        self._seen.clear()
        self._switch.steps.clear()
        faults_before = self._draft.statistics.switched_off
        options = dict(request.options)
        answer: Any = self._llama.create_completion(
            list(request.prompt_ids),
            max_tokens=request.max_new_tokens,
            temperature=0.0,
            stop=list(request.stop_strings),
            logprobs=1 if request.logprobs else None,
            **self._limits(request),
            **{_OPTIONS[name]: value for name, value in options.items() if name in _OPTIONS},
        )
        (choice,) = answer["choices"]
        token_ids = list(self._seen)
        logprobs = None
        if choice["logprobs"] is not None:
            logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        reason = choice["finish_reason"]
        if reason == "length" and len(token_ids) < request.max_new_tokens:
            reason = "context"
        return Outcome(
            token_ids,
            choice["text"],
            reason,
            logprobs,
            counted=answer["usage"]["completion_tokens"],
            steps=[pair for pairs in self._switch.steps.values() for pair in pairs],
            switched_off=self._draft.statistics.switched_off > faults_before,
        )

    def _limits(self, request: Request) -> dict[str, Any]:
        """Return what keeps the model from its end token, or holds it to a grammar."""
        if request.pattern is None:
            return {"logit_bias": {str(self._llama.token_eos()): _NEVER}}
        from llama_cpp import LlamaGrammar

        return {"grammar": LlamaGrammar.from_string(f"root ::= {request.pattern.gbnf()}")}

    def _recorded(self, *arguments: Any, **named: Any) -> Iterator[int]:
        """Pass the library's own generator on and keep its tokens."""
        for token in self._generate(*arguments, **named):
            self._seen.append(int(token))
            yield token


class _Uncut(RoundChainBudget):
    """Verifies all that is proposed, whatever it costs."""

    def allowances(self, request_ids: Sequence[RequestId], max_nodes: int) -> list[int]:
        return [max_nodes] * len(request_ids)

    def cut(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        num_left: Sequence[int] | None = None,
    ) -> list[CandidateTree]:
        return [tree.best_chain() for tree in trees]


class _Awake(DraftNaps):
    """Has the drafter asked at every step."""

    def sleep(self) -> bool:
        return False
