"""The target's runners-up as further keys into the pools of retrieval drafters."""

from .drafter import ProposesAfter, RunnerUpConfig, RunnerUpDrafter

__all__ = ["ProposesAfter", "RunnerUpConfig", "RunnerUpDrafter"]
