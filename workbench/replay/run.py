"""A whole replay: logs to a store, tasks in processes, results; what is finished is kept."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ...drafters.catalog import create_drafter
from .encoder import Encoder
from .plan import LogGroup, ReplayOptions, Task, group_requests, list_tasks
from .prepare import FileReport, LogOptions, Prepared, prepare
from .result import ReplayResult
from .store import TokenStore, write_json
from .tally import Tally
from .walk import Walk

_MANIFEST_NAME = "manifest.json"
_TASKS_FOLDER = "tasks"
_POLL_SECONDS = 0.2
OnProgress = Callable[[str, int, int], None]
"""Told the stage (``read`` or ``replay``), what is done and of how much: bytes, then tokens."""


class StateError(ValueError):
    """A state folder that belongs to another replay."""


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """What a replay returns.

    Attributes:
        results: by log, drafter and budget, in the order that was asked for.
        files: what was in each log.
        workloads: their names, by the store's numbers.
    """

    results: list[ReplayResult]
    files: list[FileReport]
    workloads: list[str]


@contextmanager
def state_folder(path: Path | None) -> Iterator[Path]:
    """Give a folder for what a replay keeps: ``path``, which stays, or one that is removed."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="freedraft-replay-") as name:
        yield Path(name)


def run_replay(
    paths: Sequence[Path],
    folder: Path,
    encoder: Encoder,
    log_options: LogOptions,
    options: ReplayOptions,
    *,
    processes: int = 1,
    on_progress: OnProgress | None = None,
) -> ReplayRun:
    """Replay logs; what the folder has already is not done again.

    Args:
        paths: the logs.
        folder: of :func:`state_folder`; the same folder, logs and options go on where they were.
        encoder: texts to tokens.
        log_options: how logs are read.
        options: what is replayed.
        processes: at most that many at a time; the counts do not depend on it.
        on_progress: for a progress bar.

    Raises:
        LogError: a log is broken.
        StateError: the folder is another replay's.
        ValueError: an option is out of its range, or a drafter's name is unknown.
        OSError: the folder cannot be written.
    """
    tell = on_progress or _tell_nobody
    _claim(folder, paths, encoder, log_options)
    num_bytes = sum(path.stat().st_size for path in paths if path.exists())
    prepared = prepare(
        paths, folder, encoder, log_options, lambda read: tell("read", read, num_bytes)
    )
    names = [report.file for report in prepared.files]
    store = TokenStore(folder, names, prepared.workloads)
    try:
        groups = group_requests(store.rows, names, options)
        tasks = list_tasks(store.rows, groups, options)
        tallies = _run_tasks(tasks, folder, store, prepared, processes, partial(tell, "replay"))
    finally:
        store.close()
    results = _results(groups, tasks, tallies, options)
    return ReplayRun(results, prepared.files, prepared.workloads)


def _claim(folder: Path, paths: Sequence[Path], encoder: Encoder, log_options: LogOptions) -> None:
    """Write down whose folder this is, or check that it is ours."""
    (folder / _TASKS_FOLDER).mkdir(exist_ok=True)
    ours: dict[str, Any] = {
        "freedraft": version("freedraft"),
        "logs": [[str(path), *_stamp(path)] for path in paths],
        "tokenizer": encoder.name,
        "reading": asdict(log_options),
    }
    path = folder / _MANIFEST_NAME
    if not path.exists():
        if any(entry.name != _TASKS_FOLDER for entry in folder.iterdir()):
            raise StateError(f"expected an empty folder or a replay's state, got {folder}")
        write_json(path, ours)
        return
    theirs = json.loads(path.read_text(encoding="utf-8"))
    for key, value in ours.items():
        if theirs.get(key) != value:
            raise StateError(
                f"expected {folder} to be of the same replay, got another's: {key} was "
                f"{theirs.get(key)} and is {value}"
            )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, -1  # told when it is read
    return status.st_size, status.st_mtime_ns


