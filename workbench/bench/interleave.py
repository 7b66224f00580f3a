"""Ways of decoding in turn, in another order each round, so that a slow minute hits them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from .run import Run

T = TypeVar("T")


class Arm(Protocol):
    """One way of decoding greedily with one model."""

    @property
    def name(self) -> str:
        """What tables call it; unique among the arms of a benchmark."""
        ...

    def run(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Run:
        """Generate once from nothing: no state of an earlier run may help.

        Args:
            prompt_ids: not empty.
            max_new_tokens: at least 1.
        """
        ...

    def close(self) -> None:
        """Release the engine."""
        ...


def rotated(items: Sequence[T], number: int) -> list[T]:
    """Return the items in the order of round ``number``: each begins one further."""
    shift = number % len(items)
    return [*items[shift:], *items[:shift]]


def run_interleaved(
    arms: Sequence[Arm],
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    num_rounds: int,
    num_warmups: int,
    after_run: Callable[[], None],
) -> dict[str, list[Run]]:
    """Run all arms on one prompt.

    Args:
        arms: with names of their own.
        prompt_ids: not empty.
        max_new_tokens: of each run.
        num_rounds: at least 1; the rounds that count.
        num_warmups: rounds before them, which do not.
        after_run: called after each run, the warm-ups' included.

    Returns:
        Of each arm its counted runs in order.

    Raises:
        ValueError: no arm, two arms of one name, or no round.
    """
    names = [arm.name for arm in arms]
    if not arms or len(set(names)) < len(names) or num_rounds < 1 or num_warmups < 0:
        raise ValueError(
            "expected arms of different names, at least one round and no negative number of "
            f"warm-ups, got {names}, {num_rounds} and {num_warmups}"
        )
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(-num_warmups, num_rounds):
        for arm in rotated(arms, number):
            run = arm.run(prompt_ids, max_new_tokens)
            if number >= 0:
                runs[arm.name].append(run)
            after_run()
    return runs
