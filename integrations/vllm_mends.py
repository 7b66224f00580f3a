"""Faults of vLLM that speculation meets on a CPU, mended while freedraft drafts there.

Each mend looks at the version and at the code that it replaces, and leaves what it does not know
alone. What each fault is, and what cannot be mended from outside, is in ``docs/vllm.md``.
"""

from __future__ import annotations

import functools
from typing import Any

from .vllm_plugin import logger, parameter_names

_OLDEST, _NEWEST = (0, 22), (0, 33)
"""Releases whose code was read; a newer one keeps its own code until somebody has looked."""
_DONE = "_freedraft_mended"
_EXPAND_PARAMETERS = ["x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"]


def mend_stock_faults() -> list[str]:
    """Mend what this process's vLLM is known to get wrong; return the names of the mends."""
    if not _is_known_version():
        return []
    mended = []
    if _mend_expand():
        mended.append("sampling parameters at draft positions")
    if _mend_top_k():
        mended.append("top_k of no rows")
    return mended


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Repeat each row's value for each of its tokens.

    Args:
        x: ``(num_rows,)`` tensor.
        cu_num_tokens: ``(num_rows,)`` tensor, where each row's tokens end.
        num_tokens: tokens in all.
        replace_from: a value that is replaced.
        replace_to: what it is replaced by.

    Returns:
        A ``(num_tokens,)`` tensor of ``x``'s type.
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts.long(), output_size=num_tokens)


def _is_known_version() -> bool:
    try:
        from vllm import version
    except ImportError:
        return False
    release = getattr(version, "__version_tuple__", (0, 0))[:2]
    return bool(_OLDEST <= tuple(release) <= _NEWEST)


def _mend_expand() -> bool:
    """Give a CPU without Triton the sampling parameters of its draft positions.

    The stock replacement writes to a copy and drops it, so that temperature, top_k and top_p are
    what happened to be in memory.
    """
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON
    from vllm.v1.sample import rejection_sampler

    stock = getattr(rejection_sampler, "expand_batch_to_tokens", None)
    if HAS_TRITON or not current_platform.is_cpu() or stock is None:
        return False
    if stock is expand_batch_to_tokens:
        return True
    if parameter_names(stock) != _EXPAND_PARAMETERS:
        logger.warning("freedraft: expand_batch_to_tokens is foreign and left alone")
        return False
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    return True


def _mend_top_k() -> bool:
    """Let ``apply_top_k_only`` take no rows, as in a step in which only some rows have drafts."""
    from vllm.v1.sample.ops import topk_topp_sampler

    stock = getattr(topk_topp_sampler, "apply_top_k_only", None)
    if stock is None:
        return False
    if getattr(stock, _DONE, False):
        return True
    if parameter_names(stock) != ["logits", "k"]:
        logger.warning("freedraft: apply_top_k_only is foreign and left alone")
        return False

    @functools.wraps(stock)
    def apply_top_k_only(logits: Any, k: Any) -> Any:
        return stock(logits, k) if logits.shape[0] else logits

    setattr(apply_top_k_only, _DONE, True)
    topk_topp_sampler.apply_top_k_only = apply_top_k_only
    return True