def _run_tasks(
    tasks: Sequence[Task],
    folder: Path,
    store: TokenStore,
    prepared: Prepared,
    processes: int,
    tell: Callable[[int, int], None],
) -> dict[str, Tally]:
    """Return the sums of each task by its key."""
    total = sum(sum(task.tokens) for task in tasks)
    tallies: dict[str, Tally] = {}
    open_tasks: list[Task] = []
    done = 0
    for task in tasks:
        tally = _load(folder, task)
        if tally is None:
            open_tasks.append(task)
        else:
            tallies[task.key] = tally
            done += sum(task.tokens)
    tell(done, total)
    if min(processes, len(open_tasks)) > 1:
        return tallies | _in_processes(
            open_tasks, folder, prepared, processes, lambda walked: tell(done + walked, total)
        )
    walked = done

    def advance(tokens: int) -> None:
        nonlocal walked
        walked += tokens
        tell(walked, total)

    for task in open_tasks:
        tallies[task.key] = _run_task(task, folder, store, advance)
    return tallies


def _in_processes(
    tasks: Sequence[Task],
    folder: Path,
    prepared: Prepared,
    processes: int,
    tell: Callable[[int], None],
) -> dict[str, Tally]:
    context = get_context("spawn")  # a fork of a process with threads may hang
    walked = context.Value("q", 0)
    names = [report.file for report in prepared.files]
    tallies: dict[str, Tally] = {}
    with ProcessPoolExecutor(
        min(processes, len(tasks)),
        context,
        _begin_worker,
        (folder, names, prepared.workloads, walked, os.getpid()),
    ) as pool:
        waiting: dict[Future[Tally], Task] = {
            pool.submit(_run_in_worker, task): task for task in tasks
        }
        try:
            while waiting:
                finished, _ = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    tallies[waiting.pop(future).key] = future.result()
                tell(walked.value)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tallies


_worker: tuple[Path, TokenStore, Any, int] | None = None


def _begin_worker(
    folder: Path, files: list[str], workloads: list[str], walked: Any, parent: int
) -> None:
    global _worker
    _worker = folder, TokenStore(folder, files, workloads), walked, parent


def _run_in_worker(task: Task) -> Tally:
    assert _worker is not None
    folder, store, walked, parent = _worker

    def advance(tokens: int) -> None:
        if os.getppid() != parent:  # killed: nobody waits for this any more
            os._exit(1)
        with walked.get_lock():
            walked.value += tokens

    return _run_task(task, folder, store, advance)


def _run_task(task: Task, folder: Path, store: TokenStore, advance: Callable[[int], None]) -> Tally:
    tally = Tally(task.max_nodes)
    for lane, tokens in zip(task.lanes, task.tokens, strict=True):
        walk = Walk(
            partial(create_drafter, task.drafter),
            store,
            tally,
            warm=task.warm,
            concurrency=task.concurrency,
            on_tokens=advance,
        )
        walk.run(lane.tolist(), tokens)
    write_json(_path(folder, task), tally.to_dict())
    return tally


def _path(folder: Path, task: Task) -> Path:
    return folder / _TASKS_FOLDER / f"{task.key}.json"


def _load(folder: Path, task: Task) -> Tally | None:
    path = _path(folder, task)
    if not path.exists():
        return None
    return Tally.from_dict(json.loads(path.read_text(encoding="utf-8")))


def _results(
    groups: Sequence[LogGroup],
    tasks: Sequence[Task],
    tallies: dict[str, Tally],
    options: ReplayOptions,
) -> list[ReplayResult]:
    results: list[ReplayResult] = []
    for number, group in enumerate(groups):
        for drafter in options.drafters:
            for budget in options.budgets:
                sums = Tally(budget)
                for task in tasks:
                    if (task.group, task.drafter, task.max_nodes) == (number, drafter, budget):
                        sums.merge(tallies[task.key])
                results.append(
                    ReplayResult.from_tally(
                        sums,
                        file=group.name,
                        drafter=drafter,
                        warm=options.warm,
                        concurrency=group.concurrency,
                    )
                )
    return results


def _tell_nobody(stage: str, done: int, total: int) -> None:
    """Report nothing."""
