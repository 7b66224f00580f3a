"""Which requests are replayed together, in which order, and what can run side by side.

A lane is what one drafter sees when warm: the requests of one namespace of one log, in their order
of arrival. Lanes, drafters and budgets do not depend on each other, so they may run in any process;
inside a lane every request depends on those before it. Cold requests depend on nothing. What
belongs to which task depends on the logs alone, never on the number of processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .store import Rows
from .walk import AS_LOGGED

LongArray = npt.NDArray[np.int64]
TASK_TOKENS = 250_000
"""Small lanes share a task up to about that many response tokens."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is replayed.

    Attributes:
        drafters: names.
        budgets: numbers of nodes a step.
        warm: keep what was learnt over a lane's requests, or start each request anew.
        concurrency: requests at a time; None: as the log's times say where every request has both,
            else 1.
        join: all logs are one.
    """

    drafters: tuple[str, ...]
    budgets: tuple[int, ...]
    warm: bool = True
    concurrency: int | None = None
    join: bool = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not self.drafters or not self.budgets:
            raise ValueError(
                f"expected drafters and budgets, got {self.drafters} and {self.budgets}"
            )
        if min(self.budgets) < 0:
            raise ValueError(f"expected budgets >= 0, got {self.budgets}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"expected concurrency >= 1, got {self.concurrency}")


@dataclass(frozen=True, slots=True, eq=False)
class LogGroup:
    """The requests that one row of the report is about.

    Attributes:
        name: of the log, or of all.
        lanes: request numbers in their order, a lane an array.
        concurrency: requests at a time, or :data:`.walk.AS_LOGGED`.
        tokens: response tokens.
    """

    name: str
    lanes: list[LongArray]
    concurrency: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Some lanes for one drafter with one budget.

    Attributes:
        group: number of the group.
        drafter: its name.
        max_nodes: the budget.
        warm: see :class:`ReplayOptions`.
        concurrency: as the group's.
        lanes: request numbers in their order.
        tokens: response tokens of each lane.
        key: a file name that no other task of the same store has.
    """

    group: int
    drafter: str
    max_nodes: int
    warm: bool
    concurrency: int
    lanes: list[LongArray]
    tokens: list[int]
    key: str


def group_requests(rows: Rows, files: Sequence[str], options: ReplayOptions) -> list[LogGroup]:
    """Sort the requests of a store into groups and lanes.

    Args:
        rows: the store's table.
        files: the logs' paths by number.
        options: what is replayed.
    """
    names = [Path(file).name for file in files]
    if options.join:
        return [_group(" + ".join(names), np.arange(rows.size), rows, options)]
    return [
        _group(name, np.flatnonzero(rows["file"] == number), rows, options)
        for number, name in enumerate(names)
    ]


def _group(name: str, numbers: LongArray, rows: Rows, options: ReplayOptions) -> LogGroup:
    arrival, finish = rows["arrival"][numbers], rows["finish"][numbers]
    if np.isfinite(arrival).all():
        order = np.argsort(arrival, kind="stable")
        numbers, arrival, finish = numbers[order], arrival[order], finish[order]
    concurrency = options.concurrency
    if concurrency is None:
        is_timed = bool(np.isfinite(arrival).all() and (finish >= arrival).all())
        concurrency = AS_LOGGED if is_timed else 1
    namespaces = rows["namespace"][numbers]
    by_namespace = np.argsort(namespaces, kind="stable")
    cuts = np.flatnonzero(np.diff(namespaces[by_namespace])) + 1
    lanes = np.split(numbers[by_namespace], cuts)
    tokens = int(rows["response"][numbers].sum(dtype=np.int64))
    return LogGroup(name, lanes, concurrency, tokens)


def list_tasks(rows: Rows, groups: Sequence[LogGroup], options: ReplayOptions) -> list[Task]:
    """Cut the work into tasks, in the order in which they are best begun.

    Args:
        rows: the store's table.
        groups: what :func:`group_requests` returned.
        options: what is replayed.
    """
    tasks: list[Task] = []
    for number, group in enumerate(groups):
        for lanes in _bundles(group.lanes, rows["response"], options.warm):
            tokens = [int(rows["response"][lane].sum(dtype=np.int64)) for lane in lanes]
            digest = hashlib.sha256(np.concatenate(lanes).tobytes())
            for drafter in options.drafters:
                for budget in options.budgets:
                    label = f"{group.name}\n{drafter}\n{budget}\n{options}\n{group.concurrency}"
                    key = hashlib.sha256(digest.digest() + label.encode()).hexdigest()[:24]
                    tasks.append(
                        Task(
                            number,
                            drafter,
                            budget,
                            options.warm,
                            group.concurrency,
                            lanes,
                            tokens,
                            key,
                        )
                    )
    return sorted(tasks, key=lambda task: -sum(task.tokens))


def _bundles(
    lanes: Sequence[LongArray], responses: npt.NDArray[np.int32], warm: bool
) -> Iterator[list[LongArray]]:
    """Yield lanes that share a task; cold lanes are cut where they are long."""
    bundle: list[LongArray] = []
    held = 0
    for lane in lanes if warm else _cut(lanes, responses):
        bundle.append(lane)
        held += int(responses[lane].sum(dtype=np.int64))
        if held >= TASK_TOKENS:
            yield bundle
            bundle, held = [], 0
    if bundle:
        yield bundle


def _cut(lanes: Sequence[LongArray], responses: npt.NDArray[np.int32]) -> Iterator[LongArray]:
    for lane in lanes:
        marks = np.cumsum(responses[lane], dtype=np.int64) // TASK_TOKENS
        yield from np.split(lane, np.flatnonzero(np.diff(marks)) + 1)
