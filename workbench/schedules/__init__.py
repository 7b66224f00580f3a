"""From a replay and step times to the number of drafted tokens by load, in each engine's words."""

from .choose import LoadChoice, choose_schedule, read_replay, schedule_of
from .engine_forms import ENGINES, engine_form

__all__ = [
    "ENGINES",
    "LoadChoice",
    "choose_schedule",
    "engine_form",
    "read_replay",
    "schedule_of",
]
