"""The report as one HTML file: no script, no network, charts as SVG, light and dark, readable without sight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any, Final

from tenuto.audit.findings import Finding, Report
from tenuto.audit.report.charts import STYLE, Bar, bars, line
from tenuto.audit.report.plain import status_of
from tenuto.audit.rules import SEVERITIES

_MARKS: Final = {"passed": "✓", "failed": "✗", "known": "~", "not offered": "-", "not tested": "?"}
_LIMIT: Final = 100.0
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--card:#f6f8fa;--edge:#d0d7de;--good:#116329;
--bad:#b3261e;--warn:#7a4d00;--bar:#0a5fb4}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#a5b0bb;--paper:#0d1117;--card:#161b22;--edge:#3d444d;--good:#56d364;
--bad:#ff8b82;--warn:#e3b341;--bar:#6cb6ff}}
*{box-sizing:border-box}body{margin:0;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
main,header,footer{max-width:64rem;margin:0 auto;padding:0 1.25rem}header{padding-top:2rem}h1{font-size:1.6rem;margin:0}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem}h2::first-letter{text-transform:uppercase}p{margin:.3rem 0}.soft{color:var(--soft)}
.cards{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.2rem 0;padding:0;list-style:none}
.cards li{background:var(--card);border:1px solid var(--edge);border-radius:.5rem;padding:.6rem 1rem;min-width:7rem}
.cards b{display:block;font-size:1.5rem}.passed{color:var(--good)}.failed{color:var(--bad)}.known{color:var(--warn)}
article{border:1px solid var(--edge);border-radius:.5rem;padding:.7rem 1rem;margin:.5rem 0;background:var(--card)}
article h3{font-size:1rem;margin:0}article.is-passed{background:none}.tag{font-size:.8rem;border:1px solid;border-radius:1rem;
padding:0 .55rem;margin-left:.5rem;white-space:nowrap}code{font-size:.9em}ul.items{margin:.4rem 0;padding-left:1.2rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(24rem,100%),1fr));gap:1.5rem 2rem;align-items:start}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.5rem}svg{width:100%;height:auto;display:block}footer{padding-block:2rem;color:var(--soft)}a{color:var(--bar)}
"""


def page(report: Report) -> str:
    """Return the report as a HTML page."""
    return "".join(_parts(report))


def _parts(report: Report) -> Iterator[str]:
    title = escape(f"Audit of {report.target}")
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>' + title + "</title>"
    yield '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{_STYLE}{STYLE}</style></head><body><header><h1>{title}</h1>"
    yield f'<p class="soft">{escape(report.kind)} · {report.at:%Y-%m-%d %H:%M} UTC · {report.seconds:.0f} s · '
    yield f"tenuto {escape(report.version)}</p></header><main>"
    yield f"<p><strong>{escape(_verdict(report))}</strong></p>"
    yield '<ul class="cards">'
    for name, count in report.counts.items():
        yield f'<li><b class="{name.split()[0]}">{count}</b>{name}</li>'
    yield "</ul>"
    yield from _charts(report)
    if report.failed:
        yield "<h2>What to do</h2>"
        for one in report.failed:
            yield from _advice(one)
    area = ""
    for one in report.findings:
        if one.rule.area != area:
            area = one.rule.area
            yield f"<h2>{area}</h2>"
        yield from _finding(report, one)
    yield "</main><footer>One file, no script, no network. Print a rule with <code>tenuto explain CODE</code>.</footer></body></html>"


def _verdict(report: Report) -> str:
    if not report.failed:
        return "No findings."
    severities = [(name, sum(one.severity == name for one in report.failed)) for name in SEVERITIES]
    return f"{report.verdict}: {', '.join(f'{count} {name}' for name, count in severities if count)}."


def _advice(finding: Finding) -> Iterator[str]:
    rule = finding.rule
    yield f'<article><h3 class="failed">{rule.code} {escape(rule.title)}: not so'
    yield f'<span class="tag">{rule.severity}</span></h3><p>{escape(finding.evidence)}</p>'
    yield f"<p>{escape(rule.meaning)}</p><p><strong>Fix:</strong> {escape(rule.fix)}</p></article>"


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    status = status_of(report, finding)
    kind = "is-passed" if status == "passed" else "is-open"
    yield f'<article class="{kind}" id="{finding.code}"><h3><span class="{status.split()[0]}" aria-hidden="true">'
    yield f'{_MARKS[status]}</span> {finding.code} {escape(finding.rule.title)}<span class="tag">{status}</span></h3>'
    yield f'<p class="soft">{escape(finding.evidence)}</p>'
    if finding.items:
        yield '<ul class="items">'
        for item in finding.items[:20]:
            yield f"<li><code>{escape(item.id)}</code> {escape(item.evidence)}</li>"
        yield "</ul>"
        if finding.found > 20:
            yield f'<p class="soft">and {finding.found - 20:,} more</p>'
    yield "</article>"


def _charts(report: Report) -> Iterator[str]:
    drawn = list(_drawn(report))
    if drawn:
        yield '<h2>Figures</h2><div class="charts">' + "".join(drawn) + "</div>"


def _drawn(report: Report) -> Iterable[str]:
    levels = _figure(report, "T011", "levels")
    if isinstance(levels, dict):
        groups = [
            (
                f"{name} conversation{'' if name == '1' else 's'}",
                [Bar(p, float(one[p]), "bar" if p == "p95" else "light") for p in ("p50", "p95", "p99")],
            )
            for name, one in levels.items()
            if one.get("lookups", 1)
        ]
        yield bars("Lookups under load; p95 must stay below 100 ms", groups, "ms", limit=_LIMIT)
    sizes = _figure(report, "T035", "sizes")
    if sizes:
        grown = [(float(turn), (size - sizes[0][1]) / 1024) for turn, size in sizes]
        yield line("Storage of one conversation by turns", grown, "KB")
    returned, lost = _figure(report, "T020", "returned"), _figure(report, "T020", "lost")
    if returned:
        counted = [Bar("returned", returned), Bar("stored", returned - lost, "over" if lost else "bar")]
        errors = _figure(report, "T020", "errors")
        counted += [Bar("raised", errors, "over")] if errors else []
        yield bars("Increments of one value by four processes", [("", counted)], "")


def _figure(report: Report, code: str, name: str) -> Any:
    found = report.get(code)
    return None if found is None else found.figures.get(name)
