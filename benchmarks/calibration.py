"""Do predicted path probabilities agree with what is accepted? Table and reliability diagram.

    python benchmarks/calibration.py TRACES.jsonl... --tokenizer MODEL --out OUT.json --plot OUT.png

Every file is replayed warm with 16 nodes. The nodes fall into ten equal bins by predicted path
probability; the expected calibration error is the mean gap between predicted and seen, each bin
weighing as many nodes as it holds (arXiv:1706.04599, equation 3). A node counts as accepted when
the whole path down to it came.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numba
import numpy as np
from quality import total, walk
from transformers import AutoTokenizer

from freedraft.drafters.catalog import create_drafter
from freedraft.workbench.replay import NUM_BINS, expected_calibration_error
from freedraft.workbench.traces import TokenTrace, read_traces, tokenize_traces

MAX_NODES = 16
LIMIT = 0.05
"""The largest error that the issue allows."""


def measure(file: str, traces: Sequence[TokenTrace], name: str) -> dict[str, Any]:
    """Replay one file with one drafter and sort its nodes into bins."""
    tallies = list(walk(traces, partial(create_drafter, name), MAX_NODES, 0.0, True))
    row: dict[str, Any] = {"file": file, "drafter": name}
    for part, some in (("all", tallies), ("held_out", tallies[2 * len(tallies) // 3 :])):
        tally = total(some)
        probs, hits = np.concatenate(tally.probs), np.concatenate(tally.hits)
        bins = np.minimum((probs * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        nodes = np.bincount(bins, minlength=NUM_BINS)
        row[part] = {
            "calibration_error": round(expected_calibration_error(probs, hits), 4),
            "predicted_mean": round(float(probs.mean()), 4),
            "accepted_share": round(float(hits.mean()), 4),
            "nodes": nodes.tolist(),
            "predicted": mean_in_bins(bins, probs, nodes),
            "seen": mean_in_bins(bins, hits, nodes),
        }
    return row


def mean_in_bins(bins: np.ndarray, values: np.ndarray, nodes: np.ndarray) -> list[float | None]:
    """Return the mean of the values in each bin; None in an empty one."""
    sums = np.bincount(bins, weights=values, minlength=NUM_BINS)
    return [
        round(total_ / count, 4) if count else None
        for total_, count in zip(sums.tolist(), nodes.tolist(), strict=True)
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
                for predicted, seen in zip(row["all"]["predicted"], row["all"]["seen"], strict=True)
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
    """Measure, write and draw the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--drafters", default="ngram,suffix,edit,blend")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    encode = partial(tokenizer.encode, add_special_tokens=False, verbose=False)
    rows: list[dict[str, Any]] = []
    for path in options.traces:
        traces = list(tokenize_traces(read_traces(path), encode))
        for name in options.drafters.split(","):
            rows.append(measure(path.name, traces, name))
            error = rows[-1]["all"]["calibration_error"]
            verdict = "holds" if error <= LIMIT else "misses"
            print(f"{path.name:18} {name:7} error {error:.4f}, {verdict} {LIMIT}", flush=True)
        result = {
            "question": "expected calibration error of path probabilities, by file",
            "max_nodes": MAX_NODES,
            "limit": LIMIT,
            "python": platform.python_version(),
            "numba": numba.__version__,
            "numpy": np.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "results": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
