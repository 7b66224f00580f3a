"""Ways of decoding with llama-cpp-python: plain, its own prompt lookup, and freedraft's adapter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ...integrations.llama_cpp_adapter import LlamaDraftConfig, attach
from ...integrations.llama_cpp_costs import measure_costs
from .run import Run
from .settings import PLAIN, PROMPT_LOOKUP, BenchSettings, OpenEngine

_TEMPLATE = "tokenizer.chat_template"
_LOOKUP_TOKENS = 10

Prepare = Callable[[Any], None]


class LlamaArm:
    """A ``Llama`` whose draft model is set before each run."""

    def __init__(self, name: str, llama: Any, prepare: Prepare) -> None:
        """Set up the arm.

        Args:
            name: see :class:`~.interleave.Arm`.
            llama: a ``llama_cpp.Llama``.
            prepare: sets its draft model, a fresh one.
        """
        self.name = name
        self._llama = llama
        self._prepare = prepare

    def run(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Run:
        """Generate once."""
        llama = self._llama
        self._prepare(llama)
        llama.reset()  # else the prompt of the last run would not be read again
        lengths: list[int] = []
        plain_eval = llama.eval

        def counted_eval(tokens: Sequence[int]) -> None:
            lengths.append(len(tokens))
            plain_eval(tokens)

        token_ids: list[int] = []
        first = 0.0
        llama.eval = counted_eval
        try:
            begin = time.perf_counter()
            for token in llama.generate(list(prompt_ids), temp=0.0, repeat_penalty=1.0):
                if not token_ids:
                    first = time.perf_counter() - begin
                token_ids.append(int(token))
                if len(token_ids) == max_new_tokens or token == llama.token_eos():
                    break
            seconds = time.perf_counter() - begin
        finally:
            del llama.eval
        drafted = sum(lengths) - len(prompt_ids) - (len(lengths) - 1)
        accepted = len(token_ids) - len(lengths)
        return Run(tuple(token_ids), seconds, len(lengths), drafted, accepted, first)

    def close(self) -> None:
        """Keep the model: other arms share it."""


def open_llama_cpp(settings: BenchSettings) -> OpenEngine:
    """Load the GGUF file, once for plain decoding and once for drafts.

    Raises:
        ImportError: llama-cpp-python is not installed.
        ValueError: the file is no model.
    """
    llama_cpp = import_module("llama_cpp")
    lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding

    def load(logits_all: bool) -> Any:
        return llama_cpp.Llama(
            settings.model, n_ctx=settings.max_context, logits_all=logits_all, verbose=False
        )

    # Drafts need the logits of all tokens; plain decoding need not pay for them.
    plain, drafting = load(False), load(True)
    costs = measure_costs(drafting)

    def use_lookup(llama: Any) -> None:
        llama.draft_model = lookup(num_pred_tokens=_LOOKUP_TOKENS)

    def use(drafter: str) -> Prepare:
        config = LlamaDraftConfig(max_length=settings.max_nodes, calibration=costs)

        def prepare(llama: Any) -> None:
            attach(llama, drafter, config)

        return prepare

    arms = [
        LlamaArm(PLAIN, plain, lambda llama: None),
        LlamaArm(PROMPT_LOOKUP, drafting, use_lookup),
        *(LlamaArm(drafter, drafting, use(drafter)) for drafter in settings.drafters),
    ]
    return OpenEngine(arms, lambda text: encode(llama_cpp, plain, text))


def encode(llama_cpp: Any, llama: Any, text: str) -> list[int]:
    """Return a prompt's token ids, as a user's turn where the model has a chat template."""
    template = llama.metadata.get(_TEMPLATE)
    if template:
        chat = import_module("llama_cpp.llama_chat_format")
        pieces = [
            llama._model.token_get_text(token) for token in (llama.token_eos(), llama.token_bos())
        ]
        formatter = chat.Jinja2ChatFormatter(template, *pieces)
        text = formatter(messages=[{"role": "user", "content": text}]).prompt
    return list(llama.tokenize(text.encode(), add_bos=not template, special=True))
