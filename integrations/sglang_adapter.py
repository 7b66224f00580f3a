"""freedraft inside SGLang: the worker that drafts trees for the engine's own verification."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from sglang.srt.speculative.ngram_worker import NGRAMWorker  # pyright: ignore[reportMissingImports]

from ..drafters import DEFAULT_NAMESPACE, CandidateTree
from .engine_config import (
    SHARE_BY_SALT,
    EngineConfig,
    create_engine_drafter,
)
from .ignored_settings import refuse_ignored
from .joined_text import JoinedText
from .placeholder_ids import placeholder_ids_of
from .request_book import RequestBook
from .sglang_trees import BoolArray, IntArray64, pack_trees

CONFIG_VARIABLE = "FREEDRAFT_SGLANG_CONFIG"
"""Environment variable with the settings, as JSON or as the path of a JSON file."""

_IGNORED = {
    "schedule": "it verifies the same number of tokens in each step",
    "calibration": "it verifies the same number of tokens in each step",
    "warm_file": "warm files are vLLM's so far",
    "mend": "it mends nothing there",
}

logger = logging.getLogger("freedraft")


class FreedraftWorker(NGRAMWorker):  # type: ignore[misc]  # no types without the engine
    """Proposes one tree a request and step; everything behind that is the engine's own.

    Each tensor-parallel rank drafts for itself and must come to the same trees: nothing here
    depends on clocks. A fault switches drafting off for the requests that it concerns.
    """

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        """Set up the engine's part, read the settings and make the drafter.

        Raises:
            ValueError: a setting is wrong.
            OSError: a file that a setting names cannot be read.
        """
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.open_book(read_config(os.environ.get(CONFIG_VARIABLE, "")))

    def open_book(self, config: EngineConfig) -> None:
        """Make the drafter that the settings ask for."""
        model = self.model_runner.model_config
        fingerprint = None
        if config.pools or ":" in config.drafter:
            from ..drafters.corpus.pool_file import tokenizer_fingerprint

            fingerprint = tokenizer_fingerprint(self.target_worker.tokenizer.get_vocab())
        placeholders = {*config.placeholder_ids, *placeholder_ids_of(model.hf_config)}
        self._max_tokens = int(model.context_len)
        self._chains_only = self.topk == 1
        self._shares = config.sharing == SHARE_BY_SALT
        self._book = RequestBook(
            create_engine_drafter(config, fingerprint), int(model.vocab_size), placeholders
        )
        logger.info(
            "freedraft: drafter %s, %d tokens a request and step",
            config.drafter,
            self.draft_token_num,
        )

    @property
    def statistics(self) -> dict[str, float]:
        """Counts, times and ratios of all requests so far, by name."""
        return dict(self._book.statistics.to_dict())

    def clear_cache_pool(self) -> None:
        """Drop all requests, as the engine does when its cache is flushed."""
        super().clear_cache_pool()
        self._book.retain(())

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """Release a request that has ended."""
        self._book.release(rid)

    def add_external_corpus(self, corpus_id: str, token_chunks: list[list[int]]) -> int:
        """Refuse a corpus: pools are named in the settings.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"expected pools in the settings ({CONFIG_VARIABLE}), got {corpus_id!r}")

    def _prepare_draft_tokens(self, batch: Any) -> tuple[IntArray64, BoolArray]:
        texts = _texts_of(batch, self.enable_overlap, self.draft_token_num)
        request_ids = [request.rid for request in batch.reqs]
        try:
            for request_id in self._prev_decode_rids.difference(request_ids):
                self._book.release(request_id)
            trees = self._propose(batch.reqs, request_ids, texts)
        except Exception as error:
            logger.error("freedraft: drafting failed, decoding goes on without", exc_info=error)
            for request_id in request_ids:
                self._book.switch_off(request_id, error)
            trees = [CandidateTree.empty()] * len(texts)
        return pack_trees([text.last() for text in texts], trees, self.draft_token_num)

    def _propose(
        self, requests: Sequence[Any], request_ids: list[str], texts: Sequence[JoinedText]
    ) -> list[CandidateTree]:
        most = self.draft_token_num - 1
        depths = []
        for request, text in zip(requests, texts, strict=True):
            num_prompt = len(request.origin_input_ids_unpadded)
            namespace = self._namespace_of(request)
            self._book.sync(request.rid, text, namespace, num_prompt)
            room = self._max_tokens - len(text) - 1
            if (limit := request.sampling_params.max_new_tokens) is not None:
                room = min(room, limit - (len(text) - num_prompt) - 1)
            depths.append(max(min(most, room), 0))
        trees = self._book.propose(request_ids, most, depths)
        return [tree.best_chain() for tree in trees] if self._chains_only else trees

    def _namespace_of(self, request: Any) -> str:
        """Return the request's cache salt and adapter, which the engine joins in one key."""
        if not self._shares:
            return str(request.rid)
        return str(request.extra_key or DEFAULT_NAMESPACE)

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Leave the stock trie empty: the next step's tokens tell what was accepted."""


def read_config(source: str) -> EngineConfig:
    """Return the settings of the environment variable, the defaults where it is empty.

    Raises:
        ValueError: a setting is wrong, or one that this engine would ignore.
        OSError: a file cannot be read.
    """
    config = EngineConfig.load(source) if source else EngineConfig()
    refuse_ignored(config, "SGLang", _IGNORED)
    return config


def _texts_of(batch: Any, overlap: bool, num_slots: int) -> list[JoinedText]:
    """Return each request's committed tokens.

    Under overlap the last step's tokens are not yet among the request's: they come from the relay,
    unless a grammar has made the engine wait for them.
    """
    requests = batch.reqs
    if not overlap or batch.grammar_needs_sync():
        return [JoinedText(r.origin_input_ids_unpadded, r.output_ids) for r in requests]
    tokens = batch.spec_info.accept_tokens.cpu().tolist()
    lengths = batch.spec_info.accept_lens.cpu().tolist()
    tails = [tokens[i * num_slots : i * num_slots + n] for i, n in enumerate(lengths)]
    return [
        JoinedText(r.origin_input_ids_unpadded, r.output_ids, tail)
        for r, tail in zip(requests, tails, strict=True)
    ]
