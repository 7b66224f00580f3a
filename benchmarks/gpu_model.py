"""A Llama in plain torch with random weights, for timing forwards over trees on a GPU.

The attention is what makes a tree cheap: the queries of one key-value head are packed as rows, the
context is cut into pieces that run side by side (unmasked, flash attention), the tree's own keys
are one more piece with the ancestor mask, and the pieces are merged by their log-sum-exp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

KEY_PADDING = 8  # biased attention on a GPU wants rows of the mask aligned to 16 bytes


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of a model; the defaults are Llama-3-8B's."""

    num_layers: int = 32
    hidden_size: int = 4096
    num_heads: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    intermediate_size: int = 14336
    vocab_size: int = 128_256


TINY = LlamaShape(2, 64, 4, 2, 16, 128, 512)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return attention and its log-sum-exp: ``(rows, heads, columns, size)`` and without size.

    Args:
        query: ``(rows, heads, columns, size)``.
        key: ``(rows, heads, slots, size)``.
        value: likewise.
        bias: ``(rows, heads, columns, slots)`` added to the scores, or ``None``.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    if query.device.type != "cuda":
        scores = query.float() @ key.float().transpose(2, 3) * scale
        scores = scores if bias is None else scores + bias
        log_sum = scores.logsumexp(-1)
        return ((scores - log_sum[..., None]).exp() @ value.float()).to(query.dtype), log_sum
    if bias is None:
        out, log_sum, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, False, False, scale=scale
        )
    else:
        out, log_sum, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, 0.0, False, scale=scale
        )
    return out, log_sum[..., : query.shape[2]]  # the second pads its rows


