"""The report as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from tenuto.audit.findings import Finding, Report
from tenuto.audit.report.plain import status_of

Style = Callable[..., str]
_MARKS = {"passed": ("✓", "green"), "failed": ("✗", "red"), "known": ("~", "yellow")}
_SHOWN = 5


def lines(report: Report, style: Style, width: int = 100) -> Iterator[str]:
    """Yield the lines of a report: every rule by area, then what to do, the worst first."""
    yield style(f"audit of {report.target}", bold=True) + style(f" · {report.kind} · {report.seconds:.0f} s", dim=True)
    area = ""
    for one in report.findings:
        if one.rule.area != area:
            area = one.rule.area
            yield ""
            yield style(area, bold=True)
        mark, colour = _MARKS.get(status_of(report, one), ("·", "white"))
        yield f"{style(mark, fg=colour)} {one.code} {one.rule.title}" + _after(report, one, style)
        yield from _wrapped(one.evidence, width, "       ", lambda text: style(text, dim=True))
        for item in one.items[:_SHOWN]:
            yield from _wrapped(f"{item.id}: {item.evidence}", width, "       - ", str)
        if one.found > _SHOWN:
            yield f"       … and {one.found - _SHOWN:,} more; --json lists up to 100"
    yield ""
    yield from _advice(report, style, width)


def _after(report: Report, finding: Finding, style: Style) -> str:
    status = status_of(report, finding)
    if status == "failed":
        return style(f"  [{finding.severity}]", fg="red" if finding.severity in ("critical", "high") else "yellow")
    return "" if status == "passed" else style(f"  [{'in the baseline' if status == 'known' else status}]", dim=True)


def _advice(report: Report, style: Style, width: int) -> Iterator[str]:
    said = ", ".join(f"{count} {name}" for name, count in report.counts.items() if count)
    if not report.failed:
        yield style(f"No findings: {said}.", fg="green", bold=True)
        return
    yield style(f"{report.verdict}: {said}.", bold=True)
    for one in report.failed:
        yield ""
        yield f"{style(one.code, bold=True)} {one.severity}, not so: {one.rule.title}"
        yield from _wrapped(one.rule.meaning, width, "     ", str)
        yield from _wrapped(f"Fix: {one.rule.fix}", width, "     ", lambda text: style(text, fg="cyan"))


def _wrapped(text: str, width: int, indent: str, paint: Callable[[str], str]) -> Iterator[str]:
    rest = " " * len(indent)
    for line in textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=rest):
        yield paint(line)
