"""What does drafting cost a step? Tables of what step_latency.py measured, as the docs have them.

    python benchmarks/step_latency_report.py RESULT.json

A factor against Arctic stands in bold where it misses its aim.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from quality_report import table

SUBJECTS = (
    "ngram",
    "arctic-64-tree",
    "ngram-one-place",
    "arctic-64",
    "arctic-24",
    "edit",
    "ngram-best-chain",
    "ngram-read",
    "suffix",
    "blend",
)
AIMS = (
    ("ngram", "arctic-64-tree", 4),
    ("ngram", "arctic-24", 2),
    ("ngram-one-place", "arctic-64-tree", 6),
    ("ngram-one-place", "arctic-24", 3),
)
"""Ours, the rival, and how many times cheaper ours shall be."""

Columns = dict[str, dict[str, dict[str, Any]]]
"""The rows of each column's subjects."""


def columns_of(rows: Iterable[dict[str, Any]], title: Callable[[dict[str, Any]], str]) -> Columns:
    """Return the rows by their column's title and their subject."""
    columns: Columns = {}
    for row in rows:
        columns.setdefault(title(row), {})[row["subject"]] = row
    return columns


def context_title(row: dict[str, Any]) -> str:
    """Return a context's length in units of 1,024 tokens."""
    return f"{row['context'] // 1024}k"


def times(columns: Columns) -> str:
    """Return a table of medians and 99th percentiles, in microseconds a request and step."""
    return table(
        ["drafter", *columns],
        (
            [subject, *(cell(column.get(subject)) for column in columns.values())]
            for subject in SUBJECTS
        ),
    )


def cell(row: dict[str, Any] | None) -> str:
    """Return a row's median and 99th percentile a request; a dash where nothing was measured."""
    if row is None:
        return "-"
    wall, batch = row["step"]["wall_us"], row["batch"]
    return f"{wall['p50'] / batch:.1f} / {wall['p99'] / batch:.0f}"


def factors(columns: Columns) -> str:
    """Return a table of how many times cheaper we are, by medians; bold where an aim is missed."""
    return table(
        ["ours : rival (aim)", *columns],
        (
            [
                f"{ours} : {rival} ({aim})",
                *(factor(median(c[rival]) / median(c[ours]), aim) for c in columns.values()),
            ]
            for ours, rival, aim in AIMS
        ),
    )


def factor(value: float, aim: float) -> str:
    """Return a factor, bold where it misses its aim."""
    return f"{value:.2f}" if value >= aim else f"**{value:.2f}**"


def median(row: dict[str, Any]) -> float:
    """Return a row's median, in microseconds a step."""
    return float(row["step"]["wall_us"]["p50"])


def report(result: dict[str, Any]) -> list[str]:
    """Return all tables, and above each what it is."""
    files = columns_of(result["files"], lambda row: Path(row["file"]).stem)
    parts = [
        "By file: propose + extend, wall microseconds a step, median / 99th percentile.",
        times(files),
        "How many times cheaper than Arctic, by medians; bold where the aim is missed.",
        factors(files),
    ]
    for batch in sorted({row["batch"] for row in result["contexts"]}):
        rows = [row for row in result["contexts"] if row["batch"] == batch]
        contexts = columns_of(rows, context_title)
        parts += [
            f"By context, batch {batch}: wall microseconds a request and step, median / 99th "
            "percentile.",
            times(contexts),
        ]
        if batch == 1:
            parts += [
                "How many times cheaper than Arctic at batch 1; bold where the aim is missed.",
                factors(contexts),
            ]
    return parts


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("result", type=Path)
    print("\n\n".join(report(json.loads(parser.parse_args().result.read_text()))))


if __name__ == "__main__":
    main()
