"""Ways of decoding with vLLM: plain, its own model-free methods, and freedraft's adapter.

Each arm is an engine of its own with the model in it, since vLLM fixes the method when it starts.
No run is helped by an earlier one: there is no prefix cache, and shared pools are off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .run import Run
from .settings import PLAIN, BenchSettings, OpenEngine

PROPOSER = "freedraft.integrations.vllm_adapter.FreedraftProposer"
_DRAFTED = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"


class VllmArm:
    """One engine with one method."""

    def __init__(
        self,
        name: str,
        settings: BenchSettings,
        speculative_config: dict[str, Any] | None,
        additional_config: dict[str, Any] | None = None,
    ) -> None:
        """Start the engine.

        Args:
            name: see :class:`~.interleave.Arm`.
            settings: of the benchmark.
            speculative_config: vLLM's; ``None`` for plain decoding.
            additional_config: vLLM's.
        """
        vllm = import_module("vllm")
        self.name = name
        self._make_parameters = vllm.SamplingParams
        self._llm = vllm.LLM(
            settings.model,
            dtype=settings.dtype,
            enforce_eager=True,
            max_num_seqs=8,
            max_model_len=settings.max_context,
            enable_prefix_caching=False,
            disable_log_stats=False,
            speculative_config=speculative_config,
            additional_config=additional_config or {},
        )
        # The next engine of this process takes these out of the registry; they go on counting.
        registered = import_module("prometheus_client").REGISTRY._names_to_collectors
        self._drafted, self._accepted = registered.get(_DRAFTED), registered.get(_ACCEPTED)

    def tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self._llm.get_tokenizer()

    def run(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Run:
        """Generate once."""
        parameters = self._make_parameters(temperature=0.0, max_tokens=max_new_tokens)
        drafted, accepted = self._counts()
        begin = time.perf_counter()
        (output,) = self._llm.generate(
            [{"prompt_token_ids": list(prompt_ids)}], parameters, use_tqdm=False
        )
        seconds = time.perf_counter() - begin
        token_ids = tuple(output.outputs[0].token_ids)
        drafted_after, accepted_after = self._counts()
        # The engine's own counter includes what it accepted behind the end of the text.
        kept = min(accepted_after - accepted, len(token_ids) - 1)
        first = float(output.metrics.first_token_latency)
        return Run(token_ids, seconds, len(token_ids) - kept, drafted_after - drafted, kept, first)

    def close(self) -> None:
        """Stop the engine."""
        del self._llm

    def _counts(self) -> tuple[int, int]:
        """Return the draft tokens verified and accepted so far; without speculation none are."""
        return _total(self._drafted), _total(self._accepted)


def _total(counter: Any) -> int:
    if counter is None:
        return 0
    samples = [sample for metric in counter.collect() for sample in metric.samples]
    return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))


def open_vllm(settings: BenchSettings) -> OpenEngine:
    """Start vLLM once an arm.

    Raises:
        ImportError: vLLM is not installed.
    """
    notes = []
    plain = VllmArm(PLAIN, settings, None)
    tokenizer = plain.tokenizer()
    arms = [plain, VllmArm("ngram (vllm)", settings, ngram_config(settings.max_nodes))]
    if find_spec("arctic_inference") is None:
        notes.append("vLLM's suffix method needs arctic_inference, which is not installed")
    else:
        arms.append(VllmArm("suffix (vllm)", settings, suffix_config(settings.max_nodes)))
    for drafter in settings.drafters:
        own = {
            "drafter": drafter,
            "sharing": "none",
            "budget": "measured" if settings.cost_gate else "full",
        }
        method = {"model": PROPOSER, "num_speculative_tokens": settings.max_nodes}
        arms.append(VllmArm(drafter, settings, method, {"freedraft": own}))

    def encode(text: str) -> list[int]:
        if not tokenizer.chat_template:
            return list(tokenizer(text)["input_ids"])
        turn = [{"role": "user", "content": text}]
        encoded = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    return OpenEngine(arms, encode, notes)


def ngram_config(num_tokens: int) -> dict[str, Any]:
    """Return the settings of vLLM's n-gram method."""
    return {
        "method": "ngram",
        "num_speculative_tokens": num_tokens,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }


def suffix_config(num_tokens: int) -> dict[str, Any]:
    """Return the settings of vLLM's suffix method, without its cache of other requests."""
    return {
        "method": "suffix",
        "num_speculative_tokens": num_tokens,
        "suffix_decoding_max_cached_requests": 0,
    }
