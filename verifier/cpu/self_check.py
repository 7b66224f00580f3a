"""What the CPU fast path must know of a model: linear layers, who shares an input, the logits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

_LENGTHS = (9, 4, 1)  # a prompt, a draft, plain decoding
_ROWS = 2
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # of the spread of the logits


@dataclass(frozen=True, slots=True)
class LinearSite:
    """A plain linear layer of a model.

    Attributes:
        name: its full name, the first one if it has several.
        layer: the layer.
        places: the modules that hold it, each with the name it has there.
    """

    name: str
    layer: nn.Linear
    places: tuple[tuple[nn.Module, str], ...]

    def replace(self, layer: nn.Module) -> None:
        """Put ``layer`` wherever the plain one stands."""
        for parent, child_name in self.places:
            setattr(parent, child_name, layer)


def find_linear_sites(model: nn.Module) -> list[LinearSite]:
    """Return the layers that are exactly ``nn.Linear``, not a subclass, in the model's order."""
    found: dict[nn.Module, tuple[str, nn.Linear, list[tuple[nn.Module, str]]]] = {}
    for prefix, parent in model.named_modules():
        for child_name, child in parent.named_children():
            if type(child) is nn.Linear:
                name = f"{prefix}.{child_name}" if prefix else child_name
                found.setdefault(child, (name, child, []))[2].append((parent, child_name))
    return [LinearSite(name, layer, tuple(places)) for name, layer, places in found.values()]


def run_check(model: PreTrainedModel) -> Tensor:
    """Return the logits of a prompt, a draft and one more token, ``(tokens, vocab_size)`` float32.

    Two rows of random tokens, one forward each, through the cache that the model itself makes.
    """
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    logits, cache = [], None
    with torch.inference_mode():
        for length in _LENGTHS:
            input_ids = torch.randint(vocab_size, (_ROWS, length), generator=generator)
            output = model(input_ids=input_ids, cache=cache, use_cache=True)
            cache = output.cache
            logits.append(output.logits.float().flatten(0, 1))
    return torch.cat(logits)


def run_check_and_find_siblings(
    model: PreTrainedModel, sites: Iterable[LinearSite]
) -> tuple[Tensor, list[list[LinearSite]]]:
    """Run the check, and see which linear layers can be multiplied together.

    Returns:
        The logits of :func:`run_check`, and groups of two or more layers of one parent which were
        given the very same tensor, one after the other, in each forward.
    """
    calls: list[tuple[LinearSite, Tensor]] = []

    def watch(site: LinearSite) -> RemovableHandle:
        return site.layer.register_forward_pre_hook(
            lambda _layer, args: calls.extend((site, x) for x in args[:1])
        )

    hooks = [watch(site) for site in sites if len(site.places) == 1]
    try:
        logits = run_check(model)
    finally:
        for hook in hooks:
            hook.remove()
    rounds: list[list[LinearSite]] = []
    previous: tuple[LinearSite, Tensor] | None = None
    for site, x in calls:
        if previous and previous[1] is x and previous[0].places[0][0] is site.places[0][0]:
            rounds[-1].append(site)
        else:
            rounds.append([site])
        previous = (site, x)
    return logits, _groups_alike_in_all_rounds(rounds)


def _groups_alike_in_all_rounds(rounds: list[list[LinearSite]]) -> list[list[LinearSite]]:
    """Return the groups in which the layers were called whenever they were called at all."""
    first_of: dict[str, list[LinearSite]] = {}
    broken: set[str] = set()
    for group in rounds:
        names = [site.name for site in group]
        for name in names:
            known = first_of.setdefault(name, group)
            if [site.name for site in known] != names or names.count(name) > 1:
                broken.update(names, (site.name for site in known))
    groups = {id(group): group for group in first_of.values()}
    return [
        group
        for group in groups.values()
        if len(group) > 1 and broken.isdisjoint(site.name for site in group)
    ]


def logits_difference(stock: Tensor, other: Tensor, dtype: torch.dtype) -> tuple[float, str]:
    """Compare the logits of two runs of the check.

    Args:
        stock: ``(tokens, vocab_size)`` of the stock model.
        other: of the changed one.
        dtype: of the model.

    Returns:
        The root mean square of the difference over the standard deviation of the stock logits, and
        what is wrong with it, empty if nothing.
    """
    difference = ((other - stock).square().mean().sqrt() / stock.std()).item()
    if difference <= _TOLERANCE[dtype]:
        return difference, ""
    return difference, (
        f"logits differ from the stock model's: expected at most {_TOLERANCE[dtype]:g} of their "
        f"spread, got {difference:.2g}"
    )
