"""The entry point of SGLang's plug-in group: registers the algorithm ``FREEDRAFT``.

Every process of the engine loads it, so it imports nothing heavy; the worker comes when it is made.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.speculative.spec_info import (  # pyright: ignore[reportMissingImports]
    SpeculativeAlgorithm,
)
from sglang.srt.speculative.spec_registry import (  # pyright: ignore[reportMissingImports]
    CustomSpecAlgo,
    get_spec,
)

NAME = "FREEDRAFT"
DEFAULT_SLOTS = 12
"""Tokens that a step verifies of each request, unless ``--speculative-num-draft-tokens`` says."""
DEFAULT_RUNNING_REQUESTS = 48
_CORPUS_CAPACITY = 1024  # of the stock trie, which stays empty; it must exceed the trie's depth

logger = logging.getLogger("freedraft")


class FreedraftAlgorithm(CustomSpecAlgo):  # type: ignore[misc]  # no types without the engine
    """The algorithm as the engine's branches see it: like NGRAM, which verifies trees.

    The engine calls three methods that its base class for plug-ins does not have.
    """

    def is_ngram(self) -> bool:
        """Take the NGRAM branches: trees from the host, no draft model."""
        return True

    def has_draft_kv(self) -> bool:
        """Reserve no cache for a draft model."""
        return False

    def need_topk(self) -> bool:
        """Relay no top-k of a draft model."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Transfer no hidden states of a draft model."""
        return False

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        """Return what relays accepted tokens from one step to the next under overlap."""
        from sglang.srt.managers.overlap_utils import (  # pyright: ignore[reportMissingImports]
            FutureMap,
        )

        return FutureMap(
            device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay
        )

    def handle_server_args(self, server_args: Any) -> None:
        """Check the command line and fill in what was left open.

        Args:
            server_args: the engine's; assigned to.

        Raises:
            ValueError: options that drafts cannot be served with, or that would be ignored.
        """
        check_server_args(server_args)
        if server_args.speculative_num_draft_tokens is None:
            server_args.speculative_num_draft_tokens = DEFAULT_SLOTS
        if server_args.max_running_requests is None:
            server_args.max_running_requests = DEFAULT_RUNNING_REQUESTS
        if server_args.device == "cpu":
            server_args.disable_overlap_schedule = True
        server_args.enable_mixed_chunk = False
        server_args.speculative_eagle_topk = server_args.speculative_ngram_max_bfs_breadth
        if server_args.speculative_num_steps is None:
            server_args.speculative_num_steps = max(
                server_args.speculative_num_draft_tokens // server_args.speculative_eagle_topk, 1
            )
        server_args.speculative_ngram_capacity = max(
            _CORPUS_CAPACITY, 2 * server_args.speculative_ngram_max_trie_depth
        )


def check_server_args(server_args: Any) -> None:
    """Check the engine's options before they are completed.

    Raises:
        ValueError: options that drafts cannot be served with, or that would be ignored.
    """
    if server_args.device not in ("cuda", "cpu", "xpu"):
        raise ValueError(f"expected --device cuda, cpu or xpu for {NAME}, got {server_args.device}")
    slots = server_args.speculative_num_draft_tokens
    if slots is not None and slots < 2:
        raise ValueError(f"expected --speculative-num-draft-tokens of at least 2, got {slots}")
    if server_args.enable_dp_attention or server_args.attn_dp_size > 1:
        raise ValueError(
            f"expected no attention data parallelism with {NAME}: NGRAM's trees have none"
        )
    if server_args.speculative_ngram_external_corpus_path is not None:
        raise ValueError(
            "expected pools in the settings of freedraft, got "
            "--speculative-ngram-external-corpus-path, which only NGRAM reads"
        )
    if server_args.speculative_use_rejection_sampling:
        raise ValueError(
            f"expected no --speculative-use-rejection-sampling with {NAME}: its drafts are fixed"
        )
    pages, backend = server_args.page_size or 1, server_args.attention_backend
    if backend == "torch_native":
        raise ValueError("expected an --attention-backend that reads tree masks, got torch_native")
    is_tree = server_args.speculative_ngram_max_bfs_breadth > 1
    if is_tree and pages > 1 and backend != "flashinfer":
        raise ValueError(
            f"expected --page-size 1 or --attention-backend flashinfer for trees, got {pages} and "
            f"{backend}; --speculative-ngram-max-bfs-breadth 1 drafts chains"
        )
    thresholds = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    if any(getattr(server_args, name) != 1.0 for name in thresholds):
        logger.warning(
            "freedraft: acceptance thresholds other than 1 make the output approximate: it no "
            "longer has the model's own distribution"
        )


def register() -> None:
    """Register the algorithm; a second call in the same process does nothing."""
    if get_spec(NAME) is not None:
        return

    def create(server_args: Any) -> type:
        from .sglang_adapter import FreedraftWorker

        return FreedraftWorker

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=FreedraftAlgorithm)(
        create
    )
