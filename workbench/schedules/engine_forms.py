"""One schedule in the words of each engine's own settings.

A schedule maps a number of running requests to the drafted tokens of each from there on. Engines
write the same in other ways, and two releases of one of them read the same numbers differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ...integrations.budget.config import check_schedule

Schedule = Mapping[int, int]

_PROPOSER = "freedraft.integrations.vllm_adapter.FreedraftProposer"


def engine_form(engine: str, schedule: Schedule, max_requests: int) -> str:
    """Return the settings to paste, with a line on what they mean where that is needed.

    Args:
        engine: one of :data:`ENGINES`.
        schedule: drafted tokens by the number of requests from which on they hold.
        max_requests: most running requests of the server, where an engine wants an end.

    Raises:
        ValueError: an unknown engine, a schedule that does not begin at 1, or a server with fewer
            requests than the schedule names.
    """
    check_schedule(schedule)
    if engine not in _FORMS:
        raise ValueError(f"expected an engine among {', '.join(ENGINES)}, got {engine!r}")
    if max_requests < max(schedule):
        raise ValueError(
            f"expected max_requests of at least {max(schedule)} for this schedule, "
            f"got {max_requests}"
        )
    return _FORMS[engine](dict(sorted(schedule.items())), max_requests)


def ranges(schedule: Schedule, max_requests: int) -> list[tuple[int, int, int]]:
    """Return (first load, last load, drafted tokens), both ends included, up to the last load."""
    starts = sorted(schedule)
    stops = [*(start - 1 for start in starts[1:]), max_requests]
    return [(start, stop, schedule[start]) for start, stop in zip(starts, stops, strict=True)]


def _vllm(schedule: Schedule, max_requests: int) -> str:
    config = {
        "model": _PROPOSER,
        "num_speculative_tokens": max(*schedule.values(), 1),
        "num_speculative_tokens_per_batch_size": ranges(schedule, max_requests),
    }
    return f"--speculative-config '{json.dumps(config)}'"


def _tensorrt_llm(schedule: Schedule, max_requests: int) -> str:
    older = dict(schedule)
    newer = {stop: nodes for _, stop, nodes in ranges(schedule, max_requests)}
    return "\n".join(
        [
            "# Releases in which a key holds from that batch size on:",
            f"draft_len_schedule={older}",
            "# Releases in which a key holds up to that batch size:",
            f"draft_len_schedule={newer}",
            f"max_draft_len={max(*schedule.values(), 1)}",
        ]
    )


def _sglang(schedule: Schedule, max_requests: int) -> str:
    del max_requests
    steps = {str(load): {"candidate_steps": [nodes]} for load, nodes in schedule.items()}
    return "\n".join(
        [
            "# SGLang reads a schedule for its methods with a draft head only (EAGLE, EAGLE3), as",
            "# the file of --speculative-adaptive-config:",
            json.dumps(steps),
            "# The freedraft method verifies one number of tokens in each step, the last committed",
            "# one included; this is the schedule's number for a single request:",
            f"--speculative-num-draft-tokens {schedule[1] + 1}"
            if schedule[1]
            else "# (none: leave --speculative-algorithm out)",
        ]
    )


def _llama_cpp(schedule: Schedule, max_requests: int) -> str:
    del max_requests  # llama-cpp-python decodes one request at a time
    if schedule[1] == 0:
        return "# Attach no draft model: nothing pays with one request."
    return f"LlamaDraftConfig(max_length={schedule[1]})"


def _freedraft(schedule: Schedule, max_requests: int) -> str:
    del max_requests
    return json.dumps({"schedule": {str(load): nodes for load, nodes in schedule.items()}})


_FORMS: dict[str, Callable[[Schedule, int], str]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
    "llama-cpp": _llama_cpp,
    "freedraft": _freedraft,
}
ENGINES = tuple(_FORMS)
