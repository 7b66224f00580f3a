"""Generation with transformers models: the decode loop and its two doors."""

from .entry import custom_generate, generate

__all__ = ["custom_generate", "generate"]
