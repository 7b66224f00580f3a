"""Step times of a model of transformers: the forward of a padded batch, the choice, the cache."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedModel

from ...drafters import CandidateTree
from ...verifier import TreeForward


class TransformersTimer:
    """Times the steps that ``freedraft.generate`` makes, drafting left out."""

    def __init__(self, model: PreTrainedModel, max_nodes: int, num_steps: int) -> None:
        """Take the model.

        Args:
            model: the target.
            max_nodes: most nodes of a row that will be timed.
            num_steps: most steps that will be timed on one cache.
        """
        self._model = model
        self._max_nodes = max_nodes
        self._num_steps = num_steps
        config = model.config.get_text_config(decoder=True)
        self._vocab_size: int = config.vocab_size
        self._generator = np.random.default_rng(0)

    @torch.inference_mode()
    def prepare(self, context: int, batch: int) -> Callable[[int], float]:
        """Fill a cache with random tokens; see :class:`~.measure.StepTimer`."""
        capacity = context + self._num_steps + self._max_nodes + 1
        target = TreeForward(self._model, None, capacity)
        target.prefill(self._tokens(batch, context))
        return lambda nodes: self._step(target, batch, nodes)

    @torch.inference_mode()
    def _step(self, target: TreeForward, batch: int, nodes: int) -> float:
        trees = [CandidateTree.from_chain(row) for row in self._tokens(batch, nodes)]
        roots = [row[0] for row in self._tokens(batch, 1)]
        begin = time.perf_counter()
        logits = target.forward(trees, roots)
        logits.argmax(-1).tolist()
        target.commit([[]] * batch)
        return time.perf_counter() - begin

    def _tokens(self, rows: int, length: int) -> list[list[int]]:
        drawn: list[list[int]] = self._generator.integers(
            0, self._vocab_size, (rows, length)
        ).tolist()
        return drawn


def device_name(model: PreTrainedModel) -> str:
    """Return the name of what the model runs on."""
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    from .measure import processor_name

    return f"{processor_name()}, {torch.get_num_threads()} threads"
