"""The adapter to llama-cpp-python: any drafter as the ``draft_model`` of a ``Llama``.

The engine calls the draft model once a step with all tokens so far and verifies the chain that it
returns. It says neither which request the tokens belong to nor what was accepted: both are read off
the tokens. It needs neither torch nor transformers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..drafters import DEFAULT_DRAFTER, DEFAULT_NAMESPACE, Drafter, create_drafter
from ..drafters.tree import IntArray
from .budget import BudgetConfig, Calibration, StepCosts, load_calibration
from .chain_budget import RoundChainBudget
from .draft_naps import DraftNaps
from .llama_cpp_costs import measure_costs
from .llama_cpp_model import check_model, end_ids_of
from .request_book import RequestBook
from .statistics import GenerationStatistics

_NOTHING = np.zeros(0, np.intc)
_NEVER = 1 << 60  # steps
_TRIAL, _TRIAL_SIZE = "freedraft-trial", 64  # request and namespace, and tokens, of a first text


@dataclass(frozen=True, slots=True)
class LlamaDraftConfig:
    """Settings of :func:`attach`.

    Attributes:
        max_length: most tokens drafted in a step.
        calibration: step times: a calibration, the path of its file, or ``None`` to measure them
            on the model, which takes a few seconds.
        namespace: texts learn from earlier ones of the same namespace only.
        placeholder_ids: ids of images, padding and the like, which are never matched or proposed.
    """

    max_length: int = 31
    calibration: Calibration | str | Path | None = None
    namespace: str = DEFAULT_NAMESPACE
    placeholder_ids: Iterable[int] = frozenset()

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: ``max_length`` is not positive.
        """
        if self.max_length < 1:
            raise ValueError(f"expected max_length >= 1, got {self.max_length}")


class LlamaDraft:
    """Drafts for one ``Llama``: what :func:`attach` makes its ``draft_model``.

    A text that does not continue the last one begins a new request. The time between two calls is
    the time of the step between them, so the cost gate needs no help from the engine.
    """

    def __init__(
        self,
        drafter: Drafter,
        vocab_size: int,
        max_context: int,
        calibration: Calibration,
        config: LlamaDraftConfig | None = None,
        end_ids: Collection[int] = frozenset(),
    ) -> None:
        """Start without a text.

        Args:
            drafter: taken over; it must not be used elsewhere.
            vocab_size: ids from it on are never proposed.
            max_context: tokens that the engine's context holds.
            calibration: what steps cost, to begin with.
            config: the settings; its ``calibration`` is not read here.
            end_ids: tokens at which the engine stops.
        """
        self.config = LlamaDraftConfig() if config is None else config
        # A step without a draft is the norm on a CPU: test the smallest width, and seldom. Whom to
        # ask, and when, is for the naps to say.
        settings = BudgetConfig(test_after=512, test_nodes=3, sleep_after=_NEVER)
        costs, longest = StepCosts(calibration), self.config.max_length
        self._budget = RoundChainBudget(costs, settings, longest, end_ids)
        self._book = RequestBook(drafter, vocab_size, self.config.placeholder_ids, self._budget)
        self._naps = DraftNaps(self._budget.least_repeat())
        self._max_context = max_context
        self._request = 0
        # The text at the last call: a copy, since the engine's array is a live view; bytes, since
        # comparing those costs next to nothing even while the model's weights fill the caches.
        self._text = b""
        self._prompt_length = 0
        self._num_drafted = 0
        self._returned_at = 0.0
        self._prediction: Sequence[int] | None = None

    @property
    def statistics(self) -> GenerationStatistics:
        """Counts of all texts, up to where the drafter was last asked, since it was attached."""
        return self._book.statistics

    def set_prediction(self, token_ids: Sequence[int]) -> None:
        """Tell the drafter, if it listens, what the next text's output will probably be."""
        self._prediction = list(token_ids)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: object) -> npt.NDArray[np.intc]:
        """Return what probably follows.

        Args:
            input_ids: ``(num_tokens,)`` all tokens so far; the engine changes them later.
            **_: part of the engine's signature; it passes nothing.

        Returns:
            ``(num_drafted,)`` token ids, possibly none.
        """
        seconds = time.perf_counter() - self._returned_at
        drafted = self._draft(np.asarray(input_ids, np.int32), seconds)
        self._returned_at = time.perf_counter()
        return drafted

    def _draft(self, text: IntArray, seconds: float) -> npt.NDArray[np.intc]:
        last, self._text = self._text, text.tobytes()
        num_new = (len(self._text) - len(last)) // text.itemsize
        is_next = 1 <= num_new <= 1 + self._num_drafted and len(last) > 0
        is_next = is_next and self._text.startswith(last)
        if is_next:
            self._naps.follow(text[-num_new:].tolist())
        else:
            self._begin(text, last)
        if self._naps.sleep():
            self._num_drafted = 0
            return _NOTHING
        woken_at = time.perf_counter()
        is_known = self._request in self._book
        if is_next:
            self._budget.record_step(1, self._num_drafted, seconds)
        self._tell(text, self._naps.num_slept)
        room = min(self.config.max_length, self._max_context - text.size)
        room = max(room, 0)
        # The budget picks the best chain; other branches take none of its nodes.
        chain = self._book.propose([self._request], 2 * room, [room])[0]
        self._num_drafted = chain.num_nodes
        plain = self._budget.costs.plain_seconds(1)
        cost = (time.perf_counter() - woken_at) / plain if plain and is_known else None
        self._naps.wake(chain.num_nodes, cost)
        return chain.token_ids.astype(np.intc)

    def _begin(self, text: IntArray, last: bytes) -> None:
        """End the request before and begin one; its drafter may hear of it later."""
        if self._naps.num_slept:  # later texts learn from all of it
            self._tell(np.frombuffer(last, np.int32), self._naps.num_slept - 1)
        self._book.release(self._request)
        self._request += 1
        # The first call comes after the prompt's own token.
        self._prompt_length = max(text.size - 1, 0)
        prediction, self._prediction = self._prediction, None
        self._naps.follow([] if prediction is None else prediction)
        self._naps.restart(self._budget.least_repeat(), asleep=prediction is None)
        self._naps.follow(text.tolist())
        if prediction is not None:
            self._tell(text[: self._prompt_length], 0)
            self._book.set_prediction(self._request, prediction)

    def _tell(self, text: IntArray, num_steps: int) -> None:
        """Tell the drafter what is new, of which the book counts one step beside ``num_steps``."""
        self._book.statistics.steps += num_steps
        if self._request not in self._book:
            prompt = text[: self._prompt_length]
            self._book.sync(self._request, prompt, self.config.namespace)
        self._book.sync(self._request, text, self.config.namespace)


