"""Linear layers on oneDNN's blocked weight layout.

A plain ``F.linear`` of a few input rows (a draft to verify) costs about twice as much as reading
the weight takes. oneDNN multiplies a weight that was reordered once into its own blocked layout at
the speed of memory. The two operators are PyTorch's private ones, made for its compiler, so every
layer made here is checked against the plain one first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16)

_ROWS_HINT = (
    16  # rows that the layout is chosen for; one chosen for a single row is slower for more
)
_CHECKED_ROWS = (1, 5)
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest output

_WAY_OUT = "disable_cpu_fast_path(model) first"

_Operator = Callable[..., Tensor]


class UnsupportedLinearError(RuntimeError):
    """Linear layers cannot run on oneDNN here; the message says why."""


class PackedWeight:
    """The weights of one or more linear layers, stacked, in the blocked layout.

    Layers that are given the same input one after the other (query, key and value; gate and up) are
    multiplied at once when the first is called; the others take their part of the result. Unless
    the plain weights are kept, the original parameters stay in being but hold no data until
    :meth:`restore`.

    Attributes:
        originals: the plain layers, in the order of the stacked outputs.
        keep_plain: the plain weights were not released.
        num_reads: how often a plain copy of a weight was asked for through ``PackedLinear.weight``.
    """

    def __init__(self, originals: Sequence[nn.Linear], *, keep_plain: bool = False) -> None:
        """Pack, check, and release the plain weights.

        Args:
            originals: layers of one input width and dtype, all with or all without a bias.
            keep_plain: don't release them; the packed copy is extra memory then.

        Raises:
            UnsupportedLinearError: the operators are missing or refuse, or the result differs.
        """
        self.originals = tuple(originals)
        self.dtype = originals[0].weight.dtype
        self.num_reads = 0
        self.keep_plain = keep_plain
        self.stops: list[int] = []
        for layer in originals:
            self.stops.append(layer.out_features + (self.stops[-1] if self.stops else 0))
        self._ready: tuple[Tensor, Tensor] | None = None
        with torch.inference_mode(False), torch.no_grad():
            weights = [layer.weight.detach() for layer in originals]
            biases = [layer.bias.detach() for layer in originals if layer.bias is not None]
            stacked = weights[0] if len(weights) == 1 else torch.cat(weights)
            self._bias = torch.cat(biases) if biases else None
            reorder, self._multiply = _operators()
            try:
                self._packed = reorder(stacked, _ROWS_HINT)
            except RuntimeError as error:
                raise UnsupportedLinearError(f"oneDNN refuses: {error}") from error
            if not torch.equal(self._packed.to_dense(), stacked):
                raise UnsupportedLinearError("the weight does not come back from the layout")
            _check(self._stacked, originals)
            if not keep_plain:
                for layer in originals:
                    layer.weight.data = stacked.new_empty(0)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight, without what the layout pads."""
        return self.stops[-1] * self.originals[0].in_features * self.dtype.itemsize

    def multiply(self, index: int, x: Tensor) -> Tensor:
        """Return the output of layer ``index`` for ``x``, ``(..., in_features)``."""
        if x.dtype is not self.dtype:
            raise TypeError(f"expected an input of {self.dtype}, got {x.dtype}")
        if len(self.stops) == 1:
            return self._stacked(x)
        ready = self._ready
        # The first layer always multiplies anew: a result never outlives one round of the layers.
        is_ready = index > 0 and ready is not None and ready[0] is x
        stacked = ready[1] if is_ready and ready else self._stacked(x)
        self._ready = None if index == len(self.stops) - 1 else (x, stacked)
        start = self.stops[index - 1] if index else 0
        return stacked.narrow(-1, start, self.stops[index] - start)

    def plain(self, index: int) -> Tensor:
        """Return a copy of the weight of layer ``index``, ``(out_features, in_features)``."""
        start = self.stops[index - 1] if index else 0
        return self._packed.to_dense()[start : self.stops[index]].clone()

    def restore(self) -> None:
        """Give the original parameters their data back, bit for bit."""
        if self.keep_plain:
            return
        with torch.inference_mode(False), torch.no_grad():
            for index, layer in enumerate(self.originals):
                layer.weight.data = self.plain(index)

    def _stacked(self, x: Tensor) -> Tensor:
        """Return the outputs of all layers for ``x``, ``(..., stops[-1])``."""
        return self._multiply(x, self._packed, self._bias, "none", [], "")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"expected a plain model to copy or pickle: {_WAY_OUT}")


