"""The skip set that a search has found for a model on a machine, as a file."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..drafters.catalog import LAYER_SKIP
from ..drafters.layer_skip import LayerSkipConfig, LayerSkipDrafter, SkipSet
from ..drafters.layer_skip.objective import SubLayerCosts
from ..drafters.model_drafting import ModelDraftConfig
from ..drafters.model_drafting.pay_gate import PayGate
from .default_model import cache_folder

__all__ = [
    "LAYER_SKIP",
    "SkipRecord",
    "layer_skip_drafter",
    "load_skip_record",
    "machine_name",
    "model_fingerprint",
    "save_skip_record",
    "skip_record_path",
]

FORMAT = "freedraft-layer-skip"
VERSION = 1
_REFINE_EVERY = 64


@dataclass(frozen=True, slots=True)
class SkipRecord:
    """What a search has found.

    Attributes:
        model: :func:`model_fingerprint` of the model.
        machine: :func:`machine_name` of the machine.
        skip: the set.
        costs: times of the sub-layers.
        acceptance: share of the scored places at which the set proposes the model's choice.
        speedup: predicted, with the best length of a chain.
        depth: that length.
        about: date, versions, and what else is known.
    """

    model: str
    machine: str
    skip: SkipSet
    costs: SubLayerCosts
    acceptance: float
    speedup: float
    depth: int
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pays(self) -> bool:
        """Whether drafting with the set is predicted to be faster than not drafting."""
        return self.speedup > 1


def model_fingerprint(model: PreTrainedModel) -> str:
    """Return what tells a model from another one: its class, its sizes, and some weights."""
    config = model.config.to_dict()
    for name in ("_name_or_path", "transformers_version", "torch_dtype", "dtype"):
        config.pop(name, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(type(model).__name__.encode())
    vectors = [p for p in model.parameters() if p.ndim == 1]  # packed layers have no matrices
    embedding = model.get_input_embeddings().weight
    assert isinstance(embedding, torch.Tensor)
    for weights in (*vectors[-2:], embedding[:8]):
        digest.update(weights.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def machine_name(model: PreTrainedModel) -> str:
    """Return the device that the model runs on, with the threads of a processor."""
    if model.device.type == "cuda":
        return str(torch.cuda.get_device_name(model.device))
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def skip_record_path(model: PreTrainedModel) -> Path:
    """Return where the record of this model on this machine is cached."""
    machine = hashlib.sha256(f"{machine_name(model)}, {model.dtype}".encode()).hexdigest()[:8]
    return cache_folder() / "layer_skip" / f"{model_fingerprint(model)}-{machine}.json"


def save_skip_record(record: SkipRecord, path: Path) -> None:
    """Write a record, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": record.model,
        "machine": record.machine,
        "skip": record.skip.to_dict(),
        "costs": asdict(record.costs),
        "acceptance": record.acceptance,
        "speedup": record.speedup,
        "depth": record.depth,
        "about": dict(record.about),
    }
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def load_skip_record(path: Path) -> SkipRecord:
    """Read a record.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a record; the message names the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        skip = SkipSet.of(content["skip"]["attention"], content["skip"]["mlp"])
        costs = SubLayerCosts(**content["costs"])
        skip.check(costs.num_layers)
        return SkipRecord(
            str(content["model"]),
            str(content["machine"]),
            skip,
            costs,
            float(content["acceptance"]),
            float(content["speedup"]),
            int(content["depth"]),
            content["about"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"expected a layer-skip record in {path}, got {error!r}") from error


def layer_skip_drafter(
    model: PreTrainedModel,
    path: Path | None = None,
    draft: ModelDraftConfig | None = None,
) -> LayerSkipDrafter:
    """Return a drafter that leaves out what a search has found for ``model``.

    Without a record it leaves out three layers in ten; with one it refines the set on line. A
    record that predicts no gain keeps the gate shut for the first few thousand steps.

    Args:
        model: the target.
        path: of a record; the cached one of this model on this machine when absent, if there is
            one.
        draft: how it drafts; the record's length of chains when absent.

    Raises:
        OSError: ``path`` cannot be read.
        ValueError: the record is broken or of another model.
    """
    if path is None:
        path = skip_record_path(model)
        if not path.exists():
            return LayerSkipDrafter(LayerSkipConfig(draft=draft or ModelDraftConfig()))
    record = load_skip_record(path)
    fingerprint = model_fingerprint(model)
    if record.model != fingerprint:
        raise ValueError(
            f"expected the record of this model ({fingerprint}) in {path}, got one of "
            f"{record.model}"
        )
    if draft is None:
        draft = ModelDraftConfig(max_depth=record.depth)
    return LayerSkipDrafter(
        LayerSkipConfig(record.skip, draft, record.costs, _REFINE_EVERY),
        PayGate(draft.gate, hopeful=record.pays),
    )