class RandomLlama:
    """Weights and the forward over one step's columns."""

    def __init__(self, shape: LlamaShape, device: torch.device, dtype: torch.dtype) -> None:
        """Draw the weights; each layer has its own, so that the caches of the chip do not help."""
        self.shape = shape
        heads = shape.num_heads + 2 * shape.num_kv_heads

        def weight(rows: int, columns: int) -> Tensor:
            drawn = torch.empty(rows, columns, device=device, dtype=dtype)
            return drawn.normal_(std=1 / math.sqrt(columns))

        self.embedding = weight(shape.vocab_size, shape.hidden_size)
        self.head = weight(shape.vocab_size, shape.hidden_size)
        self.norm = torch.ones(shape.hidden_size, device=device, dtype=dtype)
        self.layers = [
            (
                weight(heads * shape.head_size, shape.hidden_size),
                weight(shape.hidden_size, shape.num_heads * shape.head_size),
                weight(2 * shape.intermediate_size, shape.hidden_size),
                weight(shape.hidden_size, shape.intermediate_size),
            )
            for _ in range(shape.num_layers)
        ]

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        visible: Tensor | None,
        context: list[tuple[Tensor, Tensor]],
        num_pieces: int,
    ) -> Tensor:
        """Return ``(rows, width, vocab)`` logits.

        Args:
            token_ids: ``(rows, width)`` int64.
            positions: ``(rows, width)`` int64.
            visible: ``(rows, width, width)`` bool, the ancestor mask; ``None`` for one column,
                whose own key counts as the last slot of the context.
            context: key and value of each layer, ``(rows, kv_heads, slots, size)``, contiguous.
            num_pieces: divides the number of slots.
        """
        shape = self.shape
        hidden = F.embedding(token_ids, self.embedding)
        angles = positions[..., None, None] * _frequencies(shape.head_size, positions.device)
        cosine, sine = angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)
        bias = None if visible is None else self._bias(visible, hidden.dtype)
        for (qkv, out, gate_up, down), (keys, values) in zip(self.layers, context, strict=True):
            normed = F.rms_norm(hidden, (shape.hidden_size,), self.norm)
            mixed = self._attention(
                F.linear(normed, qkv), cosine, sine, keys, values, bias, num_pieces
            )
            hidden = hidden + F.linear(mixed, out)
            normed = F.rms_norm(hidden, (shape.hidden_size,), self.norm)
            gate, up = F.linear(normed, gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(hidden, (shape.hidden_size,), self.norm), self.head)

    def _bias(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the tree's mask for packed queries, its keys padded."""
        width = visible.shape[1]
        padding = -width % KEY_PADDING
        hidden_keys = F.pad(~visible, (0, padding), value=True)
        bias = torch.zeros(hidden_keys.shape, dtype=dtype, device=visible.device)
        bias.masked_fill_(hidden_keys, -torch.inf)
        group = self.shape.num_heads // self.shape.num_kv_heads
        packed = bias[:, None].repeat(1, 1, group, 1)  # (rows, 1, group * width, slots)
        return packed.expand(-1, self.shape.num_kv_heads, -1, -1)

    def _attention(
        self,
        projected: Tensor,
        cosine: Tensor,
        sine: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor | None,
        num_pieces: int,
    ) -> Tensor:
        shape = self.shape
        rows, width = projected.shape[:2]
        group = shape.num_heads // shape.num_kv_heads
        split = projected.view(rows, width, -1, shape.head_size)
        turned = split[:, :, : shape.num_heads + shape.num_kv_heads]
        first, second = turned.chunk(2, -1)
        turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
        query = turned[:, :, : shape.num_heads].view(rows, width, -1, group, shape.head_size)
        query = query.permute(0, 2, 3, 1, 4).reshape(rows, -1, group * width, shape.head_size)
        size = (rows, shape.num_kv_heads * num_pieces, -1, shape.head_size)
        spread = query.repeat_interleave(num_pieces, 1) if num_pieces > 1 else query
        out, log_sum = attend(spread, keys.view(size), values.view(size), None)
        out = out.view(rows, -1, num_pieces, group * width, shape.head_size)
        log_sum = log_sum.view(rows, -1, num_pieces, group * width)
        if bias is not None:
            padding = (0, 0, 0, bias.shape[-1] - width)
            own_keys = F.pad(turned[:, :, shape.num_heads :].transpose(1, 2), padding)
            own_values = split[:, :, shape.num_heads + shape.num_kv_heads :]
            own_values = F.pad(own_values.transpose(1, 2), padding)
            own, own_sum = attend(query, own_keys, own_values, bias)
            out = torch.cat([out, own[:, :, None]], 2)
            log_sum = torch.cat([log_sum, own_sum[:, :, None]], 2)
        if out.shape[2] > 1:
            out = out * log_sum.softmax(2).to(out.dtype)[..., None]
            out = out.sum(2, keepdim=True)
        merged = out.view(rows, -1, group, width, shape.head_size)
        return merged.permute(0, 3, 1, 2, 4).reshape(rows, width, -1)


def _frequencies(head_size: int, device: torch.device) -> Tensor:
    steps = torch.arange(head_size // 2, device=device, dtype=torch.float32)
    return 500_000.0 ** (-2 * steps / head_size)


def context_of(
    shape: LlamaShape, storage: list[Tensor], num_rows: int, num_slots: int
) -> list[tuple[Tensor, Tensor]]:
    """Return views of the storage as the layers' contexts.

    Args:
        shape: of the model.
        storage: of each layer, one flat tensor of random numbers.
        num_rows: rows of the batch.
        num_slots: slots of each row.
    """
    size = (num_rows, shape.num_kv_heads, num_slots, shape.head_size)
    numel = math.prod(size)
    return [
        (flat[:numel].view(size), flat[flat.numel() // 2 :][:numel].view(size)) for flat in storage
    ]


def num_pieces(num_rows: int, num_kv_heads: int, num_slots: int) -> int:
    """Return into how many pieces the context is cut so that a large GPU is busy."""
    pieces = 1
    while (
        pieces * num_rows * num_kv_heads < 132  # multiprocessors of a Hopper chip
        and num_slots % (pieces * 2) == 0
        and num_slots // (pieces * 2) >= 64
    ):
        pieces *= 2
    return pieces
