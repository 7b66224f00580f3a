"""Drafters by name, as the command line and ``generate(drafter="...")`` know them."""

from __future__ import annotations

from .base import Drafter

DRAFTER_NAMES = (
    "ngram",
    "suffix",
    "edit",
    "phrase",
    "recycling",
    "lookahead",
    "stochastic_ngram",
    "blend",
)
BLEND_SOURCES = ("ngram", "suffix", "edit", "recycling")
"""What the blend of that name is made of."""
CORPUS_PREFIX = "corpus:"
"""With the path of a pool file behind it: the drafter that retrieves from that pool."""
DEFAULT_DRAFTER = "blend"
LAYER_SKIP = "layer_skip"
"""Names the drafter that drafts with the target: known to what decodes, not to what has none."""
NO_DRAFTER = "none"
"""Stands for plain decoding where a drafter's name is expected."""


def is_drafter_name(name: str) -> bool:
    """Return whether :func:`create_drafter` knows the name; a pool's file is not looked at."""
    return name in DRAFTER_NAMES or name.startswith(CORPUS_PREFIX)


def create_drafter(name: str, fingerprint: str | None = None) -> Drafter:
    """Return a fresh drafter with its default configuration.

    Args:
        name: one of :data:`DRAFTER_NAMES`, or ``corpus:`` and the path of a pool file.
        fingerprint: of the tokenizer in use, so that a pool of another one is refused; ``None``
            takes any pool.

    Raises:
        ValueError: no drafter has that name, or a pool file is not what it should be.
        OSError: a pool file cannot be read.
    """
    # Imported here, so that a program pays only for the kernels that it uses.
    if name.startswith(CORPUS_PREFIX):
        from .corpus import CorpusConfig, CorpusDrafter

        return CorpusDrafter(CorpusConfig(name.removeprefix(CORPUS_PREFIX), fingerprint))
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
    if name == "recycling":
        from .recycling import RecyclingDrafter

        return RecyclingDrafter()
    if name == "lookahead":
        from .lookahead import LookaheadDrafter

        return LookaheadDrafter()
    if name == "stochastic_ngram":
        from .stochastic_ngram import StochasticNgramDrafter

        return StochasticNgramDrafter()
    if name == "blend":
        from .blend import BlendDrafter

        return BlendDrafter([create_drafter(part) for part in BLEND_SOURCES])
    known = ", ".join((*DRAFTER_NAMES, f"{CORPUS_PREFIX}FILE.pool"))
    raise ValueError(f"expected a drafter among {known}, got {name!r}")
