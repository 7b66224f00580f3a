"""Settings that an engine has no use for are refused: nothing is accepted and ignored."""

from __future__ import annotations

from collections.abc import Mapping

from .engine_config import EngineConfig


def refuse_ignored(config: EngineConfig, engine: str, reasons: Mapping[str, str]) -> None:
    """Check that no setting is given that the engine's adapter would ignore.

    Args:
        config: the settings.
        engine: its name.
        reasons: by setting, why it has no effect there.

    Raises:
        ValueError: such a setting is given.
    """
    for name, reason in reasons.items():
        if name in config.to_mapping():
            raise ValueError(f"expected settings that {engine} can obey, got {name}, but {reason}")
