"""Which plots a report shows, made of replay results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...integrations.budget import Calibration
from ..replay.match_lengths import BUCKET_LABELS
from ..replay.prediction import CONCURRENCIES, Prediction, predict
from ..replay.result import ReplayResult
from ..replay.tally import NUM_BINS
from .svg import Axis, Series, bar_plot, line_plot

_MIN_NODES = 20
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Figure:
    """One plot with its words.

    Attributes:
        title: what question it answers.
        text: how to read it.
        svg: the plot.
        rows: of a table under it, the heads first; none where there is no table.
    """

    title: str
    text: str
    svg: str
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class LogFigures:
    """What belongs to one log.

    Attributes:
        name: of the log.
        results: of all drafters and budgets.
        best: the result with the largest predicted speed-up for one request at a time.
        predictions: of each result, in their order.
        figures: the plots.
    """

    name: str
    results: list[ReplayResult]
    best: ReplayResult
    predictions: list[list[Prediction]]
    figures: list[Figure]


def log_figures(results: Sequence[ReplayResult], costs: Calibration) -> LogFigures:
    """Return the plots of one log.

    Args:
        results: of that log, at least one.
        costs: step times.
    """
    predictions = [predict(result, costs) for result in results]
    order = sorted(range(len(results)), key=lambda i: -predictions[i][0].speedup)
    best = results[order[0]]
    drafters = list(dict.fromkeys(result.drafter for result in results))
    widest = [_best_of(results, predictions, name) for name in drafters]
    figures = [
        _tokens_per_step(results, drafters),
        _speedup(results, predictions, drafters),
        _by_position(widest),
        _by_match(widest),
        _calibration(widest),
        _time(widest, [predictions[list(results).index(one)][0] for one in widest]),
        _by_length(widest, "by_prompt", "prompt"),
        _by_length(widest, "by_response", "response"),
        _memory(widest),
    ]
    return LogFigures(
        results[0].file, list(results), best, predictions, [one for one in figures if one]
    )


def _best_of(
    results: Sequence[ReplayResult], predictions: Sequence[Sequence[Prediction]], name: str
) -> ReplayResult:
    """Return a drafter's result with the largest predicted speed-up for one request at a time."""
    own = [i for i, result in enumerate(results) if result.drafter == name]
    return results[max(own, key=lambda i: predictions[i][0].speedup)]


def _named(result: ReplayResult) -> str:
    return f"{result.drafter}, {result.max_nodes} nodes"


def _tokens_per_step(results: Sequence[ReplayResult], drafters: Sequence[str]) -> Figure:
    series = [
        Series(
            name,
            sorted((r.max_nodes, r.tokens_per_step) for r in results if r.drafter == name),
            colour,
        )
        for colour, name in enumerate(drafters)
    ]
    budgets = sorted({result.max_nodes for result in results})
    high = max(result.tokens_per_step for result in results)
    text = "All emitted tokens over all steps of the model; 1 is plain decoding."
    title = "Tokens per step by drafter and budget"
    if len(budgets) == 1:
        bars = [Series(s.name, [(i, s.points[0][1])], i) for i, s in enumerate(series)]
        x = Axis(
            f"drafter, {budgets[0]} nodes a step",
            -0.5,
            len(bars) - 0.5,
            ticks=range(len(bars)),
            labels=list(drafters),
        )
        return Figure(title, text, bar_plot(bars, x, _up_to("tokens per step", high), title,
                                            stacked=True))  # fmt: skip
    x = Axis("most drafted tokens a step", budgets[0], budgets[-1], ticks=budgets)
    return Figure(title, text, line_plot(series, x, _up_to("tokens per step", high), title))


def _up_to(title: str, high: float, *, percent: bool = False) -> Axis:
    return Axis(title, 0, high * 1.08 or 1.0, percent=percent)


