"""The metrics' names: all statistics have one, the page lists them, the text can be read back."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.integrations.metrics import METRICS, prometheus_text, span_attributes
from freedraft.integrations.statistics import GenerationStatistics, StepReport

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
KEYS = [metric.key for metric in METRICS]


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def parse(text: str) -> tuple[dict[tuple[str, frozenset[tuple[str, str]]], float], dict[str, str]]:
    """Return the samples and the types; assert that each series stands together below its type."""
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    types: dict[str, str] = {}
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in types
            types[current] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match and match[1] == current, line
            labels = frozenset((k, unescaped(v)) for k, v in LABEL.findall(match[2] or ""))
            assert (current, labels) not in samples
            samples[current, labels] = float(match[3])
    return samples, types


def test_every_statistic_has_a_metric_and_no_metric_lacks_one() -> None:
    assert set(KEYS) == set(GenerationStatistics().to_dict())


def test_names_are_unique_and_follow_the_conventions() -> None:
    assert len({m.prometheus for m in METRICS}) == len({m.attribute for m in METRICS}) == len(KEYS)
    for metric in METRICS:
        assert re.fullmatch(r"freedraft(_[a-z]+)+", metric.prometheus)
        assert re.fullmatch(r"freedraft\.[a-z]+(_[a-z]+)*", metric.attribute)
        assert metric.prometheus.endswith("_total") == (metric.kind == "counter")
        assert "\n" not in metric.help and "\\" not in metric.help


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| ([\w.]+) \| (\w+) \| (\S+) \| (.*) \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert rows == [
        (m.key, m.prometheus, m.attribute, m.kind, m.unit, m.help.rstrip(".")) for m in METRICS
    ]


def test_a_generation_is_told_in_both_forms() -> None:
    statistics = GenerationStatistics(seconds=2.0, draft_seconds=0.25)
    statistics.add(StepReport(0, (1, 2, 3), 2, 4))
    statistics.add(StepReport(0, (4,), 0, 0))
    samples, types = parse(prometheus_text([({"engine": "transformers"}, statistics.to_dict())]))
    labels = frozenset({("engine", "transformers")})
    assert samples["freedraft_steps_total", labels] == 2
    assert samples["freedraft_accepted_tokens_total", labels] == 2
    assert samples["freedraft_acceptance_rate", labels] == 0.5
    assert types["freedraft_draft_seconds_total"] == "counter"
    assert types["freedraft_tokens_per_step"] == "gauge"
    attributes = span_attributes(statistics.to_dict())
    assert attributes["freedraft.tokens_per_second"] == 2.0
    assert list(attributes) == [metric.attribute for metric in METRICS]


VALUES = st.dictionaries(
    st.sampled_from(KEYS), st.floats(allow_nan=False) | st.integers(0, 10**15), max_size=len(KEYS)
)
LABELS = st.dictionaries(st.sampled_from(["model", "drafter", "engine"]), st.text(max_size=8))


@given(
    st.lists(st.tuples(LABELS, VALUES), max_size=4, unique_by=lambda s: tuple(sorted(s[0].items())))
)
def test_what_is_written_can_be_read_back(
    given_samples: list[tuple[dict[str, str], dict[str, float]]],
) -> None:
    names = {metric.key: metric.prometheus for metric in METRICS}
    text = prometheus_text(given_samples)
    expected = {
        (names[key], frozenset(labels.items())): value
        for labels, values in given_samples
        for key, value in values.items()
    }
    assert (parse(text)[0] if text else {}) == expected


def test_not_a_number_and_infinities_have_their_spelling() -> None:
    text = prometheus_text([({}, {"seconds": math.nan, "steps": math.inf, "emitted": -math.inf})])
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line[0] != "#"]
    assert values == ["+Inf", "-Inf", "NaN"]


@pytest.mark.parametrize("name", ["", "9lives", "a-b", "__name__", "é"])
def test_bad_label_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="label name"):
        prometheus_text([({name: "x"}, {})])


def test_unknown_statistics_and_equal_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="'steps_taken'"):
        prometheus_text([({}, {"steps_taken": 1})])
    with pytest.raises(ValueError, match="'steps_taken'"):
        span_attributes({"steps_taken": 1})
    with pytest.raises(ValueError, match="twice"):
        prometheus_text([({"a": "b"}, {}), ({"a": "b"}, {"steps": 1})])
