"""Which token ids of a multimodal model stand for something that is not text."""

from __future__ import annotations

import re

_NAME = re.compile(r"(image|video|audio|vision|speech)\w*_token_(id|index)")


def placeholder_ids_of(hf_config: object) -> frozenset[int]:
    """Return the ids that a Hugging Face configuration names as those of images and the like."""
    return frozenset(
        value
        for name, value in vars(hf_config).items()
        if _NAME.fullmatch(name) and isinstance(value, int)
    )
