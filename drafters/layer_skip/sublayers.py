"""The attentions and MLPs of a transformer, each of which can be left out while drafting.

Nothing of a model's own code is needed: a sub-layer that is left out answers zeros, so that the
residual stream passes by; a layer that is left out whole hands its input on. The switches sit in
the modules' ``forward`` for as long as somebody drafts, and act only in the thread that drafts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_ATTENTION_NAMES = ("self_attn", "attention", "attn", "self_attention")
_MLP_NAMES = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "moe")


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Which sub-layers a draft leaves out.

    Attributes:
        attention: indices of layers whose attention is left out.
        mlp: indices of layers whose MLP is left out.
    """

    attention: frozenset[int]
    mlp: frozenset[int]

    @classmethod
    def of(cls, attention: Sequence[int], mlp: Sequence[int]) -> SkipSet:
        """Return the set of the given layers' sub-layers."""
        return cls(frozenset(attention), frozenset(mlp))

    @classmethod
    def exit_at(cls, exit_layer: int, num_layers: int) -> SkipSet:
        """Return the set that leaves out the last layers: early exit, as LayerSkip trains it.

        Args:
            exit_layer: layers that are run.
            num_layers: layers of the model.

        Raises:
            ValueError: not from 1 to ``num_layers``.
        """
        if not 1 <= exit_layer <= num_layers:
            raise ValueError(f"expected exit_layer in 1..{num_layers}, got {exit_layer}")
        rest = range(exit_layer, num_layers)
        return cls.of(rest, rest)

    @classmethod
    def uniform(cls, share: float, num_layers: int) -> SkipSet:
        """Return whole layers at equal distances, the first and the last never among them.

        Args:
            share: of the layers that is left out, rounded to whole layers.
            num_layers: layers of the model.

        Raises:
            ValueError: a share outside of [0, 1).
        """
        if not 0 <= share < 1:
            raise ValueError(f"expected a share in [0, 1), got {share}")
        inner = max(num_layers - 2, 0)
        count = min(round(share * num_layers), inner)
        layers = [1 + (2 * index + 1) * inner // (2 * count) for index in range(count)]
        return cls.of(layers, layers)

    @property
    def size(self) -> int:
        """Number of sub-layers left out."""
        return len(self.attention) + len(self.mlp)

    def share(self, num_layers: int) -> float:
        """Return the share of all sub-layers that is left out."""
        return self.size / (2 * num_layers)

    def check(self, num_layers: int) -> None:
        """Check that the set fits a model.

        Raises:
            ValueError: a layer that is not there, or no attention left: then no layer would see
                the context.
        """
        for name, layers in (("attention", self.attention), ("mlp", self.mlp)):
            if layers and not 0 <= min(layers) <= max(layers) < num_layers:
                raise ValueError(
                    f"expected {name} layers in 0..{num_layers - 1}, got {sorted(layers)}"
                )
        if len(self.attention) == num_layers:
            raise ValueError(f"expected an attention that is run, got all {num_layers} left out")

    def to_dict(self) -> dict[str, list[int]]:
        """Return the layers as JSON takes them."""
        return {"attention": sorted(self.attention), "mlp": sorted(self.mlp)}


class _Switch:
    """Stands in a module's ``forward``: passes on, or answers in the module's place.

    Attributes:
        users: how many drafters have it in place.
        num_outputs: of the module's tuple; 0 for a tensor, ``None`` while not seen.
    """

    def __init__(self, module: nn.Module, hands_on: bool, num_outputs: int | None) -> None:
        """Take the place of the module's ``forward``.

        Args:
            module: a sub-layer, or a layer.
            hands_on: answer the input instead of zeros.
            num_outputs: what an earlier switch has seen.
        """
        self.users = 0
        self._forward: Callable[..., Any] = module.forward
        self._hands_on = hands_on
        self._local = threading.local()
        self.num_outputs = num_outputs

    def set_skipping(self, skipping: bool) -> None:
        """Answer in the module's place, or pass on again; for the calling thread only."""
        self._local.skipping = skipping

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.num_outputs is None or not getattr(self._local, "skipping", False):
            # The first call shows what an answer looks like.
            output = self._forward(*args, **kwargs)
            self.num_outputs = len(output) if isinstance(output, tuple) else 0
            return output
        hidden: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        answer = hidden if self._hands_on else torch.zeros_like(hidden)
        if self.num_outputs == 0:
            return answer
        return (answer, *[None] * (self.num_outputs - 1))


_installing = threading.Lock()


class SubLayers:
    """A model's decoder layers with their attentions and MLPs.

    Attributes:
        model: the model.
        num_layers: decoder layers.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find them.

        Args:
            model: a causal language model whose decoder layers sit in a ``ModuleList`` and have
                one attention and one MLP each.

        Raises:
            ValueError: no such list.
        """
        layers = _decoder_layers(model)
        if layers is None:
            raise ValueError(
                f"expected a model whose decoder layers sit in a ModuleList and have an attention "
                f"({', '.join(_ATTENTION_NAMES)}) and an MLP ({', '.join(_MLP_NAMES)}), got "
                f"{type(model).__name__}"
            )
        self.model = model
        self.num_layers = len(layers)
        self._layers = layers
        self._attentions = [_child(layer, _ATTENTION_NAMES) for layer in layers]
        self._mlps = [_child(layer, _MLP_NAMES) for layer in layers]
        self._num_outputs: dict[nn.Module, int | None] = {}

    def install(self) -> None:
        """Put the switches in; each call needs a removal.

        The first forward after the first call is a whole one, whatever is to be left out.
        """
        with _installing:
            for module in self._modules():
                switch = module.__dict__.get("forward")
                if not isinstance(switch, _Switch):
                    known = self._num_outputs.get(module)
                    switch = _Switch(module, module in self._layers, known)
                    module.forward = switch
                switch.users += 1

    def remove(self) -> None:
        """Take back one :meth:`install`; the last one leaves the model as it was."""
        with _installing:
            for module in self._modules():
                switch = module.__dict__.get("forward")
                assert isinstance(switch, _Switch)
                self._num_outputs[module] = switch.num_outputs
                switch.users -= 1
                if switch.users == 0:
                    del module.forward

    @contextmanager
    def skipping(self, skip: SkipSet) -> Iterator[None]:
        """Leave the sub-layers of ``skip`` out of this thread's forwards for a ``with`` block."""
        whole = skip.attention & skip.mlp
        left_out = [
            *(self._layers[index] for index in whole),
            *(self._attentions[index] for index in skip.attention - whole),
            *(self._mlps[index] for index in skip.mlp - whole),
        ]
        switches: list[_Switch] = [module.__dict__["forward"] for module in left_out]
        for switch in switches:
            switch.set_skipping(True)
        try:
            yield
        finally:
            for switch in switches:
                switch.set_skipping(False)

    def _modules(self) -> Iterator[nn.Module]:
        yield from self._layers
        yield from self._attentions
        yield from self._mlps


def _decoder_layers(model: nn.Module) -> nn.ModuleList | None:
    """Return the longest list of modules that all have an attention and an MLP."""
    find = getattr(model, "get_decoder", None)  # not the layers of an image's encoder
    decoder = find() if find is not None else model
    lists = [
        module
        for module in decoder.modules()
        if isinstance(module, nn.ModuleList)
        and len(module)
        and all(_has(layer, _ATTENTION_NAMES) and _has(layer, _MLP_NAMES) for layer in module)
    ]
    return max(lists, key=len, default=None)


def _has(layer: nn.Module, names: Sequence[str]) -> bool:
    return any(isinstance(getattr(layer, name, None), nn.Module) for name in names)


def _child(layer: nn.Module, names: Sequence[str]) -> nn.Module:
    child: nn.Module = next(
        module for name in names if isinstance(module := getattr(layer, name, None), nn.Module)
    )
    return child
