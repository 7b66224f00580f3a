"""Real vLLM with the adapter, in this process, stepped by hand so that requests come and go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

from ...drafters import Drafter, create_drafter
from .alphabet import MAX_CONTEXT
from .contract import Feature, Outcome, Request, Skipped

_MOST_NODES = 8
_BLOCK = 32
_NUM_BLOCKS = 2 * MAX_CONTEXT // _BLOCK
"""Memory for two texts of full length: of many requests, some must be put aside."""
_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_OPTIONS = ("repetition_penalty", "frequency_penalty", "presence_penalty")


class VllmPath:
    """vLLM in float32; plain decoding is the same engine while nothing is drafted."""

    name = "vllm"
    how = "run"

    def __init__(self, model: str | None) -> None:
        """Start the engine.

        Args:
            model: folder of a model and its tokenizer.

        Raises:
            Skipped: vLLM is not installed, or no model is given.
        """
        if model is None or not FilePath(model).is_dir():
            raise Skipped(f"expected --model with a model's folder, got {model}")
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM
        except ImportError as error:
            raise Skipped(f"vLLM is not installed here: {error}") from error
        self._llm = LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            max_num_seqs=16,
            block_size=_BLOCK,
            num_gpu_blocks_override=_NUM_BLOCKS,
            max_model_len=MAX_CONTEXT,
            enable_prefix_caching=True,
            disable_log_stats=True,
            speculative_config={
                "model": f"{__package__}.vllm_proposer.SeenProposer",
                "num_speculative_tokens": _MOST_NODES,
            },
            structured_outputs_config={"reasoning_parser": self._allow_switches()},
            additional_config={"freedraft": {"budget": "full"}},
        )
        from .vllm_proposer import SeenProposer  # vLLM has loaded it

        self._proposer = SeenProposer.seen[-1]
        self._switch = self._proposer.switch
        self._tokenizer: Any = self._llm.get_tokenizer()
        self._num_runs = 0
        self._scheduler: Any = self._llm.llm_engine.engine_core.engine_core.scheduler
        self.vocab_size = int(self._llm.model_config.get_vocab_size())
        self.max_context = MAX_CONTEXT
        refused = "vLLM refuses it beside speculation"
        self.missing = {
            Feature.MIN_P: refused,
            Feature.LOGIT_BIAS: refused,
            Feature.SEED: "vLLM's draws with drafts are equal in distribution, not one by one",
            Feature.NO_TOKENS: "vLLM refuses max_tokens=0",
            Feature.RECURRENT: "vLLM keeps such states itself; no model of that kind is at hand",
            Feature.ROUNDED: "one engine a process: its float32 is what is checked",
        }

    def _allow_switches(self) -> str:
        """Make vLLM ask :class:`.vllm_reasoning.MarkedReasoning` and return the name it goes by."""
        from vllm.reasoning import ReasoningParserManager

        from .vllm_reasoning import MarkedReasoning

        self._reasoning = MarkedReasoning
        name = "freedraft-conformance"
        ReasoningParserManager.register_module(name, module=MarkedReasoning)
        return name

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def run(
        self, requests: Sequence[Request], drafter: Drafter | str | None, max_nodes: int = 8
    ) -> list[Outcome]:
        """Run the requests; those that arrive later join after as many engine steps.

        Raises:
            ValueError: vLLM refuses a request.
        """
        self._switch.drafter = create_drafter(drafter) if isinstance(drafter, str) else drafter
        self._switch.max_nodes = max_nodes
        self._switch.steps.clear()
        self._num_runs += 1
        faults_before = self._proposer.statistics["switched_off"]
        engine = self._llm.llm_engine
        names = [
            f"{self._num_runs}-{place}" if request.request_id is None else str(request.request_id)
            for place, request in enumerate(requests)
        ]
        outcomes = {name: Outcome([], "", "", streamed=[]) for name in names}
        waiting = list(zip(names, requests, strict=True))
        step = 0
        while waiting or engine.has_unfinished_requests():
            for name, request in [pair for pair in waiting if pair[1].arrives_at <= step]:
                waiting.remove((name, request))
                self._add(name, request)
            for output in engine.step():
                self._take(
                    output, outcomes[output.request_id], requests[names.index(output.request_id)]
                )
            for request_id, running in self._scheduler.requests.items():
                for name, outcome in outcomes.items():
                    if _is_of(request_id, name):
                        outcome.preemptions = running.num_preemptions
            step += 1
        switched_off = self._proposer.statistics["switched_off"] > faults_before
        for name, outcome in outcomes.items():
            outcome.counted = len(outcome.token_ids)
            outcome.switched_off = switched_off
            outcome.steps = [
                pair
                for request_id, pairs in self._switch.steps.items()
                if _is_of(str(request_id), name)
                for pair in pairs
            ]
        return list(outcomes.values())

    def _add(self, name: str, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import StructuredOutputsParams

        options = dict(request.options)
        settings: dict[str, Any] = {key: options[key] for key in _OPTIONS if key in options}
        if "bad_words_ids" in options:
            words: Any = options["bad_words_ids"]
            settings["bad_words"] = [text for word in words if (text := self.decode(word).strip())]
        self._reasoning.end = request.pattern_after
        if request.pattern is not None:
            settings["structured_outputs"] = StructuredOutputsParams(regex=request.pattern.regex())
        prompt: Any = {"prompt_token_ids": list(request.prompt_ids)}
        if request.namespace:
            prompt["cache_salt"] = request.namespace
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_new_tokens,
            min_tokens=request.min_new_tokens,
            ignore_eos=request.pattern is None,
            stop_token_ids=list(request.eos_token_ids),
            stop=list(request.stop_strings),
            logprobs=0 if request.logprobs else None,
            **settings,
        )
        try:
            self._llm.llm_engine.add_request(name, prompt, parameters)
        except VLLMValidationError as refusal:
            raise ValueError(str(refusal)) from refusal

    def _take(self, output: Any, outcome: Outcome, request: Request) -> None:
        (completion,) = output.outputs
        new = list(completion.token_ids)[len(outcome.token_ids) :]
        outcome.token_ids += new
        assert outcome.streamed is not None
        outcome.streamed += new
        outcome.text = completion.text
        if completion.logprobs is not None:
            outcome.logprobs = [
                rows[token].logprob
                for token, rows in zip(outcome.token_ids, completion.logprobs, strict=True)
            ]
        if output.finished:
            outcome.finish_reason = _reason(completion, outcome, request)
        elif request.abort_after is not None and len(outcome.token_ids) >= request.abort_after:
            self._llm.llm_engine.abort_request([output.request_id])
            outcome.finish_reason = "abort"


def _is_of(request_id: str, name: str) -> bool:
    """Return whether an id is the one that was given, or what vLLM has made of it."""
    return request_id == name or request_id.startswith(f"{name}-")


def _reason(completion: Any, outcome: Outcome, request: Request) -> str:
    """Return the reason in the suite's words."""
    if completion.finish_reason == "stop":
        return "stop" if isinstance(completion.stop_reason, str) else "eos"
    if completion.finish_reason != "length":
        return str(completion.finish_reason)
    is_cap = len(outcome.token_ids) >= request.max_new_tokens
    return "length" if is_cap else "context"
