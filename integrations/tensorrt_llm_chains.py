"""Drafts for TensorRT-LLM's request objects: all of the adapter that needs no engine.

What is made before the engine starts travels to its workers, so nothing heavy is made until the
first step: this pickles as its settings.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..drafters import DEFAULT_NAMESPACE
from .engine_config import SHARE_BY_SALT, EngineConfig, create_engine_drafter
from .ignored_settings import refuse_ignored
from .request_book import RequestBook
from .statistics import GenerationStatistics

_IGNORED = {
    "calibration": "its ranks draft for themselves and must not go by clocks",
    "schedule": "the engine has one of its own: pass it to create_decoding_config",
    "warm_file": "warm files are vLLM's so far",
    "mend": "it mends nothing there",
    "pools": "the tokenizer that they must fit is not at hand",
}
_STATE_WORDS = ("mamba", "ssm", "linear_attention", "hybrid_override_pattern", "recurrent", "rwkv")

logger = logging.getLogger("freedraft")


class RequestChains:
    """Follows the engine's requests and writes drafts into them.

    Each tensor-parallel rank has one and comes to the same drafts: nothing depends on clocks.
    """

    def __init__(self, vocab_size: int, config: EngineConfig | None = None) -> None:
        """Keep the settings; the drafter is made at the first step.

        Args:
            vocab_size: ids from it on are never proposed.
            config: the settings; the defaults when absent.

        Raises:
            ValueError: ``vocab_size`` is not positive, or a setting would be ignored.
        """
        if vocab_size < 1:
            raise ValueError(f"expected vocab_size >= 1, got {vocab_size}")
        self.config = EngineConfig() if config is None else config
        refuse_ignored(self.config, "TensorRT-LLM", _IGNORED)
        self._vocab_size = vocab_size
        self._book: RequestBook | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the settings: requests stay where they run."""
        return {"vocab_size": self._vocab_size, "config": self.config}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Begin anew with the settings of another process."""
        self.__init__(state["vocab_size"], state["config"])  # type: ignore[misc]

    @property
    def book(self) -> RequestBook:
        """The requests; the drafter is made when this is first asked for."""
        if self._book is None:
            drafter = create_engine_drafter(self.config)
            self._book = RequestBook(drafter, self._vocab_size, self.config.placeholder_ids)
        return self._book

    @property
    def statistics(self) -> GenerationStatistics:
        """Counts of all requests so far."""
        return self.book.statistics

    def prepare(self, requests: Iterable[Any], max_length: int) -> None:
        """Write a draft into each request, an empty one where there is none.

        Args:
            requests: the generation requests of the step; ``py_draft_tokens`` is overwritten.
            max_length: most tokens of a draft; at 0 the requests are only followed.
        """
        ordered = sorted(requests, key=_place)
        for request in ordered:
            request.py_draft_tokens = []
        try:
            room = [min(max_length, self._follow(request)) for request in ordered]
            if max_length > 0 and ordered:
                ids = [request.request_id for request in ordered]
                chains = self.book.propose_chains(ids, [max(number, 0) for number in room])
                for request, chain in zip(ordered, chains, strict=True):
                    request.py_draft_tokens = chain  # the engine pads it in place
        except Exception as error:
            logger.error("freedraft: drafting failed, decoding goes on without", exc_info=error)
            for request in ordered:
                request.py_draft_tokens = []
                self.book.switch_off(request.request_id, error)

    def follow(self, requests: Iterable[Any]) -> None:
        """Take in what requests have emitted; also in steps for which no drafts are asked."""
        for request in requests:
            try:
                self._follow(request)
            except Exception as error:
                logger.error("freedraft: a request cannot be followed", exc_info=error)
                self.book.switch_off(request.request_id, error)

    def free(self, request: Any) -> None:
        """Take in a request's last tokens, if it was ever followed, and release it."""
        if request.request_id in self.book:
            self.follow([request])
            self.book.release(request.request_id)

    def _follow(self, request: Any) -> int:
        """Tell the book a request's tokens; return how many a draft of it may hold."""
        tokens = list(request.get_tokens(0))
        num_prompt = min(int(request.py_orig_prompt_len), len(tokens))
        self.book.sync(request.request_id, tokens, self._namespace_of(request), num_prompt)
        # One place stays for the token that the target itself adds.
        return int(request.py_orig_prompt_len + request.py_max_new_tokens - len(tokens) - 1)

    def _namespace_of(self, request: Any) -> str:
        if self.config.sharing != SHARE_BY_SALT:
            return str(request.request_id)
        keys = [getattr(request, name, None) for name in ("lora_task_id", "cache_salt_id")]
        return DEFAULT_NAMESPACE if keys == [None, None] else f"{keys[0]}/{keys[1]}"


def _place(request: Any) -> tuple[bool, int]:
    """Sort by place in the batch; requests that have none yet by their id, behind the others."""
    place = request.py_batch_idx
    return (True, int(request.request_id)) if place is None else (False, int(place))


def read_vocab_size(folder: str | Path) -> int:
    """Return the vocabulary's size of a model folder, and refuse models with a state.

    The engine does not turn back the state of state-space layers behind rejected drafts of a
    user-provided drafter.

    Args:
        folder: with the model's ``config.json``.

    Raises:
        ValueError: the model keeps a state, or the file names no vocabulary.
        OSError: the file cannot be read.
    """
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    words = [config.get("model_type"), *text, text.get("model_type"), *text.get("layer_types", ())]
    for word in words:
        if any(state in str(word).lower() for state in _STATE_WORDS):
            raise ValueError(
                f"expected a model with attention layers only, got {word!r} in {path}: the engine "
                "does not turn the state of other layers back behind rejected drafts"
            )
    if not isinstance(text.get("vocab_size"), int):
        raise ValueError(f"expected vocab_size in {path}, got {text.get('vocab_size')!r}")
    return int(text["vocab_size"])
