"""Charts as SVG text: values over sizes on logarithmic axes, one line per program. Pure.

A value that was cut off is an open mark with an arrow: the true one lies above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 50, 60
_COLOURS = ("#0b6bcb", "#c4471c", "#6b7280")
_FONT = 'font-family="sans-serif" font-size="12" fill="#333"'


class Point(msgspec.Struct, frozen=True, gc=False):
    """One value at one size."""

    x: float
    y: float
    is_limit: bool = False


class Line(msgspec.Struct, frozen=True):
    """One program's values."""

    label: str
    points: tuple[Point, ...]


class Axis(msgspec.Struct, frozen=True, gc=False):
    """A logarithmic axis from `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        span = math.log(self.high) - math.log(self.low)
        part = (math.log(value) - math.log(self.low)) / span
        return round(self.start + part * (self.end - self.start), 1)


def draw_chart(title: str, unit: str, lines: Sequence[Line]) -> str:
    """Draw a chart as a whole SVG file. Values that are not positive are left out."""
    shown = [Line(line.label, tuple(p for p in line.points if p.y > 0)) for line in lines]
    points = [point for line in shown for point in line.points]
    if not points:
        raise ValueError(f"the chart {title!r} has nothing to show")
    across = _axis([p.x for p in points], _LEFT, _WIDTH - _RIGHT)
    up = _axis([p.y for p in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" {_FONT} font-weight="bold">{escape(title)}</text>',
        *_up_ticks(up, unit),
        *_across_ticks(across, sorted({p.x for p in points})),
    ]
    for number, line in enumerate(shown):
        parts += _draw_line(line, across, up, _COLOURS[number % len(_COLOURS)])
        parts += _draw_legend(line.label, number, _COLOURS[number % len(_COLOURS)])
    return "\n".join([*parts, "</svg>", ""])


def _axis(values: Sequence[float], start: float, end: float) -> Axis:
    """An axis with room for all values and a margin; one value alone is in the middle."""
    return Axis(min(values) / 1.3, max(values) * 1.3, start, end)


def _up_ticks(axis: Axis, unit: str) -> list[str]:
    found = []
    for value in ticks(axis.low, axis.high):
        y = axis.place(value)
        found.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>'
        )
        label = f"{value:g} {unit}"
        found.append(
            f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end" {_FONT}>{escape(label)}</text>'
        )
    return found


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade between, or only 1 where that would be too many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    # Through text, because 10.0 ** -2 * 5 is not quite 0.05.
    found = [float(f"{step}e{decade}") for decade in decades for step in steps]
    return [value for value in found if low <= value <= high]


def _across_ticks(axis: Axis, values: Sequence[float]) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    found = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}" stroke="#9ca3af"/>'
    ]
    for value in values:
        x = axis.place(value)
        found.append(
            f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" {_FONT}>{value:,.0f}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    found.append(
        f'<text x="{middle:g}" y="{_HEIGHT - 12}" text-anchor="middle" {_FONT}>services</text>'
    )
    return found


def _draw_line(line: Line, across: Axis, up: Axis, colour: str) -> list[str]:
    places = [(across.place(p.x), up.place(p.y), p) for p in line.points]
    path = " ".join(f"{x},{y}" for x, y, _ in places)
    found = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for x, y, point in places:
        fill = "#fff" if point.is_limit else colour
        found.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}" stroke="{colour}"/>')
        if point.is_limit:
            arrow = f"M{x},{y - 6} v-14 m-4,5 l4,-5 l4,5"
            found.append(f'<path d="{arrow}" fill="none" stroke="{colour}"/>')
    return found


def _draw_legend(label: str, number: int, colour: str) -> list[str]:
    x = _LEFT + number * 140
    return [
        f'<rect x="{x}" y="33" width="12" height="4" fill="{colour}"/>',
        f'<text x="{x + 18}" y="40" {_FONT}>{escape(label)}</text>',
    ]
