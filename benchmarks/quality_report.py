"""Are we ahead of each rival at equal drafted tokens? Tables and plot of what quality.py measured.

    python benchmarks/quality_report.py RESULT.json [--plot OUT.png]

A rival that drafts d nodes a step is held against our curve at d: linear between our settings, from
the point (0 drafted, 1 token a step) on, and flat behind the last one. The curve rises and
flattens, so a straight line between two of its points is hardly ever in our favour. Two curves are
ours: ``blend`` by node budget; and ``blend`` with the rival's budget, of which only nodes of a
least path probability are proposed, as the cost gate does. Nothing is set by file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

OWN = "blend"
OURS = ("blend", "ngram", "suffix", "edit")
FILES = ("edit", "edit_block", "agent", "rag", "revise", "chat")
TARGETS = {
    "edit": 11.6,
    "edit_block": 5.8,
    "agent": 2.85,
    "rag": 3.55,
    "revise": 2.15,
    "chat": 1.82,
}
EDIT_TARGET = 14.0
"""For the edit drafter with 24 nodes on whole-file edits."""
LEARNS_NOTHING = ("vllm-2-5", "vllm-5-5", "prompt-lookup", "flashspec")
NODES = 16

Point = tuple[float, float]


class Rows:
    """The rows of a result, by what they measured."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        """Sort the rows in; a rival that learns nothing is the same warm and cold."""
        self.rows: dict[tuple[str, str, str, int, float], dict[str, Any]] = {}
        for row in rows:
            modes = ("warm", "cold") if row["drafter"] in LEARNS_NOTHING else (row["mode"],)
            for mode in modes:
                key = (Path(row["file"]).stem, mode, row["drafter"], row["max_nodes"])
                self.rows[(*key, row["min_prob"])] = row

    def point(
        self, file: str, mode: str, drafter: str, nodes: int, part: str, cut: float = 0.0
    ) -> Point | None:
        """Return drafted and emitted tokens a step, or None where nothing was measured."""
        row = self.rows.get((file, mode, drafter, nodes, cut))
        return row and (row[part]["drafted_per_step"], row[part]["tokens_per_step"])

    def curve(self, file: str, mode: str, part: str, nodes: int | None) -> list[Point]:
        """Return our curve, from nothing drafted on: by budget, or by probability within one."""
        found: list[Point] = [(0.0, 1.0)]
        for (of, in_mode, drafter, budget, cut), row in self.rows.items():
            mine = (of, in_mode, drafter) == (file, mode, OWN)
            if mine and (cut == 0.0 if nodes is None else budget == nodes):
                found.append((row[part]["drafted_per_step"], row[part]["tokens_per_step"]))
        return sorted(found)

    def drafters(self) -> list[str]:
        """Return the names, ours first."""
        names = {key[2] for key in self.rows}
        rest = sorted(names - {*OURS, "oracle", "prototype"})
        return [*(name for name in OURS if name in names), *rest, *({"prototype"} & names)]


def at(curve: Sequence[Point], drafted: float) -> float:
    """Return the tokens a step of a curve at so many drafted tokens."""
    x, y = zip(*curve, strict=True)
    return float(np.interp(drafted, x, y))


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a markdown table."""
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def text(point: Point | None) -> str:
    """Return tokens a step and, in brackets, drafted a step."""
    return "-" if point is None else f"{point[1]:.2f} ({point[0]:.1f})"


def levels(rows: Rows, mode: str, part: str) -> str:
    """Return all drafters at 16 nodes."""
    return table(
        ["drafter", *FILES],
        (
            [name, *(text(rows.point(file, mode, name, NODES, part)) for file in FILES)]
            for name in rows.drafters()
        ),
    )


def own_curve(rows: Rows, mode: str) -> str:
    """Return our default over the node budgets and the least probabilities."""
    settings = sorted({key[3:] for key in rows.rows if key[1:3] == (mode, OWN)})
    return table(
        ["nodes", "least probability", *FILES],
        (
            [str(nodes), f"{cut:g}"]
            + [text(rows.point(file, mode, OWN, nodes, "all", cut)) for file in FILES]
            for nodes, cut in settings
        ),
    )


def verdict(ours: float, theirs: float) -> str:
    """Return who is ahead, and both numbers."""
    return f"{'yes' if ours > theirs else '**no**'} {ours:.2f} : {theirs:.2f}"


