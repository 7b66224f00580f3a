"""Reports of replays for a browser."""

from .page import render_report

__all__ = ["render_report"]
