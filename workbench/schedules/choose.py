"""The best number of drafted tokens at each load, none included, from a replay's results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...integrations.budget import Calibration
from ..replay.prediction import CONCURRENCIES, predict
from ..replay.result import ReplayResult
from ..replay.tally import Tally

_LEAST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """What is best from one number of running requests on.

    Attributes:
        num_requests: requests in each step.
        nodes: drafted tokens of each request; 0 where none pay.
        speedup: predicted over decoding without drafts, 1 for none.
        speedups: the same of each number that was replayed.
    """

    num_requests: int
    nodes: int
    speedup: float
    speedups: Mapping[int, float]


def read_replay(path: Path, drafter: str | None = None) -> list[ReplayResult]:
    """Read the results of one drafter on all logs from what ``freedraft replay --json`` wrote.

    Args:
        path: the JSON file.
        drafter: by name; may be absent where the file has one drafter only.

    Raises:
        ValueError: the file is of another kind, or has none or several such drafters; the message
            says which it has.
        OSError: it cannot be read.
    """
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["results"]
        names = sorted({row["drafter"] for row in rows})
        if drafter is None and len(names) == 1:
            drafter = names[0]
        if drafter not in names:
            raise ValueError(
                f"{path}: expected the drafter among {', '.join(names)}, got {drafter!r}"
            )
        return [_result(row) for row in rows if row["drafter"] == drafter and row["max_nodes"]]
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: expected the JSON of 'freedraft replay --json', got another: {error!r}"
        ) from error


def choose_schedule(
    results: Sequence[ReplayResult],
    calibration: Calibration,
    loads: Sequence[int] = CONCURRENCIES,
) -> list[LoadChoice]:
    """Return the best number of drafted tokens at each load.

    Several logs count by their tokens: the speed-up of all is plain's time over the drafts' time.
    A gain of less than one per cent counts as none.

    Args:
        results: of one drafter with one or several node budgets.
        calibration: step times of the engine and machine that are to be set.
        loads: numbers of running requests, increasing.

    Raises:
        ValueError: no result with drafts.
    """
    if not results:
        raise ValueError("expected results of a replay with --max-nodes above 0, got none")
    budgets = sorted({result.max_nodes for result in results})
    by_budget = {
        nodes: _speedups([r for r in results if r.max_nodes == nodes], calibration, loads)
        for nodes in budgets
    }
    choices = []
    for index, load in enumerate(loads):
        speedups = {nodes: by_budget[nodes][index] for nodes in budgets}
        best = max(budgets, key=lambda nodes: (speedups[nodes], -nodes))
        if speedups[best] < 1 + _LEAST_GAIN:
            choices.append(LoadChoice(load, 0, 1.0, speedups))
        else:
            choices.append(LoadChoice(load, best, speedups[best], speedups))
    return choices


def schedule_of(choices: Sequence[LoadChoice]) -> dict[int, int]:
    """Return drafted tokens by the number of requests from which on they hold, from 1 on."""
    schedule: dict[int, int] = {}
    last: int | None = None
    for choice in choices:
        if choice.nodes != last:
            schedule[choice.num_requests if schedule else 1] = choice.nodes
            last = choice.nodes
    return schedule


def _speedups(
    results: Sequence[ReplayResult], calibration: Calibration, loads: Sequence[int]
) -> list[float]:
    plain = [0.0] * len(loads)
    drafted = [0.0] * len(loads)
    for result in results:
        for index, prediction in enumerate(predict(result, calibration, loads)):
            seconds = result.tokens * prediction.plain_seconds
            plain[index] += seconds
            drafted[index] += seconds / prediction.speedup
    return [one / other for one, other in zip(plain, drafted, strict=True)]


def _result(row: Mapping[str, Any]) -> ReplayResult:
    names = {field.name for field in fields(ReplayResult)} - {"tally"}
    tally = Tally(int(row["max_nodes"]), steps_by_drafted=list(row["steps_by_drafted"]))
    return ReplayResult(**{name: row[name] for name in names if name in row}, tally=tally)
