"""What a simulated step takes: from a data sheet, or from measurements of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...integrations.budget.calibration_file import Calibration
from ...integrations.budget.data_sheets import (
    BANDWIDTH_EFFICIENCY,
    COMPUTE_EFFICIENCY,
    Device,
    ModelShape,
    roofline_seconds,
)

FloatArray64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step computes.

    Attributes:
        num_decoding: requests that decode.
        num_nodes: drafted tokens of all of them.
        decoding_context: tokens in the caches of all of them.
        num_prefilling: requests of whose prompts a part is read.
        prefill_tokens: of their prompts, in this step.
        prefill_context: tokens in the caches of all of them, this step's part left out.
    """

    num_decoding: int
    num_nodes: int
    decoding_context: int
    num_prefilling: int = 0
    prefill_tokens: int = 0
    prefill_context: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return self.num_decoding + self.num_nodes + self.prefill_tokens


class StepTimes(Protocol):
    """Seconds of a step."""

    def seconds(self, load: StepLoad) -> float:
        """Return what a step takes."""
        ...

    def seconds_by_nodes(self, load: StepLoad, max_nodes: int) -> FloatArray64:
        """Return ``(max_nodes + 1,)``: the same with 0, 1, ... drafted tokens in all."""
        ...


@dataclass(frozen=True, slots=True)
class RooflineTimes:
    """Steps of one model on accelerators as their data sheets describe them.

    Several devices share each layer (tensor parallel) as if the network between them took no time;
    ``overhead`` stands for what the data sheet does not know.

    Attributes:
        device: one accelerator.
        model: what runs.
        num_devices: how many work on each step.
        overhead: seconds of every step outside the model: scheduling, launches, sampling.
        bandwidth_efficiency: share of the memory's rate that is reached.
        compute_efficiency: share of the operations a second that is reached.
    """

    device: Device
    model: ModelShape
    num_devices: int = 1
    overhead: float = 0.001
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY
    compute_efficiency: float = COMPUTE_EFFICIENCY

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: one is out of its range, or the weights do not fit.
        """
        if self.num_devices < 1 or self.overhead < 0:
            raise ValueError(
                f"expected num_devices >= 1 and overhead >= 0, got {self.num_devices} and "
                f"{self.overhead}"
            )
        if self.kv_tokens(1.0) <= 0:
            weights = self.model.num_params * self.model.bytes_per_value
            raise ValueError(
                f"expected memory for the weights ({weights / 1e9:.0f} GB), got "
                f"{self.num_devices} x {self.device.memory_bytes / 1e9:.0f} GB"
            )

    def kv_tokens(self, memory_share: float = 0.9) -> int:
        """Return how many tokens' keys and values fit beside the weights.

        Args:
            memory_share: of the memory that weights and cache may take.
        """
        memory = self.num_devices * self.device.memory_bytes * memory_share
        left = memory - self.model.num_params * self.model.bytes_per_value
        return int(left // self.model.kv_bytes_per_token)

    def seconds(self, load: StepLoad) -> float:
        """Return what a step takes."""
        return float(self._seconds(load, np.array([load.num_nodes]))[0])

    def seconds_by_nodes(self, load: StepLoad, max_nodes: int) -> FloatArray64:
        """Return ``(max_nodes + 1,)``: the same with 0, 1, ... drafted tokens in all."""
        return self._seconds(load, np.arange(max_nodes + 1))

    def _seconds(self, load: StepLoad, nodes: npt.ArrayLike) -> FloatArray64:
        num_requests = load.num_decoding + load.num_prefilling
        tokens = load.num_decoding + load.prefill_tokens + np.asarray(nodes, np.float64)
        context = load.decoding_context + load.prefill_context + load.prefill_tokens / 2
        one_device = roofline_seconds(
            self.device,
            self.model,
            num_requests,
            tokens / num_requests - 1,
            round(context / num_requests),
            bandwidth_efficiency=self.bandwidth_efficiency,
            compute_efficiency=self.compute_efficiency,
        )
        return np.asarray(self.overhead + one_device / self.num_devices)


class DecodingTimes(Protocol):
    """Measured times of decoding steps, such as a calibration's."""

    def step_seconds(
        self, num_requests: float, nodes: npt.ArrayLike, context: float | None = None
    ) -> FloatArray64:
        """Return the seconds of a step: ``nodes`` drafted tokens a request at that context."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Steps of an engine that was measured.

    Attributes:
        decoding: decoding steps; its nodes are those of each request, and steps of one number
            of tokens count as equally long however these are spread over the requests.
        prefill_seconds: of each prompt token on top of a decoding step.
        prefill_base: seconds of a step that reads prompts only, besides its tokens.
    """

    decoding: DecodingTimes
    prefill_seconds: float
    prefill_base: float

    @classmethod
    def of_calibration(cls, calibration: Calibration) -> MeasuredTimes:
        """Return times for which the prompts are taken from the decoding steps' table.

        A prompt's token costs what a further drafted token costs at the table's far end, where
        steps are long; a step that reads prompts only costs a decoding step of one request besides.
        """
        batches, nodes = calibration.batches, calibration.nodes
        far = calibration.seconds[len(calibration.contexts) // 2]
        tokens = batches[-1] * (nodes[-1] - nodes[0]) if len(nodes) > 1 else batches[-1] - 1
        near = far[-1, 0] if len(nodes) > 1 else far[0, 0]
        slope = float(far[-1, -1] - near) / max(tokens, 1)
        return cls(calibration, slope, float(far[0, 0]))

    def seconds(self, load: StepLoad) -> float:
        """Return what a step takes."""
        return float(self._seconds(load, np.array([load.num_nodes]))[0])

    def seconds_by_nodes(self, load: StepLoad, max_nodes: int) -> FloatArray64:
        """Return ``(max_nodes + 1,)``: the same with 0, 1, ... drafted tokens in all."""
        return self._seconds(load, np.arange(max_nodes + 1))

    def _seconds(self, load: StepLoad, nodes: npt.ArrayLike) -> FloatArray64:
        counts = np.asarray(nodes, np.float64)
        if load.num_decoding == 0:
            return np.full(
                counts.shape, self.prefill_base + load.prefill_tokens * self.prefill_seconds
            )
        decoding = self.decoding.step_seconds(
            load.num_decoding,
            counts / load.num_decoding,
            load.decoding_context / load.num_decoding,
        )
        return np.asarray(decoding + load.prefill_tokens * self.prefill_seconds)
