"""Runs the checks on the paths and keeps what came of each."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from . import kinds_choice, kinds_drafters, kinds_ending, kinds_requests
from .contract import Fault, Kind, Path, Skipped, require
from .paths import DRAFTERS_PATH, make_path

PATH_KINDS: tuple[Kind, ...] = (
    *kinds_ending.KINDS,
    *kinds_choice.KINDS,
    *kinds_requests.KINDS,
)
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one check on one path.

    Attributes:
        path: the path's name.
        how: ``"run"`` or ``"contract"``.
        kind: the check's name.
        right: the behaviour that it asks for.
        result: ``"passed"``, ``"skipped"`` or ``"failed"``.
        why: of a skip or a failure.
        seconds: how long it took.
    """

    path: str
    how: str
    kind: str
    right: str
    result: str
    why: str
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        return asdict(self)


def kind_names() -> list[str]:
    """Return the names of all checks, in the order in which they run."""
    return [kind.name for kind in PATH_KINDS] + [
        f"{DRAFTERS_PATH}/{kind.name}" for kind in kinds_drafters.KINDS
    ]


def num_checks(path_names: Sequence[str]) -> int:
    """Return how many findings :func:`run` will yield without ``only``."""
    of_drafters = sum(len(kind.drafters) for kind in kinds_drafters.KINDS)
    return sum(of_drafters if name == DRAFTERS_PATH else len(PATH_KINDS) for name in path_names)


def run(
    path_names: Sequence[str], only: Sequence[str] = (), model: str | None = None
) -> Iterator[Finding]:
    """Run the checks, one after the other.

    Args:
        path_names: of :data:`.paths.PATH_NAMES`.
        only: names of checks; all when empty.
        model: for the engines that load one.
    """
    for name in path_names:
        if name == DRAFTERS_PATH:
            yield from _run_drafters(only)
            continue
        kinds = [kind for kind in PATH_KINDS if not only or kind.name in only]
        try:
            path = make_path(name, model)
        except Skipped as reason:
            for kind in kinds:
                yield Finding(name, "", kind.name, kind.right, SKIPPED, str(reason), 0.0)
            continue
        yield from run_path(path, kinds)


def run_path(path: Path, kinds: Sequence[Kind] = PATH_KINDS) -> Iterator[Finding]:
    """Run checks on one path."""
    for kind in kinds:

        def check(kind: Kind = kind) -> None:
            require(path, *kind.needs)
            kind.check(path)

        yield _finding(path.name, path.how, kind.name, kind.right, check)


def _run_drafters(only: Sequence[str]) -> Iterator[Finding]:
    for kind in kinds_drafters.KINDS:
        full_name = f"{DRAFTERS_PATH}/{kind.name}"
        if only and full_name not in only:
            continue
        for drafter in kind.drafters:

            def check(kind: kinds_drafters.DrafterKind = kind, drafter: str = drafter) -> None:
                kind.check(drafter)

            yield _finding(f"{DRAFTERS_PATH}/{drafter}", "run", kind.name, kind.right, check)


def _finding(path: str, how: str, kind: str, right: str, check: Callable[[], None]) -> Finding:
    begin = time.perf_counter()
    result, why = PASSED, ""
    try:
        check()
    except Skipped as reason:
        result, why = SKIPPED, str(reason)
    except Fault as fault:
        result, why = FAILED, str(fault)
    except Exception as error:  # whatever a path raises where it should not is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        result = FAILED
        why = (
            f"{type(error).__name__}: {error} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        )
    return Finding(path, how, kind, right, result, why, time.perf_counter() - begin)