def _speedup(
    results: Sequence[ReplayResult],
    predictions: Sequence[Sequence[Prediction]],
    drafters: Sequence[str],
) -> Figure:
    series: list[Series] = []
    rows: list[list[str]] = [["nodes that pay", *map(str, CONCURRENCIES)]]
    for colour, name in enumerate(drafters):
        points: list[tuple[float, float]] = []
        chosen: list[int] = []
        for place, load in enumerate(CONCURRENCIES):
            options = [(1.0, 0)] + [
                (predicted[place].speedup, result.max_nodes)
                for result, predicted in zip(results, predictions, strict=True)
                if result.drafter == name
            ]
            speedup, nodes = max(options)
            points.append((load, speedup))
            chosen.append(nodes)
        series.append(Series(name, points, colour))
        rows.append([name, *(str(nodes) if nodes else "off" for nodes in chosen)])
    high = max(point[1] for one in series for point in one.points)
    first, last = CONCURRENCIES[0], CONCURRENCIES[-1]
    series.append(Series("off", [(first, 1.0), (last, 1.0)], 7, dashed=True))
    x = Axis("requests at a time", first, last, log=True, ticks=CONCURRENCIES)
    title = "Predicted speed-up by concurrency"
    return Figure(
        title,
        "At each load with the number of nodes that pays most, of those that were replayed.",
        line_plot(series, x, _up_to("speed-up over plain decoding", high), title),
        rows,
    )


def _by_position(results: Sequence[ReplayResult]) -> Figure | None:
    series: list[Series] = []
    for colour, result in enumerate(results):
        tally = result.tally
        points = [
            (depth, sum(tally.steps_by_accepted[depth:]) / tally.offered[depth])
            for depth in range(1, len(tally.offered))
            if tally.offered[depth] >= _MIN_NODES
        ]
        if points:
            series.append(Series(_named(result), points, colour))
    if not series:
        return None
    last = max(point[0] for one in series for point in one.points)
    x = Axis("position in the draft", 1, max(last, 2), ticks=_positions(int(last)))
    title = "Acceptance by position"
    return Figure(
        title,
        "Of the steps whose accepted path was offered a token at this position, the share in which "
        "it was accepted.",
        line_plot(series, x, Axis("accepted", 0, 1, percent=True), title),
    )


