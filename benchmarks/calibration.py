"""Do predicted path probabilities agree with what is accepted? Table and reliability diagram.

    python benchmarks/calibration.py QUALITY.json --out OUT.json --plot OUT.png

QUALITY.json is what quality.py wrote: every file replayed warm, here with 16 nodes. The nodes fall
into ten equal bins by predicted path probability; the expected calibration error is the mean gap
between predicted and seen, each bin weighing as many nodes as it holds (arXiv:1706.04599, equation
3). A node counts as accepted when the whole path down to it came.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

MAX_NODES = 16
KEYS = ("calibration_error", "bins")
LIMIT = 0.05
"""The largest error that the issue allows."""


def calibrated(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what there is about calibration in the rows with the usual budget."""
    usual = {"mode": "warm", "max_nodes": MAX_NODES, "min_prob": 0.0}
    return [
        {
            "file": row["file"],
            "drafter": row["drafter"],
            **{part: {key: row[part][key] for key in KEYS} for part in ("all", "held_out")},
        }
        for row in rows
        if all(row[key] == value for key, value in usual.items()) and "bins" in row["all"]
    ]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw seen over predicted probability, a panel a file, a line a drafter."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    files = list(dict.fromkeys(row["file"] for row in rows))
    columns = min(3, len(files))
    lines = -(-len(files) // columns)
    figure, grid = pyplot.subplots(
        lines,
        columns,
        figsize=(3.1 * columns, 3.0 * lines),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, file in zip(grid.flat, files, strict=False):
        axes.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle="--")
        for row in (row for row in rows if row["file"] == file):
            points = [
                (predicted, seen)
                for predicted, seen in zip(
                    row["all"]["bins"]["predicted"], row["all"]["bins"]["seen"], strict=True
                )
                if predicted is not None
            ]
            label = f"{row['drafter']} ({row['all']['calibration_error']:.3f})"
            axes.plot(*zip(*points, strict=True), marker=".", label=label)
        axes.set_title(Path(file).stem, fontsize=10)
        axes.legend(fontsize=7)
    figure.supxlabel("predicted path probability", fontsize=9)
    figure.supylabel("share accepted", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print, write and draw the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("quality", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    measured = json.loads(options.quality.read_text())
    rows = calibrated(measured["results"])
    for row in rows:
        error = row["all"]["calibration_error"]
        verdict = "holds" if error <= LIMIT else "misses"
        print(f"{row['file']:18} {row['drafter']:7} error {error:.4f}, {verdict} {LIMIT}")
    result = {key: value for key, value in measured.items() if key not in ("results", "rivals")}
    result |= {
        "question": "expected calibration error of path probabilities, by file",
        "max_nodes": MAX_NODES,
        "limit": LIMIT,
        "results": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
