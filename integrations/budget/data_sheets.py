"""Step times computed from data sheets, for machines on which nothing has been measured yet.

A step reads the weights and every request's keys and values once, and computes each of its tokens:
its time is the longer of the two at the data sheet's rates, times an assumed efficiency (the
roofline). It knows no launch overheads, no kernels and no network: a measurement replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .calibration_file import DATA_SHEET, Calibration

FloatArray64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as its data sheet describes it.

    Attributes:
        name: of the product.
        bytes_per_second: of its memory.
        flops: dense bf16 operations a second, without sparsity.
        memory_bytes: of its memory.
    """

    name: str
    bytes_per_second: float
    flops: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides the time of its steps.

    Attributes:
        name: of the model.
        num_params: all parameters.
        num_layers: layers with attention.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: width of a head.
        bytes_per_value: of weights, keys and values.
        expert_params: those of ``num_params`` that belong to routed experts.
        num_experts: routed experts of a layer.
        num_chosen: of them, for each token.
    """

    name: str
    num_params: float
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bytes_per_value: float = 2.0
    expert_params: float = 0.0
    num_experts: int = 1
    num_chosen: int = 1

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values of one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_value

    def params_read(self, num_tokens: npt.ArrayLike) -> FloatArray64:
        """Return the parameters that a step over so many tokens reads."""
        share = experts_read(self.num_experts, self.num_chosen, num_tokens) / self.num_experts
        return self.num_params - self.expert_params * (1 - share)

    @property
    def params_computed(self) -> float:
        """Parameters that one token is multiplied with."""
        unused = 1 - self.num_chosen / self.num_experts
        return self.num_params - self.expert_params * unused


DEVICES = {
    # NVIDIA's data sheets: H200 SXM, H100 SXM, A100 SXM 80 GB, L4 (half of the sparse rates).
    "h200": Device("NVIDIA H200 SXM", 4.8e12, 989e12, 141e9),
    "h100": Device("NVIDIA H100 SXM", 3.35e12, 989e12, 80e9),
    "a100": Device("NVIDIA A100 SXM 80GB", 2.039e12, 312e12, 80e9),
    "l4": Device("NVIDIA L4", 0.3e12, 121e12, 24e9),
}

LLAMA_8B = ModelShape("Llama-3.1-8B, bf16", 8.03e9, 32, 32, 8, 128)

BANDWIDTH_EFFICIENCY = 0.8
COMPUTE_EFFICIENCY = 0.6

_CONTEXTS = (512, 2048, 8192)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_NODES = (0, 1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63)


def experts_read(num_experts: int, num_chosen: int, num_tokens: npt.ArrayLike) -> FloatArray64:
    """Return how many experts of a layer at least one of the tokens chooses, on average.

    Assumes that each token chooses ``num_chosen`` different experts, all equally likely, whatever
    the other tokens choose: E (1 - (1 - k/E)^T).

    Raises:
        ValueError: more experts are chosen than there are.
    """
    if not 1 <= num_chosen <= num_experts:
        raise ValueError(f"expected num_chosen in 1..{num_experts}, got {num_chosen}")
    unread = np.power(1 - num_chosen / num_experts, np.asarray(num_tokens, np.float64))
    return np.asarray(num_experts * (1 - unread))


def roofline_seconds(
    device: Device,
    model: ModelShape,
    num_requests: int,
    nodes: npt.ArrayLike,
    context: int,
    *,
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
) -> FloatArray64:
    """Return the time of a decoding step, in seconds, of the shape of ``nodes``.

    Args:
        device: one accelerator.
        model: what runs on it.
        num_requests: requests in the step.
        nodes: drafted tokens of each request; fractions for an average.
        context: tokens in each request's cache.
        bandwidth_efficiency: share of the memory's rate that is reached.
        compute_efficiency: share of the operations a second that is reached.
    """
    tokens = num_requests * (1 + np.asarray(nodes, np.float64))
    cached = num_requests * context * model.kv_bytes_per_token
    read = model.params_read(tokens) * model.bytes_per_value + cached
    attention = 4 * model.num_layers * model.num_heads * model.head_dim * context
    computed = tokens * (2 * model.params_computed + attention)
    return np.maximum(
        read / (device.bytes_per_second * bandwidth_efficiency),
        computed / (device.flops * compute_efficiency),
    )


def data_sheet_calibration(device: str, model: ModelShape = LLAMA_8B) -> Calibration:
    """Return the computed step times of a model on one of :data:`DEVICES`.

    Raises:
        ValueError: no device has that name.
    """
    if device not in DEVICES:
        raise ValueError(f"expected a device among {', '.join(DEVICES)}, got {device!r}")
    sheet = DEVICES[device]
    seconds = np.array(
        [
            [roofline_seconds(sheet, model, batch, _NODES, context) for batch in _BATCHES]
            for context in _CONTEXTS
        ]
    )
    about = {
        "bandwidth_efficiency": BANDWIDTH_EFFICIENCY,
        "compute_efficiency": COMPUTE_EFFICIENCY,
    }
    return Calibration(
        model.name,
        "roofline",
        sheet.name,
        DATA_SHEET,
        _CONTEXTS,
        _BATCHES,
        _NODES,
        seconds,
        about=about,
    )
