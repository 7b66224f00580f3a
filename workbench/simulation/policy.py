"""How many drafted tokens a simulated step verifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...drafters.tree import FloatArray
from ...integrations.budget import pooled_choice
from ...integrations.budget.config import check_schedule
from .step_times import StepLoad, StepTimes


class Policy(Protocol):
    """Chooses the nodes of a step."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    def asks(self, num_decoding: int) -> bool:
        """Return whether drafts are asked for with so many requests."""
        ...

    def nodes(self, probs: Sequence[FloatArray], load: StepLoad, times: StepTimes) -> list[int]:
        """Return how many of each decoding request's nodes to verify.

        Args:
            probs: of each decoding request the path probabilities of what is proposed, in falling
                order.
            load: the step without drafts.
            times: what steps take.
        """
        ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """A fixed number of nodes a request by the number of decoding requests.

    Attributes:
        nodes_by_load: most nodes of a request by the number of requests from which on it holds.
        label: what tables call it; made from the numbers where empty.
    """

    nodes_by_load: Mapping[int, int]
    label: str = ""

    def __post_init__(self) -> None:
        """Check the schedule.

        Raises:
            ValueError: it does not begin at one request, or a number is negative.
        """
        check_schedule(self.nodes_by_load)

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.label:
            return self.label
        pairs = sorted(self.nodes_by_load.items())
        if len(pairs) == 1:
            return f"K={pairs[0][1]}" if pairs[0][1] else "off"
        return " ".join(f"{load}:{nodes}" for load, nodes in pairs)

    def asks(self, num_decoding: int) -> bool:
        """Return whether drafts are asked for with so many requests."""
        return self._most(num_decoding) > 0

    def nodes(self, probs: Sequence[FloatArray], load: StepLoad, times: StepTimes) -> list[int]:
        """Return the smaller of what is proposed and what the load allows."""
        most = self._most(load.num_decoding)
        return [min(row.size, most) for row in probs]

    def _most(self, num_decoding: int) -> int:
        reached = [start for start in self.nodes_by_load if start <= max(num_decoding, 1)]
        return self.nodes_by_load[max(reached)]


@dataclass(frozen=True, slots=True)
class PooledPolicy:
    """All requests' nodes weighed together against the step's time, as the node budget does.

    Attributes:
        label: what tables call it.
    """

    label: str = "auto"

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.label

    def asks(self, num_decoding: int) -> bool:
        """Return True: what pays is known only when it is proposed."""
        return True

    def nodes(self, probs: Sequence[FloatArray], load: StepLoad, times: StepTimes) -> list[int]:
        """Return the numbers that maximise expected tokens over time."""
        sizes = [row.size for row in probs]
        total = sum(sizes)
        if total == 0:
            return sizes
        costs = times.seconds_by_nodes(load, total)
        return [int(count) for count in pooled_choice(np.concatenate(list(probs)), sizes, costs)]


def parse_schedule(text: str) -> Schedule | PooledPolicy:
    """Return the policy that a text stands for.

    Args:
        text: ``off``, ``auto``, a number of nodes, or pairs of load and nodes such as
            ``1:16,8:4,32:0``.

    Raises:
        ValueError: none of them.
    """
    if text == "auto":
        return PooledPolicy()
    if text == "off":
        return Schedule({1: 0})
    pairs = [part.split(":") for part in (text if ":" in text else f"1:{text}").split(",")]
    if not all(len(pair) == 2 and all(n.strip().isdecimal() for n in pair) for pair in pairs):
        raise ValueError(
            f"expected off, auto, a number of nodes or pairs as in 1:16,8:4,32:0, got {text!r}"
        )
    return Schedule({int(load): int(nodes) for load, nodes in pairs})
