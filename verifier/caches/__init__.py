"""Key-value caches of transformers between steps: checked, stood in for, cut back in place."""

from .keepers import LayerKeeper, keep_accepted, keepers_of
from .kept import KeptColumns

__all__ = ["KeptColumns", "LayerKeeper", "keep_accepted", "keepers_of"]
