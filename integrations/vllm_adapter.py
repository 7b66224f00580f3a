"""freedraft inside vLLM: the proposer class that ``--speculative-config`` names."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import numpy.typing as npt

from ..drafters import RequestId
from .engine_config import (
    SHARE_BY_SALT,
    EngineConfig,
    create_engine_budget,
    create_engine_drafter,
)
from .placeholder_ids import placeholder_ids_of
from .request_book import RequestBook
from .step_clock import StepClock
from .vllm_mends import mend_stock_faults
from .vllm_metrics import MetricsFile
from .vllm_plugin import logger, register, wrap_runner
from .vllm_rows import PrefixRows, Row, RunnerRows, find_runner
from .warm_file import WarmFile, pool_bytes

CONFIG_KEY = "freedraft"
"""Where the settings stand in vLLM's ``additional_config``."""
CONFIG_VARIABLE = "FREEDRAFT_VLLM_CONFIG"
"""Environment variable with the settings, as JSON or as the path of a JSON file."""
_MOST_LOGGED_FAULTS = 8  # with their traces; further ones are only counted


class FreedraftProposer:
    """Proposes one chain of tokens a request and step.

    vLLM makes one in each worker of the last pipeline rank. It never raises out of
    :meth:`propose`: a fault switches drafting off for the requests that it concerns, which decode
    on without drafts.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Read the settings and find the runner that is making this proposer.

        Args:
            vllm_config: vLLM's ``VllmConfig``.

        Raises:
            ValueError: a setting is wrong.
            OSError: a file that a setting names cannot be read.
        """
        self._num_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_model_len = int(vllm_config.model_config.max_model_len)
        vocab_size = int(vllm_config.model_config.get_vocab_size())
        self.config = config = read_config(vllm_config.additional_config, os.environ)
        self._drafts_here = _is_draft_rank(vllm_config.parallel_config)
        drafter = create_engine_drafter(config, _tokenizer_fingerprint(vllm_config, config))
        # Ranks that each schedule for themselves must agree on every draft: clocks do not.
        is_measured = not _ranks_schedule_apart(vllm_config.parallel_config)
        self._budget = None
        if is_measured or config.schedule:
            self._budget = create_engine_budget(config, _runs_on_cpu(vllm_config))
        placeholders = {*config.placeholder_ids, *_placeholder_ids(vllm_config.model_config)}
        # Where step times decide, a request whose drafts do not pay is left alone now and then.
        naps = self._budget is not None and config.schedule is None
        self._book = RequestBook(drafter, vocab_size, placeholders, self._budget, naps)
        self._clock = StepClock()
        self._num_faults = 0
        register()
        self._rows, mode = self._find_rows()
        mended = mend_stock_faults() if config.mend else []
        self._drafter = drafter
        self._metrics = MetricsFile(int(vllm_config.parallel_config.data_parallel_rank))
        weakref.finalize(self, self._metrics.close)
        # Worker processes end without atexit; what multiprocessing finalizes is run in both.
        Finalize(None, _close_living, args=(weakref.ref(self),), exitpriority=10)
        self._warm = None
        if config.warm_file is not None and self._drafts_here:
            self._warm = WarmFile(drafter, _rank_path(config.warm_file, vllm_config), vocab_size)
            self._warm.open(config.save_seconds, logger)
        self._publish()
        logger.info(
            "freedraft: drafter %s, up to %d tokens, budget %s, requests known by %s%s%s",
            config.drafter,
            self._num_tokens,
            config.budget if self._budget is not None else "none",
            mode,
            f", mended: {', '.join(mended)}" if mended else "",
            "" if self._drafts_here else "; this rank does not draft",
        )

    @property
    def statistics(self) -> Mapping[str, float]:
        """Counts, times and ratios of all requests so far, by name."""
        return self._book.statistics.to_dict()

    @property
    def num_pool_bytes(self) -> int:
        """Bytes that the tokens of requests and finished responses take."""
        return pool_bytes(self._drafter)

    def load_model(self, *_: object) -> None:
        """Load nothing: vLLM calls this once the target model is there."""

    def begin_step(self, scheduler_output: Any) -> None:
        """Take in what the scheduler says of a step; the runner's wrapper calls this."""
        try:
            for request_id in self._rows.begin_step(scheduler_output):
                self._book.release(request_id)
        except Exception as error:
            self._report(error, ())

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.integer[Any]],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return a draft for each row of the batch, empty where none is worth its verification.

        Args:
            sampled_token_ids: of each row what the step emitted; nothing during its prefill.
            num_tokens_no_spec: ``(max_num_rows,)`` committed tokens of each row, these included.
            token_ids_cpu: ``(max_num_rows, max_model_len)`` int32, the tokens.
            slot_mappings: not used.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not self._drafts_here:
            return drafts
        rows: list[Row] = []
        try:
            indices = [index for index, tokens in enumerate(sampled_token_ids) if len(tokens)]
            sizes = [int(num_tokens_no_spec[index]) for index in indices]
            rows = self._rows.read(indices, sizes, token_ids_cpu)
            self._follow(rows, is_complete=len(rows) == len(drafts))
            self._draft(rows, drafts)
            self._publish()
        except Exception as error:
            self._report(error, [row.request_id for row in rows])
            return [[] for _ in sampled_token_ids]
        return drafts

    def close(self) -> None:
        """Write the warm file and let go of the metrics."""
        if self._warm is not None:
            self._warm.close()
        self._metrics.close()

    def _find_rows(self) -> tuple[RunnerRows | PrefixRows, str]:
        """Return where rows are read from, and its name for the log."""
        runner = find_runner()
        if runner is None:
            return PrefixRows(), "their text"
        rows = RunnerRows(weakref.ref(runner), self.config.sharing == SHARE_BY_SALT)
        return rows, "their ids and steps" if wrap_runner(runner, self) else "their ids"

    def _follow(self, rows: Sequence[Row], is_complete: bool) -> None:
        """Tell the book what each request has emitted, and the budget what the step took."""
        statistics = self._book.statistics
        seconds = self._clock.tick([row.request_id for row in rows], is_complete)
        num_drafted = statistics.drafted
        for row in rows:
            try:
                self._book.sync(
                    row.request_id,
                    row.token_ids,
                    row.namespace,
                    row.num_prompt_tokens,
                    row.num_verified,
                )
                if row.prediction is not None:
                    self._book.set_prediction(row.request_id, row.prediction)
            except Exception as error:
                self._report(error, [row.request_id])
        all_asleep = self._book.all_asleep(row.request_id for row in rows)
        if self._budget is not None and seconds is not None and not all_asleep:
            self._budget.record_step(len(rows), statistics.drafted - num_drafted, seconds)
        if len(self._book) > len(rows):
            self._book.retain(self._rows.running())

    def _draft(self, rows: Sequence[Row], drafts: list[list[int]]) -> None:
        """Write a draft for each of the rows."""
        wanted = self._rows.take_step()
        most = self._num_tokens if wanted is None else min(wanted, self._num_tokens)
        left = [min(row.num_left, self._max_model_len - len(row.token_ids)) for row in rows]
        room = [
            max(min(most, row.most, num_left - 1), 0)
            for row, num_left in zip(rows, left, strict=True)
        ]
        chains = self._book.propose_chains([row.request_id for row in rows], room, left)
        for row, chain in zip(rows, chains, strict=True):
            drafts[row.index] = chain

    def _report(self, error: Exception, request_ids: Sequence[RequestId]) -> None:
        """Log a fault and switch the requests off that it concerns."""
        self._num_faults += 1
        if self._num_faults <= _MOST_LOGGED_FAULTS:
            logger.error("freedraft: drafting failed, decoding goes on without", exc_info=error)
        for request_id in request_ids:
            try:
                self._book.switch_off(request_id, error)
            except Exception:  # the guard could not even warn; the row has no draft either way
                continue

    def _publish(self) -> None:
        self._metrics.write(self._book.statistics, self.num_pool_bytes)


