"""The statistics under the names of Prometheus and OpenTelemetry: one table, two printers.

Nothing here talks to either system: an engine's own registry, a text-file collector or a span takes
what these functions return.

Sources: Prometheus text exposition format 0.0.4; OpenTelemetry attribute naming (dotted, lower
case, a name space of one's own).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Metric:
    """One statistic's names.

    Attributes:
        key: of ``GenerationStatistics.to_dict()``.
        prometheus: name of the time series.
        attribute: name of the span attribute.
        kind: a counter adds up over calls, a gauge is the newest call's value.
        unit: "1" for counts and ratios, "s", or "1/s".
        help: one line.
    """

    key: str
    prometheus: str
    attribute: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str


METRICS = (
    Metric(
        "steps",
        "freedraft_steps_total",
        "freedraft.steps",
        "counter",
        "1",
        "Target steps, those without a draft included.",
    ),
    Metric(
        "emitted",
        "freedraft_emitted_tokens_total",
        "freedraft.emitted_tokens",
        "counter",
        "1",
        "Tokens emitted.",
    ),
    Metric(
        "drafted",
        "freedraft_drafted_tokens_total",
        "freedraft.drafted_tokens",
        "counter",
        "1",
        "Draft tokens (nodes) verified.",
    ),
    Metric(
        "accepted",
        "freedraft_accepted_tokens_total",
        "freedraft.accepted_tokens",
        "counter",
        "1",
        "Draft tokens accepted.",
    ),
    Metric(
        "switched_off",
        "freedraft_switched_off_requests_total",
        "freedraft.switched_off_requests",
        "counter",
        "1",
        "Requests whose drafter was switched off because of a fault.",
    ),
    Metric(
        "draft_seconds",
        "freedraft_draft_seconds_total",
        "freedraft.draft_seconds",
        "counter",
        "s",
        "Wall time inside the drafter.",
    ),
    Metric(
        "verify_seconds",
        "freedraft_verify_seconds_total",
        "freedraft.verify_seconds",
        "counter",
        "s",
        "Wall time of forwards, walks and cache compaction, prefill excluded.",
    ),
    Metric(
        "prefill_seconds",
        "freedraft_prefill_seconds_total",
        "freedraft.prefill_seconds",
        "counter",
        "s",
        "Wall time of the prompts' forwards.",
    ),
    Metric(
        "seconds",
        "freedraft_generation_seconds_total",
        "freedraft.generation_seconds",
        "counter",
        "s",
        "Wall time of generation, all parts together.",
    ),
    Metric(
        "tokens_per_step",
        "freedraft_tokens_per_step",
        "freedraft.tokens_per_step",
        "gauge",
        "1",
        "Emitted tokens over all target steps.",
    ),
    Metric(
        "drafted_per_step",
        "freedraft_drafted_per_step",
        "freedraft.drafted_per_step",
        "gauge",
        "1",
        "Verified nodes over all target steps.",
    ),
    Metric(
        "acceptance_rate",
        "freedraft_acceptance_rate",
        "freedraft.acceptance_rate",
        "gauge",
        "1",
        "Accepted over drafted.",
    ),
    Metric(
        "wasted_fraction",
        "freedraft_wasted_fraction",
        "freedraft.wasted_fraction",
        "gauge",
        "1",
        "Share of the drafted nodes that was not accepted.",
    ),
    Metric(
        "tokens_per_second",
        "freedraft_tokens_per_second",
        "freedraft.tokens_per_second",
        "gauge",
        "1/s",
        "Emitted tokens over wall time, prefill included.",
    ),
)
"""All statistics; ``docs/metrics.md`` has the same table."""

_BY_KEY = {metric.key: metric for metric in METRICS}


def prometheus_text(samples: Iterable[tuple[Mapping[str, str], Mapping[str, float]]]) -> str:
    """Return statistics in Prometheus' text format, each series under one HELP and TYPE line.

    Args:
        samples: pairs of labels (engine, model, drafter, ...) and statistics by key, as
            ``GenerationStatistics.to_dict()`` returns them; a key may be missing.

    Raises:
        ValueError: an unknown key, a bad label name, or the same labels twice.
    """
    rows = [(_label_text(labels), dict(values)) for labels, values in samples]
    if len({labels for labels, _ in rows}) < len(rows):
        raise ValueError("expected other labels for each sample, got the same labels twice")
    for _, values in rows:
        _check_keys(values)
    lines: list[str] = []
    for metric in METRICS:
        series = [(labels, values[metric.key]) for labels, values in rows if metric.key in values]
        if series:
            lines.append(f"# HELP {metric.prometheus} {metric.help}")
            lines.append(f"# TYPE {metric.prometheus} {metric.kind}")
            lines += [f"{metric.prometheus}{labels} {_number(value)}" for labels, value in series]
    return "".join(f"{line}\n" for line in lines)


def span_attributes(values: Mapping[str, float]) -> dict[str, float]:
    """Return statistics as attributes of an OpenTelemetry span, in the table's order.

    Args:
        values: statistics by key; a key may be missing.

    Raises:
        ValueError: an unknown key.
    """
    _check_keys(values)
    return {metric.attribute: values[metric.key] for metric in METRICS if metric.key in values}


def _check_keys(values: Mapping[str, float]) -> None:
    unknown = sorted(set(values) - set(_BY_KEY))
    if unknown:
        raise ValueError(f"expected statistics among {', '.join(_BY_KEY)}, got {unknown[0]!r}")


def _label_text(labels: Mapping[str, str]) -> str:
    for name in labels:
        # Prometheus keeps names with two leading underscores for itself.
        if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise ValueError(f"expected a label name of letters, digits and _, got {name!r}")
    pairs = [f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
