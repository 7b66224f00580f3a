"""Make a transformers model faster on the CPU, mostly for forwards of a few tokens (a draft).

Linear layers get oneDNN's blocked weights, layers with a common input are multiplied at once, and
grouped attention heads stop repeating keys and values. Nothing of a model's own code is needed:
only its linear layers and its attention function are exchanged, whatever the architecture. The
results are those of the stock layers up to rounding, which is checked on the model itself before
the fast path is kept: what cannot be checked, or differs, stays stock, with a reason in the report.

The third part, a cache that appends in place, is :class:`.contiguous_cache.ContiguousCache`: it is
passed to the model's forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention import PACKED_ATTENTION, register_packed_attention
from .linear import (
    SUPPORTED_DTYPES,
    OneDnnLinear,
    PackedLinear,
    PackedWeight,
    SharedLinear,
    UnsupportedLinearError,
)
from .self_check import (
    LinearSite,
    find_linear_sites,
    logits_difference,
    run_check,
    run_check_and_find_siblings,
)

_MIN_WEIGHT_ELEMENTS = 1 << 15  # a oneDNN call costs about 9 us before it starts to multiply
_STATE = "_freedraft_cpu_fast_path"


@dataclass(frozen=True, slots=True)
class FastPathReport:
    """What :func:`enable_cpu_fast_path` did.

    Attributes:
        enabled: something was exchanged.
        reason: why nothing was; empty when enabled.
        num_packed: linear layers that run on packed weights.
        num_stacked: of these, layers that are multiplied together with others.
        num_unpacked: linear layers that oneDNN runs on plain weights, since something shares them.
        packed_attention: the attention function was exchanged.
        extra_bytes: memory spent beyond that of the stock model.
        difference: root mean square of the difference of the logits from the stock model's in the
            check, over their standard deviation.
        left_alone: what stays stock, by name, with the reason.
    """

    enabled: bool
    reason: str = ""
    num_packed: int = 0
    num_stacked: int = 0
    num_unpacked: int = 0
    packed_attention: bool = False
    extra_bytes: int = 0
    difference: float = 0.0
    left_alone: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        if not self.enabled:
            return [f"CPU fast path: off ({self.reason})"]
        attention = "packed by group" if self.packed_attention else "stock"
        lines = [
            f"CPU fast path: on, {self.num_packed} linear layers packed ({self.num_stacked} of "
            f"them stacked), {self.num_unpacked} on plain weights, attention {attention}",
            f"  {self.extra_bytes / 2**20:.0f} MiB of extra memory, logits differ by "
            f"{self.difference:.1e} of their spread",
        ]
        names_of: dict[str, list[str]] = {}
        for name, reason in self.left_alone.items():
            names_of.setdefault(reason, []).append(name)
        for reason, names in names_of.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"  stock: {names[0]}{more} ({reason})")
        return lines


def enable_cpu_fast_path(
    model: PreTrainedModel, *, allow_extra_memory: bool = False
) -> FastPathReport:
    """Exchange the model's linear layers and attention function for faster ones, in place.

    A packed weight replaces the plain one, so the model needs no more memory than before (while
    packing, one layer's more). ``state_dict`` and ``save_pretrained`` still give plain weights,
    ``parameters`` doesn't list them. To train, move, convert, copy or load into the model is
    refused with an error until :func:`disable_cpu_fast_path`.

    Args:
        model: a causal language model on the CPU in float32 or bfloat16, in evaluation mode.
            Another device or dtype is no error: the model is left alone and the report says why.
        allow_extra_memory: also give a packed copy to weights that cannot be replaced, because the
            token embedding or another module shares them. Without it such layers read the plain
            weight: slower, for a head of 49,152 x 576 in float32 about twice.

    Returns:
        The report. The model is as it was unless ``enabled``.

    Raises:
        ValueError: the model is in training mode.
        RuntimeError: the fast path is on already.
    """
    if hasattr(model, _STATE):
        raise RuntimeError("expected a model without the fast path, got one that has it already")
    if model.training:
        raise ValueError("expected a model in evaluation mode: call model.eval() first")
    if model.device.type != "cpu":
        return FastPathReport(False, f"the model is on {model.device}")
    if model.dtype not in SUPPORTED_DTYPES:
        return FastPathReport(False, f"the model is in {model.dtype}, not float32 or bfloat16")
    sites = find_linear_sites(model)
    try:
        stock, siblings = run_check_and_find_siblings(model, sites)
    except Exception as error:  # a model's own code may raise anything
        return FastPathReport(False, f"the stock model fails in the check: {error!r}")
    exchange = _Exchange(model, sites, allow_extra_memory)
    attempts: list[tuple[list[list[LinearSite]], bool]] = [
        (siblings, True),
        ([], True),
        ([], False),
    ]
    fault = ""
    for groups, with_attention in attempts if siblings else attempts[1:]:
        fault = exchange.attempt(groups, with_attention, stock)
        if not fault:
            break
        exchange.left_alone["stacking" if groups else "attention"] = fault
    report = exchange.report(fault)
    if report.enabled:
        setattr(model, _STATE, exchange)
    return report


def disable_cpu_fast_path(model: PreTrainedModel) -> None:
    """Put the stock layers and attention back, weights bit for bit; harmless where it is off."""
    exchange = getattr(model, _STATE, None)
    if exchange is not None:
        exchange.undo()
        delattr(model, _STATE)


@contextmanager
def cpu_fast_path(
    model: PreTrainedModel, *, allow_extra_memory: bool = False
) -> Iterator[FastPathReport]:
    """Enable the fast path for the length of a ``with`` block; see :func:`enable_cpu_fast_path`."""
    report = enable_cpu_fast_path(model, allow_extra_memory=allow_extra_memory)
    try:
        yield report
    finally:
        disable_cpu_fast_path(model)


def cpu_fast_path_problem() -> str | None:
    """Return why packed layers would not work with this PyTorch here, ``None`` when they do."""
    for dtype in SUPPORTED_DTYPES:
        try:
            PackedWeight([nn.Linear(64, 64).to(dtype)])
        except UnsupportedLinearError as error:
            return f"{str(dtype).removeprefix('torch.')}: {error}"
    return None


class _Exchange:
    """What is put into a model, and the way back.

    Attributes:
        left_alone: what stays stock, by name, with the reason.
    """

    def __init__(
        self, model: PreTrainedModel, sites: Sequence[LinearSite], allow_extra_memory: bool
    ) -> None:
        self.left_alone = {
            site.name: reason for site in sites if (reason := _layer_refusal(site.layer))
        }
        self._model = model
        self._sites = sites
        self._shared = _names_of_shared(model, sites)
        self._allow_extra_memory = allow_extra_memory
        self._replaced: dict[str, tuple[LinearSite, OneDnnLinear]] = {}
        self._packed: list[PackedWeight] = []
        self._attention_before: str | None = None
        self._difference = 0.0

    def attempt(
        self, groups: Sequence[Sequence[LinearSite]], with_attention: bool, stock: Tensor
    ) -> str:
        """Exchange all that can be, and take it back if the logits change.

        Args:
            groups: layers to multiply together.
            with_attention: exchange the attention function too.
            stock: the logits of the stock model in the check.

        Returns:
            What is wrong, empty if nothing.
        """
        while True:
            self._exchange_layers(groups)
            if with_attention:
                self._exchange_attention()
            try:
                logits = run_check(self._model)
            except Exception as error:  # a model's own code may raise anything
                self.undo()
                return f"the changed model fails in the check: {error!r}"
            self._difference, fault = logits_difference(stock, logits, self._model.dtype)
            read_directly = [
                name
                for name, (_, layer) in self._replaced.items()
                if isinstance(layer, PackedLinear) and layer.packed.num_reads
            ]
            if not fault and not read_directly:
                return ""
            self.undo()
            if fault:
                return fault
            # Unpacked at each access, such a layer would be slower than stock.
            self.left_alone |= dict.fromkeys(read_directly, "the model reads its weight directly")

    def undo(self) -> None:
        """Put everything back."""
        for site, _ in self._replaced.values():
            site.replace(site.layer)
        for packed in self._packed:
            packed.restore()
        self._replaced.clear()
        self._packed.clear()
        if self._attention_before is not None:
            self._model.set_attn_implementation(self._attention_before)
            self._attention_before = None

    def report(self, fault: str) -> FastPathReport:
        """Return the report of the last attempt and its ``fault``."""
        layers = [layer for _, layer in self._replaced.values()]
        weights = [
            layer.packed for layer in layers if isinstance(layer, PackedLinear | SharedLinear)
        ]
        packed = [weight for weight in weights if weight is not None]
        attention = self._attention_before is not None
        enabled = bool(layers) or attention
        return FastPathReport(
            enabled=enabled,
            reason="" if enabled else fault or "no layer and no attention to exchange",
            num_packed=len(packed),
            num_stacked=sum(len(weight.originals) > 1 for weight in packed),
            num_unpacked=len(layers) - len(packed),
            packed_attention=attention,
            extra_bytes=sum(weight.nbytes for weight in packed if weight.keep_plain),
            difference=self._difference,
            left_alone=dict(self.left_alone),
        )

    def _exchange_layers(self, groups: Sequence[Sequence[LinearSite]]) -> None:
        done: set[str] = set()
        for group in [*groups, *([site] for site in self._sites)]:
            members = [
                site for site in group if site.name not in self.left_alone and site.name not in done
            ]
            if len(group) > 1 and not self._can_be_stacked(members):
                continue
            for site in members:
                done.add(site.name)
            if members:
                self._exchange_members(members)

    def _can_be_stacked(self, members: Sequence[LinearSite]) -> bool:
        kinds = {
            (site.layer.weight.dtype, site.layer.in_features, site.layer.bias is None)
            for site in members
        }
        alone = {site.name for site in members}.isdisjoint(self._shared)
        return len(members) > 1 and len(kinds) == 1 and alone

    def _exchange_members(self, members: Sequence[LinearSite]) -> None:
        """Exchange one layer, or several that are multiplied together."""
        names = [site.name for site in members]
        if sum(site.layer.weight.numel() for site in members) < _MIN_WEIGHT_ELEMENTS:
            self.left_alone |= dict.fromkeys(names, "too small to gain")
            return
        layers: list[OneDnnLinear]
        try:
            if members[0].name in self._shared:
                layers = [SharedLinear(members[0].layer, with_copy=self._allow_extra_memory)]
            else:
                packed = PackedWeight([site.layer for site in members])
                self._packed.append(packed)
                layers = [PackedLinear(packed, index) for index in range(len(members))]
        except UnsupportedLinearError as error:
            self.left_alone |= dict.fromkeys(names, str(error))
            return
        for site, layer in zip(members, layers, strict=True):
            site.replace(layer)
            self._replaced[site.name] = (site, layer)

    def _exchange_attention(self) -> None:
        reason = _attention_refusal(self._model)
        if reason:
            self.left_alone["attention"] = reason
            return
        self._attention_before = self._model.config._attn_implementation
        register_packed_attention()
        self._model.set_attn_implementation(PACKED_ATTENTION)


def _layer_refusal(layer: nn.Linear) -> str:
    """Return why a layer cannot be exchanged, or nothing."""
    if layer.weight.dtype not in SUPPORTED_DTYPES:
        return f"its weight is in {layer.weight.dtype}"
    if layer.weight.device.type != "cpu":
        return f"its weight is on {layer.weight.device}"
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):
        return "something hooks into it"
    return ""


def _attention_refusal(model: PreTrainedModel) -> str:
    """Return why the attention function cannot be exchanged, or nothing."""
    implementations = {
        module.config._attn_implementation
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
    }
    if implementations != {"sdpa"}:
        return f"attn_implementation is {', '.join(sorted(map(str, implementations)))}, not sdpa"
    if not model._supports_attention_backend or not model._can_set_attn_implementation():
        return "the model does not take other attention functions"
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    if (getattr(config, "num_key_value_heads", None) or heads) == heads:
        return "its heads do not share keys and values"
    return ""


def _names_of_shared(model: nn.Module, sites: Sequence[LinearSite]) -> set[str]:
    """Return the layers whose weight another module uses too: it cannot be released."""
    owners = Counter(
        parameter.data_ptr()
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    return {site.name for site in sites if owners[site.layer.weight.data_ptr()] > 1}