def _positions(last: int) -> list[float]:
    step = max(1, -(-last // 8))
    return [1, *range(1 + step, last + 1, step)] if last > 1 else [1, 2]


def _by_match(results: Sequence[ReplayResult]) -> Figure:
    return Figure(
        "Tokens per step by match length",
        "Match length: the longest run of tokens just before the step that also stands earlier in "
        "the same request. What a drafter reaches at 0 comes from other requests.",
        _grouped(
            results,
            BUCKET_LABELS,
            lambda result, place: (
                result.tally.by_match[place].tokens,
                result.tally.by_match[place].steps,
            ),
            "tokens that matched before the step",
            "Tokens per step by match length",
        ),
    )


def _by_length(results: Sequence[ReplayResult], name: str, what: str) -> Figure:
    keys = sorted({int(key) for result in results for key in getattr(result.tally, name)})
    labels = [f"{key}+" for key in keys]

    def counts(result: ReplayResult, place: int) -> tuple[int, int]:
        found = getattr(result.tally, name).get(str(keys[place]))
        return (0, 0) if found is None else (found.tokens, found.steps)

    title = f"Tokens per step by length of the {what}"
    return Figure(
        title,
        f"Requests by the tokens of their {what}, from one power of two to the next.",
        _grouped(results, labels, counts, f"tokens of the {what}", title),
    )


def _grouped(
    results: Sequence[ReplayResult],
    labels: Sequence[str],
    counts: Callable[[ReplayResult, int], tuple[int, int]],
    axis: str,
    title: str,
) -> str:
    """Return bars of tokens per step by group, for groups that have steps."""
    series = []
    for colour, result in enumerate(results):
        pairs = [counts(result, place) for place in range(len(labels))]
        points = [(place, tokens / steps) for place, (tokens, steps) in enumerate(pairs) if steps]
        series.append(Series(_named(result), points, colour))
    high = max((point[1] for one in series for point in one.points), default=1.0)
    x = Axis(axis, -0.5, len(labels) - 0.5, ticks=range(len(labels)), labels=labels)
    return bar_plot(series, x, _up_to("tokens per step", high), title)


def _calibration(results: Sequence[ReplayResult]) -> Figure | None:
    series: list[Series] = []
    for colour, result in enumerate(results):
        tally = result.tally
        points = [
            (tally.bin_probs[i] / tally.bin_nodes[i], tally.bin_hits[i] / tally.bin_nodes[i])
            for i in range(NUM_BINS)
            if tally.bin_nodes[i] >= _MIN_NODES
        ]
        if points:
            error = f"{result.calibration_error:.3f}"
            series.append(Series(f"{_named(result)}, error {error}", points, colour))
    if not series:
        return None
    series.append(Series("honest", [(0.0, 0.0), (1.0, 1.0)], 7, dashed=True))
    title = "Are the probabilities honest?"
    return Figure(
        title,
        "What drafters promise for their tokens against how often these came true. On the dashed "
        "line promises are kept; below it too much is promised.",
        line_plot(
            series,
            Axis("promised probability", 0, 1, percent=True),
            Axis("came true", 0, 1, percent=True),
            title,
        ),
    )


def _time(results: Sequence[ReplayResult], predictions: Sequence[Prediction]) -> Figure:
    """Return where the time of a thousand tokens would go, for one request at a time."""
    plain = 1000 * predictions[0].plain_seconds
    parts: list[tuple[float, float, float]] = [(plain, 0.0, 0.0)]
    for result, one in zip(results, predictions, strict=True):
        steps = 1000 / result.tokens_per_step
        extra = max(one.verify_seconds - one.plain_seconds, 0)
        parts.append((steps * one.plain_seconds, steps * extra, steps * one.draft_seconds))
    names = ("steps of the model", "verifying drafts in them", "drafting")
    series = [
        Series(name, [(i, part[place]) for i, part in enumerate(parts)], place)
        for place, name in enumerate(names)
    ]
    labels = ["plain", *(result.drafter for result in results)]
    x = Axis(
        "each drafter at its best budget", -0.5, len(labels) - 0.5,
        ticks=range(len(labels)), labels=labels,
    )  # fmt: skip
    title = "Where the time would go"
    return Figure(
        title,
        "Seconds for a thousand tokens of one request at a time. Drafting is what it took here, on "
        "this machine, while replaying.",
        bar_plot(series, x, _up_to("seconds", max(map(sum, parts))), title, stacked=True),
    )


def _memory(results: Sequence[ReplayResult]) -> Figure | None:
    series: list[Series] = []
    for colour, result in enumerate(results):
        samples = result.tally.memory
        if not samples:
            continue
        if samples[-1].drafter_bytes is not None:
            points = [(s.tokens, (s.drafter_bytes or 0) / _MIB) for s in samples]
            series.append(Series(f"{_named(result)}: its pools", points, colour))
        elif samples[-1].process_bytes:
            first = samples[0].process_bytes
            points = [(s.tokens, max(s.process_bytes - first, 0) / _MIB) for s in samples]
            series.append(Series(f"{_named(result)}: growth of the process", points, colour))
    if not series:
        return None
    high = max(point[1] for one in series for point in one.points)
    last = max(point[0] for one in series for point in one.points)
    title = "Memory growth"
    return Figure(
        title,
        "While the longest run of requests was replayed.",
        line_plot(
            [Series(s.name, _thinned(s.points), s.colour) for s in series],
            Axis("response tokens so far", 0, max(last, 1)),
            _up_to("MiB", high),
            title,
        ),
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, len(points) // 24)
    kept = list(points[::step])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]
