"""Charts as SVG text, with their numbers as labels: bars and a line. The colours are classes of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_WIDE = 480


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Return horizontal bars with their values."""
    most = max((value for _, value in rows), default=0.0) or 1.0
    high = 24 * len(rows) + 8
    parts = []
    for at, (name, value) in enumerate(rows):
        y, long = 24 * at + 4, 190 * value / most
        parts.append(
            f'<text x="0" y="{y + 14}">{escape(name)}</text><rect class="bar" x="180" y="{y}" width="{max(long, 1):.1f}" '
            f'height="18" rx="2"/><text x="{186 + long:.1f}" y="{y + 14}">{value:g} {unit}</text>'
        )
    return _figure(title, rows, high, "".join(parts), unit)


def line(title: str, points: Sequence[tuple[float, float]]) -> str:
    """Return a line through points, with a dot and a value at each."""
    wide, high = _WIDE - 90, 150
    last, most = points[-1][0] or 1, max(value for _, value in points) or 1.0
    placed = [(40 + wide * x / last, 20 + high - high * y / most) for x, y in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    marks = "".join(
        f'<circle class="bar" cx="{x:.1f}" cy="{y:.1f}" r="4"/><text x="{x + 7:.1f}" y="{y + 4:.1f}">{value:,.0f}</text>'
        f'<text x="{x - 6:.1f}" y="{high + 40}">{turn:g}</text>'
        for (x, y), (turn, value) in zip(placed, points, strict=True)
    )
    axis = f'<path class="axis" d="M40 {high + 20}H{_WIDE - 40}"/>'
    return _figure(title, points, high + 50, f'{axis}<path class="path" d="{path}"/>{marks}', "")


def _figure(title: str, rows: Sequence[tuple[object, float]], high: float, inner: str, unit: str) -> str:
    said = "; ".join(f"{name}: {value:.4g} {unit}".strip() for name, value in rows)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg role="img" viewBox="0 0 {_WIDE} {high:.0f}" '
        f'aria-label="{escape(f"{title}: {said}")}">{inner}</svg></figure>'
    )
