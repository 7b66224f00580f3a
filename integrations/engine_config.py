"""What an engine's operator can set: one table, read from JSON, and the drafter made of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..drafters import Drafter
from ..drafters.catalog import (
    BLEND_SOURCES,
    CORPUS_PREFIX,
    DEFAULT_DRAFTER,
    create_drafter,
    is_drafter_name,
)
from .budget import (
    FLAT,
    BudgetConfig,
    PooledBudget,
    StepCosts,
    TokenCosts,
    read_calibration,
)
from .budget.config import check_schedule

SHARE_BY_SALT = "salt"
"""Requests learn from earlier ones of the same adapter and the same cache salt."""
SHARE_NOTHING = "none"
"""Each request stands alone."""
BUDGET_MEASURED = "measured"
"""Drafts are cut to what pays at the step times that are measured while serving."""
BUDGET_FULL = "full"
"""Drafts are as long as the engine allows."""

_MIB = 1 << 20
# t(tokens) / t(1) before anything is measured: nearly flat, as where weights are read from memory
# once a step. Too cheap a guess is found out by the first drafts, too dear a one never. vLLM on a
# CPU took 1.35 at 17 tokens and 1.85 at 33 (SmolLM2-135M, float32).
_TOKENS_THAT_DOUBLE = 128
_TOKENS_THAT_DOUBLE_ON_CPU = 48
_MAX_LOSS = 0.01  # of the time; more than that drafts must not lose against plain decoding
_LEAST_POOL_MIB = 1
# Prompts are indexed in slices, so that no step of all requests waits for long ones: about 1.5 ms.
_SLICE_TOKENS = 2048
_EDIT_CAPACITY = 1 << 22  # tokens; address space until it is used, and never copied to grow


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of freedraft inside an engine.

    Attributes:
        drafter: what proposes, as ``freedraft generate --drafter`` takes it.
        pools: pool files of the corpus drafter that the blend asks too.
        memory_mib: the most that the tokens of all requests and finished responses take.
        warm_file: where finished responses are kept across restarts; nowhere when absent.
        save_seconds: time between two writes of that file.
        sharing: ``salt`` or ``none``: which earlier requests a request learns from.
        budget: ``measured`` or ``full``: whether drafts are cut to what pays.
        schedule: most drafted tokens of a request by the number of requests from which on it
            holds; with it the times decide nothing.
        calibration: file of step times that ``freedraft calibrate`` wrote, to start from.
        placeholder_ids: further token ids that are never matched or proposed.
        mend: whether known faults of the engine are mended where that is safe.
    """

    drafter: str = DEFAULT_DRAFTER
    pools: tuple[str, ...] = ()
    memory_mib: int = 512
    warm_file: str | None = None
    save_seconds: float = 300.0
    sharing: str = SHARE_BY_SALT
    budget: str = BUDGET_MEASURED
    schedule: Mapping[int, int] | None = None
    calibration: str | None = None
    placeholder_ids: tuple[int, ...] = ()
    mend: bool = True

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is out of its range.
        """
        if not is_drafter_name(self.drafter):
            create_drafter(self.drafter)  # raises, and names those that exist
        _check_choice("sharing", self.sharing, (SHARE_BY_SALT, SHARE_NOTHING))
        _check_choice("budget", self.budget, (BUDGET_MEASURED, BUDGET_FULL))
        if self.memory_mib < _LEAST_POOL_MIB or self.memory_mib >= 8192:
            raise ValueError(
                f"expected memory_mib within {_LEAST_POOL_MIB}..8191, got {self.memory_mib}"
            )
        if not self.save_seconds > 0:
            raise ValueError(f"expected save_seconds > 0, got {self.save_seconds}")
        if self.pools and self.drafter != DEFAULT_DRAFTER:
            raise ValueError(
                f"expected drafter {DEFAULT_DRAFTER!r} beside pools, got {self.drafter!r}"
            )
        if self.warm_file is not None and self.drafter not in ("suffix", DEFAULT_DRAFTER):
            raise ValueError(
                f"expected drafter 'suffix' or {DEFAULT_DRAFTER!r} beside warm_file, got "
                f"{self.drafter!r}"
            )
        if self.schedule is not None:
            check_schedule(self.schedule)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> EngineConfig:
        """Take the settings from a JSON object.

        Args:
            values: settings by name; those that are missing keep their defaults.

        Raises:
            ValueError: an unknown name, a value of the wrong type, or one out of its range.
        """
        unknown = sorted(set(values) - set(_TYPES))
        if unknown:
            raise ValueError(f"expected settings among {', '.join(_TYPES)}, got {unknown[0]!r}")
        settings: dict[str, Any] = {}
        for name, value in values.items():
            kinds, description = _TYPES[name]
            # bool is an int for Python, but not for those who write JSON
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
                raise ValueError(f"expected {name} to be {description}, got {value!r}")
            settings[name] = value
        if "pools" in settings:
            settings["pools"] = tuple(_all_of("pools", settings["pools"], str))
        if "placeholder_ids" in settings:
            ids = _all_of("placeholder_ids", settings["placeholder_ids"], int)
            settings["placeholder_ids"] = tuple(ids)
        if settings.get("schedule") is not None:
            settings["schedule"] = _parse_schedule(settings["schedule"])
        return cls(**settings)

    @classmethod
    def load(cls, source: str | os.PathLike[str] | Mapping[str, object]) -> EngineConfig:
        """Take the settings from an object, from JSON text that begins with ``{``, or from a file.

        Raises:
            ValueError: as for :meth:`from_mapping`, or no JSON object; a file is named.
            OSError: the file cannot be read.
        """
        if isinstance(source, Mapping):
            return cls.from_mapping(source)
        text = os.fspath(source)
        name = "the settings"
        if not text.lstrip().startswith("{"):
            name = text
            text = Path(text).read_text(encoding="utf-8")
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ValueError(f"expected JSON in {name}, got: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object in {name}, got {type(values).__name__}")
        try:
            return cls.from_mapping(values)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def to_mapping(self) -> dict[str, object]:
        """Return the settings that differ from the defaults, as :meth:`from_mapping` takes them."""
        values = {}
        for setting in fields(self):
            value = getattr(self, setting.name)
            if value != setting.default:
                values[setting.name] = _as_json(value)
        return values


def create_engine_drafter(config: EngineConfig, fingerprint: str | None = None) -> Drafter:
    """Return the drafter that the settings ask for, with its memory bounded.

    Args:
        config: the settings.
        fingerprint: of the tokenizer in use, so that pools of another one are refused.

    Raises:
        ValueError: a pool file is not what it should be.
        OSError: a pool file cannot be read.
    """
    if config.drafter not in ("suffix", DEFAULT_DRAFTER):
        return create_drafter(config.drafter, fingerprint)
    suffix = _suffix_drafter(config)
    if config.drafter == "suffix":
        return suffix
    from ..drafters.blend import BlendDrafter

    # "phrase" listens to the requests' predictions; without one it costs next to nothing.
    # "recycling" learns from the target's most likely tokens, which no engine tells.
    own = {"suffix": suffix, **_sliced_drafters()}
    names = [name for name in dict.fromkeys(("phrase", *BLEND_SOURCES)) if name != "recycling"]
    sources = [own[name] if name in own else create_drafter(name) for name in names]
    corpora = [create_drafter(CORPUS_PREFIX + path, fingerprint) for path in config.pools]
    return BlendDrafter([*sources, *corpora])


def create_engine_budget(config: EngineConfig, on_cpu: bool = False) -> PooledBudget | None:
    """Return the budget that the settings ask for, for an engine that computes each token once.

    Args:
        config: the settings.
        on_cpu: whether the target runs on a CPU, where a step's further tokens cost more.

    Raises:
        ValueError: the calibration file is not what it should be.
        OSError: it cannot be read.
    """
    if config.budget == BUDGET_FULL and config.schedule is None:
        return None
    if config.calibration is not None:
        costs: StepCosts | TokenCosts = StepCosts(read_calibration(config.calibration))
    else:
        costs = TokenCosts(_TOKENS_THAT_DOUBLE_ON_CPU if on_cpu else _TOKENS_THAT_DOUBLE)
    settings = BudgetConfig(layout=FLAT, schedule=config.schedule, max_loss=_MAX_LOSS)
    return PooledBudget(costs, settings)


def _suffix_drafter(config: EngineConfig) -> Drafter:
    from ..drafters.suffix import SuffixConfig, SuffixDrafter

    num_bytes = config.memory_mib * _MIB
    return SuffixDrafter(
        SuffixConfig(
            share_responses=config.sharing == SHARE_BY_SALT,
            max_bytes=num_bytes,
            max_namespace_bytes=num_bytes // 2,
            slice_tokens=_SLICE_TOKENS,
        )
    )


def _sliced_drafters() -> dict[str, Drafter]:
    """Return those sources of the blend that would index a whole prompt at once by default."""
    from ..drafters.edit import EditConfig, EditDrafter
    from ..drafters.ngram import NgramConfig, NgramDrafter

    return {
        "ngram": NgramDrafter(NgramConfig(slice_tokens=_SLICE_TOKENS)),
        "edit": EditDrafter(EditConfig(capacity=_EDIT_CAPACITY, slice_tokens=_SLICE_TOKENS)),
    }


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"expected {name} among {', '.join(choices)}, got {value!r}")


def _all_of(name: str, values: object, kind: type) -> list[Any]:
    items = list(values) if isinstance(values, list | tuple) else [values]
    wrong = [item for item in items if not isinstance(item, kind) or isinstance(item, bool)]
    if wrong:
        raise ValueError(f"expected {name} to hold {kind.__name__} values, got {wrong[0]!r}")
    return items


def _parse_schedule(values: Mapping[object, object]) -> dict[int, int]:
    try:
        return {int(str(load)): int(str(nodes)) for load, nodes in values.items()}
    except ValueError as error:
        raise ValueError(f"expected a schedule of integers, got {dict(values)}") from error


def _as_json(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return value


_TYPES: dict[str, tuple[Any, str]] = {
    "drafter": (str, "a string"),
    "pools": ((list, tuple), "a list of paths"),
    "memory_mib": (int, "an integer"),
    "warm_file": ((str, type(None)), "a path"),
    "save_seconds": ((int, float), "a number"),
    "sharing": (str, "a string"),
    "budget": (str, "a string"),
    "schedule": ((dict, type(None)), "an object"),
    "calibration": ((str, type(None)), "a path"),
    "placeholder_ids": ((list, tuple), "a list of integers"),
    "mend": (bool, "true or false"),
}
