"""Drafters by name, as the command line and ``generate(drafter="...")`` know them."""

from __future__ import annotations

from .base import Drafter

DRAFTER_NAMES = ("ngram", "suffix", "edit", "phrase", "blend")
BLEND_SOURCES = ("ngram", "suffix", "edit")
"""What the blend of that name is made of."""
DEFAULT_DRAFTER = "blend"
NO_DRAFTER = "none"
"""Stands for plain decoding where a drafter's name is expected."""


def create_drafter(name: str) -> Drafter:
    """Return a fresh drafter with its default configuration.

    Raises:
        ValueError: no drafter has that name.
    """
    # Imported here, so that a program pays only for the kernels that it uses.
    if name == "ngram":
        from .ngram import NgramDrafter

        return NgramDrafter()
    if name == "suffix":
        from .suffix import SuffixDrafter

        return SuffixDrafter()
    if name == "edit":
        from .edit import EditDrafter

        return EditDrafter()
    if name == "phrase":
        from .phrase import PhraseDrafter

        return PhraseDrafter()
    if name == "blend":
        from .blend import BlendDrafter

        return BlendDrafter([create_drafter(part) for part in BLEND_SOURCES])
    raise ValueError(f"expected a drafter among {', '.join(DRAFTER_NAMES)}, got {name!r}")