def read_config(additional_config: object, environment: Mapping[str, str]) -> EngineConfig:
    """Return the settings of ``additional_config`` or of the environment variable.

    Args:
        additional_config: vLLM's, with the settings (an object, or the path of a JSON file) under
            ``freedraft``.
        environment: variables by name.

    Raises:
        ValueError: both give settings, or a setting is wrong.
        OSError: a file cannot be read.
    """
    given = additional_config.get(CONFIG_KEY) if isinstance(additional_config, dict) else None
    variable = environment.get(CONFIG_VARIABLE)
    if given is not None and variable:
        raise ValueError(
            f"expected settings in additional_config[{CONFIG_KEY!r}] or in {CONFIG_VARIABLE}, got "
            "both"
        )
    source = given if given is not None else variable
    if not source:
        return EngineConfig()
    if not isinstance(source, str | dict):
        raise ValueError(f"expected an object or a path, got {type(source).__name__}")
    return EngineConfig.load(source)


def _close_living(reference: weakref.ref[FreedraftProposer]) -> None:
    proposer = reference()
    if proposer is not None:
        proposer.close()


def _is_draft_rank(parallel_config: Any) -> bool:
    """Return whether this worker's drafts are used: those of the first tensor rank are."""
    if _ranks_schedule_apart(parallel_config):
        return True
    if parallel_config.tensor_parallel_size == 1:
        return True
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return bool(get_tensor_model_parallel_rank() == 0)


def _ranks_schedule_apart(parallel_config: Any) -> bool:
    return bool(parallel_config.distributed_executor_backend == "external_launcher")


def _runs_on_cpu(vllm_config: Any) -> bool:
    device = getattr(vllm_config, "device_config", None)
    return getattr(device, "device_type", None) == "cpu"


def _rank_path(path: str, vllm_config: Any) -> str:
    """Return the path, with the data-parallel rank in its name where there are several."""
    parallel = vllm_config.parallel_config
    if parallel.data_parallel_size == 1:
        return path
    return f"{path}.{parallel.data_parallel_rank}"


def _tokenizer_fingerprint(vllm_config: Any, config: EngineConfig) -> str | None:
    """Return the fingerprint of the served model's tokenizer, if a pool is to be checked."""
    if not config.pools and ":" not in config.drafter:
        return None
    from transformers import AutoTokenizer

    from ..drafters.corpus.pool_file import tokenizer_fingerprint

    model = vllm_config.model_config
    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer,
        revision=model.tokenizer_revision,
        trust_remote_code=model.trust_remote_code,
    )
    return tokenizer_fingerprint(tokenizer.get_vocab())


def _placeholder_ids(model_config: Any) -> set[int]:
    """Return the ids that stand for images and the like in a multimodal model's prompts."""
    if not getattr(model_config, "is_multimodal_model", False):
        return set()
    return set(placeholder_ids_of(model_config.hf_config))