def verdicts(rows: Rows, mode: str, part: str, by_probability: bool) -> str:
    """Return, for each rival and budget, whether we are ahead at its drafted tokens."""
    lines = []
    rivals = [name for name in rows.drafters() if name not in OURS]
    budgets = sorted({key[3] for key in rows.rows if key[2] in rivals})
    for name in rivals:
        for nodes in budgets:
            cells = []
            for file in FILES:
                theirs = rows.point(file, mode, name, nodes, part)
                curve = rows.curve(file, mode, part, nodes if by_probability else None)
                known = theirs is not None and len(curve) > 2
                cells.append(verdict(at(curve, theirs[0]), theirs[1]) if known else "-")
            if any(cell != "-" for cell in cells):
                lines.append([name, str(nodes), *cells])
    return table(["rival", "its nodes", *FILES], lines)


def shares(rows: Rows, mode: str, part: str) -> str:
    """Return the share of the last-token oracle that our default reaches."""
    lines = []
    for nodes in (16, 64):
        cells = []
        for file in FILES:
            ours = rows.point(file, mode, OWN, nodes, part)
            best = rows.point(file, mode, "oracle", nodes, part)
            known = ours is not None and best is not None
            cells.append(
                f"{ours[1]:.2f} / {best[1]:.2f} = {ours[1] / best[1]:.0%}" if known else "-"
            )
        lines.append([str(nodes), *cells])
    return table(["nodes", *FILES], lines)


def targets(rows: Rows) -> str:
    """Return the issue's targets at 16 nodes, warm, beside what was reached."""
    lines = []
    for file in FILES:
        point = rows.point(file, "warm", OWN, NODES, "all")
        reached = "-" if point is None else f"{point[1]:.2f}"
        met = "-" if point is None else ("yes" if point[1] >= TARGETS[file] else "**no**")
        lines.append([f"{file}, {OWN}, 16 nodes", f"{TARGETS[file]:g}", reached, met])
    point = rows.point("edit", "warm", "edit", 24, "all")
    if point is not None:
        met = "yes" if point[1] >= EDIT_TARGET else "**no**"
        lines.append(["edit, edit, 24 nodes", f"{EDIT_TARGET:g}", f"{point[1]:.2f}", met])
    return table(["what", "target", "reached", "met"], lines)


def plot(rows: Rows, path: Path) -> None:
    """Draw tokens over drafted tokens a step, warm, a panel a file."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 3, figsize=(11, 7), layout="constrained")
    rivals = [name for name in rows.drafters() if name not in OURS]
    for axes, file in zip(grid.flat, FILES, strict=True):
        for nodes, style in ((None, "-"), (NODES, "--")):
            curve = rows.curve(file, "warm", "all", nodes)
            label = f"blend, at most {nodes}, by probability" if nodes else "blend by nodes"
            axes.plot(*zip(*curve, strict=True), style, color="black", marker=".", label=label)
        for name in rivals:
            points = [
                row["all"] for key, row in rows.rows.items() if key[:3] == (file, "warm", name)
            ]
            points.sort(key=lambda point: point["drafted_per_step"])
            axes.plot(
                [point["drafted_per_step"] for point in points],
                [point["tokens_per_step"] for point in points],
                marker="o",
                markersize=3,
                linewidth=0.8,
                label=name,
            )
        axes.set_title(file, fontsize=10)
        axes.set_xlim(0, 40)
        axes.grid(alpha=0.3)
    grid.flat[0].legend(fontsize=7)
    figure.supxlabel("drafted tokens a step")
    figure.supylabel("emitted tokens a step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the tables, and draw the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("result", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rows = Rows(row for path in options.result for row in json.loads(path.read_text())["results"])
    print(f"### Targets\n\n{targets(rows)}")
    for mode in ("warm", "cold"):
        print(f"\n### {mode}: 16 nodes\n\n{levels(rows, mode, 'all')}")
        print(f"\n### {mode}: 16 nodes, held-out third\n\n{levels(rows, mode, 'held_out')}")
        print(f"\n### {mode}: blend\n\n{own_curve(rows, mode)}")
        print(f"\n### {mode}: share of the last-token oracle\n\n{shares(rows, mode, 'all')}")
        for part in ("all", "held_out"):
            for by_probability in (False, True):
                kind = "by probability" if by_probability else "by nodes"
                print(f"\n### {mode}, {part}: blend {kind} ahead at equal drafted tokens?\n")
                print(verdicts(rows, mode, part, by_probability))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