class OneDnnLinear(nn.Module):
    """What takes the place of an ``nn.Linear``: for inference, on this device, in this dtype."""

    def __init__(self, original: nn.Linear) -> None:
        super().__init__()
        self.in_features = original.in_features
        self.out_features = original.out_features
        self.bias = original.bias
        self.dtype = original.weight.dtype
        self.training = False

    def train(self, mode: bool = True) -> Self:
        """Refuse training mode.

        Raises:
            RuntimeError: ``mode`` is true.
        """
        if mode:
            raise RuntimeError(f"expected inference, got train(): {_WAY_OUT}")
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Refuse to move or convert: a packed weight would stay behind."""
        moved = fn(torch.empty(0, dtype=self.dtype))
        if moved.dtype != self.dtype or moved.device.type != "cpu":
            raise RuntimeError(
                f"expected to stay {self.dtype} on the cpu, got {moved.dtype} on {moved.device}: "
                f"{_WAY_OUT}"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse to load: a packed weight would keep the old values."""
        raise RuntimeError(f"expected a plain layer to load {prefix[:-1]!r} into: {_WAY_OUT}")


class PackedLinear(OneDnnLinear):
    """A layer whose weight is in a :class:`PackedWeight` only.

    ``weight`` and ``state_dict`` convert back, bit for bit, each time they are asked; a change to
    such a copy changes nothing here. ``parameters`` leaves the weight out.
    """

    def __init__(self, packed: PackedWeight, index: int) -> None:
        super().__init__(packed.originals[index])
        self.packed = packed
        self._index = index

    @property
    def weight(self) -> Tensor:
        """A plain copy, ``(out_features, in_features)``, made at each access."""
        self.packed.num_reads += 1
        return self.packed.plain(self._index)

    def forward(self, input: Tensor) -> Tensor:
        """Return ``(..., out_features)`` for ``(..., in_features)``.

        Raises:
            TypeError: the input has another dtype than the weight.
        """
        return self.packed.multiply(self._index, input)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.packed.plain(self._index)


class SharedLinear(OneDnnLinear):
    """A layer whose plain weight something else needs too, so that the parameter stays.

    Typically the head of a model that shares its matrix with the token embedding. With a packed
    copy, the copy multiplies; without, oneDNN reads the plain weight where that is the faster way:
    float32 and more than one row.
    """

    def __init__(self, original: nn.Linear, *, with_copy: bool) -> None:
        """Wrap and check.

        Args:
            original: the plain layer; its parameters are used, not copied.
            with_copy: spend the memory of a packed copy.

        Raises:
            UnsupportedLinearError: the operators are missing or refuse, or the result differs.
        """
        super().__init__(original)
        self.weight = original.weight
        self.packed = PackedWeight([original], keep_plain=True) if with_copy else None
        self._multiply = _operators()[1]
        if not with_copy:
            with torch.inference_mode():
                _check(self.forward, [original])

    def forward(self, input: Tensor) -> Tensor:
        """Return ``(..., out_features)`` for ``(..., in_features)``."""
        if self.packed is not None:
            return self.packed.multiply(0, input)
        if input.dtype is self.dtype is torch.float32 and input.numel() > self.in_features:
            return self._multiply(input, self.weight, self.bias, "none", [], "")
        return linear(input, self.weight, self.bias)


def _operators() -> tuple[_Operator, _Operator]:
    """Return the private operators: to reorder a weight, and to multiply by a reordered one.

    Raises:
        UnsupportedLinearError: this PyTorch does not have them.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise UnsupportedLinearError("this PyTorch is built without oneDNN")
    try:
        reorder = torch.ops.mkldnn._reorder_linear_weight.default
        multiply = torch.ops.mkldnn._linear_pointwise.default
    except AttributeError as error:
        raise UnsupportedLinearError(f"this PyTorch lacks an operator: {error}") from error
    return cast(_Operator, reorder), cast(_Operator, multiply)


def _check(candidate: Callable[[Tensor], Tensor], originals: Sequence[nn.Linear]) -> None:
    """Compare ``candidate`` with the plain layers, outputs stacked, on a few random rows.

    Raises:
        UnsupportedLinearError: it refuses, or differs by more than rounding.
    """
    dtype = originals[0].weight.dtype
    generator = torch.Generator().manual_seed(0)
    for rows in _CHECKED_ROWS:
        x = torch.randn(rows, originals[0].in_features, generator=generator).to(dtype)
        expected = torch.cat([linear(x, layer.weight, layer.bias) for layer in originals], dim=-1)
        try:
            got = candidate(x)
        except RuntimeError as error:
            raise UnsupportedLinearError(f"oneDNN refuses: {error}") from error
        limit = _TOLERANCE[dtype] * expected.abs().max().item()
        difference = (got - expected).abs().max().item()
        if not difference <= limit:  # also where either is not a number
            raise UnsupportedLinearError(
                f"differs from the plain layer: expected at most {limit:.2g}, got {difference:.2g}"
            )
