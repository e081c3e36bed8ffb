"""`tenuto load`: drive a store with many agents, and report percentiles, conflicts, errors and throughput."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tenuto.audit.load import LoadReport, load
from tenuto.audit.report.charts import STYLE, WIDE, drawn_line
from tenuto.backends import default_path
from tenuto.cli.progress import Progress
from tenuto.cli.render import table
from tenuto.cli.shared import FAILURE, guarded, show_json, store_options
from tenuto.kernel.durations import seconds

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDE = 60


@click.command("load")
@click.argument("store", required=False)
@click.option("--agents", default=100, show_default=True, help="Number of agents that take turns.")
@click.option("--for", "length", default="1m", show_default=True, help="How long, for example 5m.")
@click.option("--pause", default="200ms", show_default=True, help="Time between two turns of an agent.")
@click.option("--processes", default=2, show_default=True, help="Processes that the agents are spread over.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write p95 and throughput by second to this SVG file.")
@store_options
@guarded
def command(  # noqa: PLR0913 - the command's options
    store: str | None,
    agents: int,
    length: str,
    pause: str,
    processes: int,
    plot: Path | None,
    url: str | None,
    tenant: str,
    *,
    as_json: bool,
) -> None:
    """Let many agents take turns on a scratch store next to STORE (a path or URL); exit 1 if calls failed.

    Each turn looks up state and conversation, appends a message and writes; every fifth turn also changes a value that
    all agents share. No agent logic runs, so the figures are those of the storage.
    """
    if agents < 1 or processes < 1:
        raise click.UsageError("--agents and --processes must be at least 1.")
    place = os.fspath(store or url or os.environ.get("TENUTO_URL") or default_path())
    wait = float(pause[:-2]) / 1_000 if pause.endswith("ms") else seconds(pause, "pause")
    with Progress("loading") as progress:

        def shown(done: float, operations: int, p95: float) -> None:
            progress.at(round(done * 1_000), 1_000)
            progress.say(f"{operations:,} operations, p95 of lookups {p95:g} ms")

        report = load(
            place,
            tenant=tenant,
            agents=agents,
            seconds=seconds(length, "time"),
            pause=wait,
            processes=processes,
            progress=shown,
        )
    if plot is not None:
        plot.write_text(picture(report))
    if as_json:
        show_json(report)
    else:
        for text in lines(report):
            click.echo(text)
    sys.exit(FAILURE if report.errors else 0)


def lines(report: LoadReport) -> list[str]:
    """Return a report as lines, with a plot of p95 and throughput by second."""
    head = (
        f"{report.agents} agents in {report.processes} processes for {report.seconds:g} s: {report.operations:,} operations, "
        f"{report.per_second:,.0f} a second, {report.conflicts:,} conflicts retried, {report.errors:,} errors"
    )
    shown = [head, "", *table(report.measured, ("operation", "times", "per_second", "p50", "p95", "p99", "max")), ""]
    if report.timeline:
        p95 = [one.p95 for one in report.timeline]
        count = [float(one.operations) for one in report.timeline]
        shown += [f"p95 of lookups, ms   {_sparkline(p95)}  {min(p95):g} to {max(p95):g}"]
        shown += [f"operations a second  {_sparkline(count)}  {min(count):g} to {max(count):g}"]
    if report.first_error is not None:
        shown.append(click.style(f"the first error: {report.first_error}", fg="red"))
    return shown


def _sparkline(values: Sequence[float]) -> str:
    size = max(1, -(-len(values) // _WIDE))
    grouped = [max(values[at : at + size]) for at in range(0, len(values), size)]
    most = max(grouped) or 1.0
    return "".join(_BLOCKS[min(int(8 * value / most), 7)] for value in grouped)


def picture(report: LoadReport) -> str:
    """Return p95 and throughput by second as one SVG picture, light or dark as the viewer likes."""
    parts, y = [], 0
    for title, points, unit in (
        ("p95 of lookups, by second", [(float(one.at), one.p95) for one in report.timeline], "ms"),
        ("Operations a second", [(float(one.at), float(one.operations)) for one in report.timeline], ""),
    ):
        inner, high = drawn_line(points or [(0.0, 0.0)], unit)
        parts.append(
            f'<g transform="translate(0 {y})"><text x="4" y="16" font-weight="600">{title}</text>'
            f'<g transform="translate(0 22)">{inner}</g></g>'
        )
        y += high + 40
    dark = "svg{--ink:#e6edf3;--soft:#a5b0bb;--bar:#6cb6ff;--bad:#ff8b82;--edge:#3d444d;background:#0d1117}"
    light = "svg{--ink:#1b1f24;--soft:#57606a;--bar:#0a5fb4;--bad:#b3261e;--edge:#d0d7de;background:#fff}"
    style = f"{light}@media(prefers-color-scheme:dark){{{dark}}}{STYLE}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -4 {WIDE + 8} {y - 10}">'
        f"<style>{style}</style>{''.join(parts)}</svg>\n"
    )
