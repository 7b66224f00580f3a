"""Logs of answered requests, in the formats that servers and clients write."""

from .lines import MAX_LINE_BYTES
from .reader import FORMATS, LogPosition, LogReader
from .records import LogError, LogRequest, Message

__all__ = [
    "FORMATS",
    "MAX_LINE_BYTES",
    "LogError",
    "LogPosition",
    "LogReader",
    "LogRequest",
    "Message",
]
