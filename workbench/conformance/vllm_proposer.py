"""The adapter to vLLM with a drafter that the suite can change: vLLM itself loads this module.

It must not be loaded earlier: vLLM 0.32 does not start on a CPU in a process that has Numba.
"""

from __future__ import annotations

from typing import Any, ClassVar
from unittest.mock import patch

from ...integrations import vllm_adapter
from .drafters import SwitchDrafter


class SeenProposer(vllm_adapter.FreedraftProposer):
    """The adapter, kept so that its counts can be read.

    Attributes:
        seen: all that were made in this process.
        switch: the drafter.
    """

    seen: ClassVar[list[SeenProposer]] = []

    def __init__(self, vllm_config: Any) -> None:
        """Make the adapter and remember it."""
        self.switch = SwitchDrafter()
        with patch.object(vllm_adapter, "create_engine_drafter", lambda *_: self.switch):
            super().__init__(vllm_config)
        self.seen.append(self)
