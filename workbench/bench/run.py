"""What one timed generation tells, and what many of them add up to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Run:
    """One generation.

    Attributes:
        token_ids: new tokens.
        seconds: wall time of the call.
        steps: forwards of the target, the prompt's included.
        drafted: tokens verified.
        accepted: of them.
        first_token_seconds: wall time until the first new token was there (TTFT).
    """

    token_ids: tuple[int, ...]
    seconds: float
    steps: int
    drafted: int
    accepted: int
    first_token_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """New tokens over the wall time, the prompt included."""
        return len(self.token_ids) / self.seconds

    @property
    def seconds_per_token(self) -> float | None:
        """Wall time a token after the first (TPOT); None where there is but one."""
        if len(self.token_ids) < 2:
            return None
        return (self.seconds - self.first_token_seconds) / (len(self.token_ids) - 1)


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One way's runs of all prompts.

    Attributes:
        name: of the way.
        runs: how many there were, warm-ups not counted.
        tokens_per_second_median: of the runs.
        tokens_per_second_p90: the value that nine of ten runs reach or stay below.
        tpot_ms_p50: milliseconds a token after the first, median of the runs; None where no run
            has two tokens, as in the 99th percentile.
        tpot_ms_p99: 99th percentile.
        ttft_ms_p50: milliseconds to the first token, median.
        ttft_ms_p99: 99th percentile.
        tokens_per_step: new tokens over **all** target steps, of all runs.
        acceptance_rate: accepted over drafted; 0 when nothing was drafted.
        speedup: geometric mean over the prompts of (median time of plain / median time).
        speedup_min: the prompt with the least.
        speedup_max: the prompt with the most.
        same_text: prompts on which every run has the tokens of plain's first run.
        prompts: number of prompts.
    """

    name: str
    runs: int
    tokens_per_second_median: float
    tokens_per_second_p90: float
    tpot_ms_p50: float | None
    tpot_ms_p99: float | None
    ttft_ms_p50: float
    ttft_ms_p99: float
    tokens_per_step: float
    acceptance_rate: float
    speedup: float
    speedup_min: float
    speedup_max: float
    same_text: int
    prompts: int

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return asdict(self)


def summarize_arm(
    name: str, per_prompt: Sequence[Sequence[Run]], plain: Sequence[Sequence[Run]]
) -> ArmSummary:
    """Put an arm's runs together.

    Args:
        name: of the arm.
        per_prompt: its runs of each prompt, at least one each.
        plain: the runs of plain decoding of the same prompts.

    Raises:
        ValueError: no prompts, or another number of them than plain has.
    """
    if not per_prompt or len(per_prompt) != len(plain):
        raise ValueError(
            f"expected runs of as many prompts as plain has ({len(plain)}), got {len(per_prompt)}"
        )
    runs = [run for runs in per_prompt for run in runs]
    rates = [run.tokens_per_second for run in runs]
    tpot = [run.seconds_per_token for run in runs]
    paces = [pace * 1e3 for pace in tpot if pace is not None]
    first = [run.first_token_seconds * 1e3 for run in runs]
    speedups = [speedup(own, base) for own, base in zip(per_prompt, plain, strict=True)]
    drafted = sum(run.drafted for run in runs)
    return ArmSummary(
        name=name,
        runs=len(runs),
        tokens_per_second_median=statistics.median(rates),
        tokens_per_second_p90=percentile(rates, 90),
        tpot_ms_p50=percentile(paces, 50) if paces else None,
        tpot_ms_p99=percentile(paces, 99) if paces else None,
        ttft_ms_p50=percentile(first, 50),
        ttft_ms_p99=percentile(first, 99),
        tokens_per_step=sum(len(run.token_ids) for run in runs) / sum(run.steps for run in runs),
        acceptance_rate=sum(run.accepted for run in runs) / drafted if drafted else 0.0,
        speedup=statistics.geometric_mean(speedups),
        speedup_min=min(speedups),
        speedup_max=max(speedups),
        same_text=sum(
            same_tokens(own, base[0]) for own, base in zip(per_prompt, plain, strict=True)
        ),
        prompts=len(per_prompt),
    )


def speedup(runs: Sequence[Run], plain: Sequence[Run]) -> float:
    """Return the median time of ``plain`` over that of ``runs``, both of one prompt."""
    return statistics.median(run.seconds for run in plain) / statistics.median(
        run.seconds for run in runs
    )


def same_tokens(runs: Sequence[Run], expected: Run) -> bool:
    """Return whether every run has the tokens of ``expected``."""
    return all(run.token_ids == expected.token_ids for run in runs)


def num_equal_tokens(runs: Sequence[Run], expected: Run) -> int:
    """Return how many leading tokens all runs share with ``expected``."""
    return min(_num_equal(run.token_ids, expected.token_ids) for run in runs)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by linear interpolation; ``values`` has at least one."""
    return float(np.percentile(values, percent))


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))
