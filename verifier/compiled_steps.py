"""Steps as compiled code: the same few shapes again and again, on a cache that never moves.

Compiled code is made for shapes. A static cache keeps its own, and trees are padded to the widths
of :data:`.device.batched_walk.DEFAULT_BUCKETS`, so after the first steps nothing is compiled anew.
The prompt runs as it is: its length is another one each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import CompileConfig

from .caches.keepers import LayerKeeper
from .caches.slot_layers import StaticKeeper
from .device.batched_walk import DEFAULT_BUCKETS


def compiled_call(
    model: PreTrainedModel,
    compile_config: CompileConfig,
    keepers: Sequence[LayerKeeper],
    cache: Cache,
) -> Callable[..., Any]:
    """Return the model's call as compiled code, the same one for equal configurations.

    Args:
        model: the target.
        compile_config: passed to ``torch.compile``.
        keepers: of each layer of the cache.
        cache: what the steps run on, for the message.

    Raises:
        ValueError: the shape of a layer's keys changes from step to step.
    """
    if not keepers or not all(isinstance(keeper, StaticKeeper) for keeper in keepers):
        raise ValueError(
            f"expected cache_implementation='static' (and windows with room for every token) with "
            f"compile_config, got {type(cache).__name__} with keys whose shape changes at each step"
        )
    call: Callable[..., Any] = model.get_compiled_call(compile_config)
    return call


def columns_that_fit(num_free: int) -> int:
    """Return the widest step for which ``num_free`` slots are enough, at least 1.

    Args:
        num_free: unused slots of the cache.
    """
    return max((width for width in DEFAULT_BUCKETS if width <= num_free), default=1)