def attach(
    llama: Any,
    drafter: str | Drafter = DEFAULT_DRAFTER,
    config: LlamaDraftConfig | None = None,
) -> LlamaDraft:
    """Make a drafter the draft model of a ``Llama``.

    Args:
        llama: a ``llama_cpp.Llama`` made with ``logits_all=True``; its cached prompt is dropped.
        drafter: a drafter or the name of one.
        config: the settings; the defaults when absent.

    Returns:
        What is now ``llama.draft_model``.

    Raises:
        ValueError: the model is recurrent or hybrid, ``logits_all`` is not set, the drafter's name
            or the calibration is unknown.
    """
    check_model(llama)
    config = LlamaDraftConfig() if config is None else config
    if config.calibration is None:
        calibration = measure_costs(llama)
    else:
        calibration = load_calibration(config.calibration)
    source = create_drafter(drafter) if isinstance(drafter, str) else drafter
    sizes = int(llama.n_vocab()), int(llama.n_ctx())
    _touch(source, sizes[0], config.namespace)
    draft = LlamaDraft(source, *sizes, calibration, config, end_ids_of(llama))
    llama.draft_model = draft
    return draft


def _touch(drafter: Drafter, vocab_size: int, namespace: str) -> None:
    """Let a drafter take its memory, which can be as long as several steps, before any text.

    What all namespaces share is taken by a text of its own, what the given one has by an empty one,
    so that nothing of it is ever proposed.
    """
    book = RequestBook(drafter, vocab_size)
    some = np.arange(min(_TRIAL_SIZE, vocab_size), dtype=np.int32)
    for space, tokens in ((_TRIAL, some), (namespace, some[:0])):
        book.sync(_TRIAL, tokens, space)
        book.propose([_TRIAL], 1, [1])
        book.release(_TRIAL)
