"""Charts as SVG text, with their numbers as labels: bars in groups, and a line. The colours are classes of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDE: Final = 480
_LEFT: Final = 150
_ROW: Final = 22
_HIGH: Final = 130
STYLE: Final = (
    "svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .soft{fill:var(--soft)}svg .end{text-anchor:end}"
    "svg .middle{text-anchor:middle}.bar{fill:var(--bar)}.light{fill:var(--bar);opacity:.45}.over{fill:var(--bad)}"
    ".axis{stroke:var(--edge)}.limit{stroke:var(--bad);stroke-dasharray:4 3}.path{fill:none;stroke:var(--bar);stroke-width:2}"
    ".area{fill:var(--bar);opacity:.12}"
)
"""For the page around the charts, which defines --ink, --soft, --bar, --bad and --edge."""


class Bar(NamedTuple):
    """A bar of a chart."""

    name: str
    value: float
    kind: str = "bar"
    """A class of the page: bar, light or over."""


def bars(title: str, groups: Sequence[tuple[str, Sequence[Bar]]], unit: str, limit: float | None = None) -> str:
    """Return horizontal bars with their values, in groups, and a limit if a bar comes near it."""
    most = max((bar.value for _, group in groups for bar in group), default=0.0) or 1.0
    drawn = limit if limit is not None and limit < 4 * most else None
    scale = (WIDE - _LEFT - 80) / max(most, drawn or 0.0)
    parts, y = [], 4
    for name, group in groups:
        parts.append(f'<text x="0" y="{y + 13}">{escape(name)}</text>')
        for bar in group:
            kind = "over" if limit is not None and bar.value > limit else bar.kind
            long = max(bar.value * scale, 1)
            parts.append(
                f'<text class="soft end" x="{_LEFT - 8}" y="{y + 13}">{escape(bar.name)}</text>'
                f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{long:.1f}" height="16" rx="2"/>'
                f'<text x="{_LEFT + long + 6:.1f}" y="{y + 13}">{escape(f"{bar.value:g} {unit}".strip())}</text>'
            )
            y += _ROW
        y += 8
    if drawn is not None:
        x = _LEFT + drawn * scale
        parts.append(f'<path class="limit" d="M{x:.1f} 0V{y - 6}"/>')
    said = "; ".join(f"{name} {bar.name}: {bar.value:.4g} {unit}".strip() for name, group in groups for bar in group)
    return figure(title, said, y, "".join(parts))


def line(title: str, points: Sequence[tuple[float, float]], unit: str = "") -> str:
    """Return a line through points, with a scale, as a figure of a page."""
    inner, high = drawn_line(points, unit)
    said = "; ".join(f"{x:g}: {y:.4g} {unit}".strip() for x, y in points)
    return figure(title, said, high, inner)


def drawn_line(points: Sequence[tuple[float, float]], unit: str) -> tuple[str, int]:
    """Return the SVG of a line, and its height."""
    left, right, top = 52, WIDE - 16, 12
    first, last = points[0][0], points[-1][0]
    ticks = _ticks(max(value for _, value in points))
    most = ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * (x - first) / ((last - first) or 1), top + _HIGH * (1 - y / most)

    parts = []
    for tick in ticks:
        y = place(first, tick)[1]
        parts.append(
            f'<path class="axis" d="M{left} {y:.1f}H{right}"/>'
            f'<text class="soft end" x="{left - 8}" y="{y + 4:.1f}">{tick:g}{f" {unit}" if unit and tick == most else ""}</text>'
        )
    placed = [place(x, y) for x, y in points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    parts.append(f'<path class="area" d="M{left} {top + _HIGH}L{path}L{placed[-1][0]:.1f} {top + _HIGH}Z"/>')
    parts.append(f'<path class="path" d="M{path}"/>')
    every = math.ceil(len(points) / 8)
    for (x, y), (name, _) in list(zip(placed, points, strict=True))[::every]:
        parts.append(f'<circle class="bar" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        parts.append(f'<text class="soft middle" x="{x:.1f}" y="{top + _HIGH + 18}">{name:g}</text>')
    return "".join(parts), top + _HIGH + 26


def figure(title: str, said: str, high: float, inner: str) -> str:
    """Return a chart with its title, and its numbers for those who do not see it."""
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg role="img" viewBox="0 0 {WIDE} {high:.0f}" '
        f'aria-label="{escape(f"{title}: {said}")}">{inner}</svg></figure>'
    )


def _ticks(most: float) -> list[float]:
    """Return round numbers from 0 to the first one that is not below `most`."""
    if most <= 0:
        return [0.0, 1.0]
    size = 10 ** math.floor(math.log10(most))
    step = next(size * one for one in (0.25, 0.5, 1, 2.5, 5) if most / (size * one) <= 4)
    return [round(step * one, 10) for one in range(math.ceil(most / step) + 1)]
