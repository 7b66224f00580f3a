"""The plug-in's entry point in vLLM, and what it wraps after a look at the signatures.

vLLM loads plug-ins in its front end, its engine core and its workers, sometimes more than once: all
of this can be called any number of times, and costs nothing where freedraft is not in use.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any, Protocol

from .vllm_metrics import install_collector
from .vllm_rows import SALT_ATTRIBUTE

logger = logging.getLogger("vllm.freedraft")  # below vLLM's own logger, so that it has a handler

_DONE = "_freedraft_wrapped"


class StepListener(Protocol):
    """Is told what the scheduler said, before drafts are asked for."""

    def begin_step(self, scheduler_output: Any) -> None:
        """Take in a step of the scheduler."""
        ...


def register() -> None:
    """Show the workers' counts and pass cache salts on to them; vLLM's entry point."""
    try:
        install_collector()
    except (ImportError, ValueError) as error:
        logger.info("freedraft: counts are not shown: %s", error)
    pass_salts_on()


def pass_salts_on() -> None:
    """Let new requests carry their cache salt to the workers.

    Without it the workers do not know the salts, and no request learns from another.
    """
    if "vllm.config" not in sys.modules:
        return  # no scheduler is made in this process, and importing one takes seconds
    try:
        from vllm.v1.core.sched.output import NewRequestData
    except ImportError as error:
        logger.info("freedraft: cache salts are not passed on: %s", error)
        return
    if getattr(NewRequestData, _DONE, False):
        return
    make = NewRequestData.__dict__.get("from_request")
    if not isinstance(make, classmethod) or parameter_names(make.__func__)[:2] != [
        "cls",
        "request",
    ]:
        logger.warning("freedraft: NewRequestData.from_request is foreign, salts stay unknown")
        return
    original = make.__func__

    @functools.wraps(original)
    def from_request(cls: Any, request: Any, *rest: Any, **named: Any) -> Any:
        data = original(cls, request, *rest, **named)
        setattr(data, SALT_ATTRIBUTE, getattr(request, "cache_salt", None))
        return data

    NewRequestData.from_request = classmethod(from_request)
    setattr(NewRequestData, _DONE, True)


def wrap_runner(runner: Any, listener: StepListener) -> bool:
    """Tell a listener what the scheduler said before each draft of this one runner.

    A runner that checks whether a step fits into the context of a draft model is told that it
    does: the listener keeps to the context by itself, and the check would give the whole batch
    dummy drafts as soon as one request nears its end.

    Returns:
        Whether the runner's signature was the expected one; a foreign one is left alone.
    """
    propose = type(runner).propose_draft_token_ids
    if parameter_names(propose)[:3] != ["self", "scheduler_output", "sampled_token_ids"]:
        logger.warning("freedraft: propose_draft_token_ids is foreign and left alone")
        return False

    @functools.wraps(propose)
    def propose_draft_token_ids(scheduler_output: Any, *rest: Any, **named: Any) -> Any:
        listener.begin_step(scheduler_output)
        return propose(runner, scheduler_output, *rest, **named)

    runner.propose_draft_token_ids = propose_draft_token_ids
    fits: Callable[..., bool] | None = getattr(type(runner), "_input_fits_in_drafter", None)
    if fits is not None and parameter_names(fits) == ["self", "common_attn_metadata"]:
        runner._input_fits_in_drafter = lambda common_attn_metadata: (
            common_attn_metadata is not None
        )
    return True


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters."""
    return list(inspect.signature(function).parameters)
