"""Plots as inline SVG: lines, bars and stacked bars, coloured by the page's style.

Colours come from the classes ``s0`` to ``s7`` that the page defines for light and dark, so a plot
follows the reader's setting. Each mark has a ``<title>`` that browsers show on hovering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 560
HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 46
_NUM_COLOURS = 8
_NUM_TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one colour of bars.

    Attributes:
        name: told in the legend.
        points: (x, y); for bars x is the number of the group.
        colour: 0 to 7.
        dashed: a line that is a reference and no measurement.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    Attributes:
        title: what it shows, with the unit.
        low: its least value.
        high: its largest.
        log: whether equal steps are equal factors.
        ticks: values with labels; chosen when absent.
        labels: of the ticks; the values when absent.
        percent: labels as per cent.
    """

    title: str
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None
    labels: Sequence[str] | None = None
    percent: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(value) if self.log else value
        return (at - low) / (high - low) if high > low else 0.5

    def marks(self) -> list[tuple[float, str]]:
        """Return the ticks with their labels."""
        ticks = nice_ticks(self.low, self.high) if self.ticks is None else list(self.ticks)
        if self.labels is not None:
            return list(zip(ticks, self.labels, strict=True))
        return [(tick, f"{tick:.0%}" if self.percent else number(tick)) for tick in ticks]


def number(value: float) -> str:
    """Return a number for people, with a unit prefix from ten thousand on."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.4g}"


def nice_ticks(low: float, high: float) -> list[float]:
    """Return about five round values from ``low`` to ``high``."""
    if high <= low:
        return [low]
    rough = (high - low) / _NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(tick * step, 10) for tick in range(first, last + 1)]


def line_plot(series: Sequence[Series], x: Axis, y: Axis, label: str) -> str:
    """Return a plot of lines with a mark at each point.

    Args:
        series: at least one.
        x: the horizontal axis.
        y: the vertical axis.
        label: what the plot shows, for those who do not see it.
    """
    parts: list[str] = []
    for one in series:
        places = [(_x(x, a), _y(y, b)) for a, b in one.points]
        style = f"line s{one.colour % _NUM_COLOURS}" + (" dashed" if one.dashed else "")
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline class="{style}" points="{path}"/>')
        if one.dashed:
            continue
        for (a, b), (value_x, value_y) in zip(places, one.points, strict=True):
            told = f"{one.name}: {_told(x, value_x)}, {_told(y, value_y)}"
            parts.append(
                f'<circle class="mark s{one.colour % _NUM_COLOURS}" cx="{a:.1f}" cy="{b:.1f}" '
                f'r="3.5"><title>{escape(told)}</title></circle>'
            )
    return _frame(parts, x, y, label) + legend(series)


def bar_plot(
    series: Sequence[Series], x: Axis, y: Axis, label: str, *, stacked: bool = False
) -> str:
    """Return a plot of bars, side by side or stacked, in groups at x = 0, 1, ...

    Args:
        series: at least one, each with a point a group.
        x: the horizontal axis, from -0.5 to the number of groups less 0.5.
        y: the vertical axis, from 0.
        label: what the plot shows, for those who do not see it.
        stacked: on top of each other.
    """
    parts: list[str] = []
    room = (WIDTH - _LEFT - _RIGHT) / max(x.high - x.low, 1)
    share = 0.62 if stacked else 0.8
    width = room * share / (1 if stacked else len(series))
    heights: dict[float, float] = {}
    for place, one in enumerate(series):
        for group, value in one.points:
            base = heights.get(group, 0.0) if stacked else 0.0
            heights[group] = base + value
            left = _x(x, group) - room * share / 2 + (0 if stacked else place * width)
            top, bottom = _y(y, base + value), _y(y, base)
            told = f"{one.name}, {_told(x, group)}: {_told(y, value)}"
            parts.append(
                f'<rect class="bar s{one.colour % _NUM_COLOURS}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{max(width - 1.5, 1):.1f}" height="{max(bottom - top, 0):.1f}" rx="1.5">'
                f"<title>{escape(told)}</title></rect>"
            )
    return _frame(parts, x, y, label) + legend(series)


def legend(series: Sequence[Series]) -> str:
    """Return the names of the series beside their colours."""
    if len(series) < 2:
        return ""
    items = "".join(
        f'<span class="key"><i class="s{one.colour % _NUM_COLOURS}'
        f'{" dashed" if one.dashed else ""}"></i>{escape(one.name)}</span>'
        for one in series
    )
    return f'<div class="legend">{items}</div>'


def _told(axis: Axis, value: float) -> str:
    if axis.labels is not None and axis.ticks is not None and value in axis.ticks:
        return axis.labels[list(axis.ticks).index(value)]
    return f"{value:.1%}" if axis.percent else number(value)


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - _BOTTOM - axis.place(value) * (HEIGHT - _TOP - _BOTTOM)


def _frame(parts: Sequence[str], x: Axis, y: Axis, label: str) -> str:
    """Put grid, axes and labels around the marks."""
    lines: list[str] = []
    for value, text in y.marks():
        at = _y(y, value)
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
            f"{escape(text)}</text>"
        )
    bottom = HEIGHT - _BOTTOM
    for value, text in x.marks():
        lines.append(
            f'<text class="tick" x="{_x(x, value):.1f}" y="{bottom + 17}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )
    middle = (_TOP + bottom) / 2
    lines.append(
        f'<line class="base" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
        f'<text class="title" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{escape(x.title)}</text>'
        f'<text class="title" transform="translate(14 {middle}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.title)}</text>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(lines)}{''.join(parts)}</svg>"
    )
