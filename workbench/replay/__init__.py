"""Replay of logs: what drafters would have saved on recorded prompts and responses."""

from .result import ReplayResult, replay_traces
from .tally import NUM_BINS

__all__ = ["NUM_BINS", "ReplayResult", "replay_traces"]
