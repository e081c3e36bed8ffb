"""`tenuto audit`: test whether the state of an agent survives production."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from tenuto.audit import Report, audit_store, audit_target
from tenuto.audit.report import applied, lines, page, sarif, shown, workflow_commands, written
from tenuto.audit.rules import SEVERITIES
from tenuto.cli.commands import rendered
from tenuto.cli.progress import Progress
from tenuto.cli.render import width
from tenuto.cli.shared import FAILURE, guarded, store_exists, store_options
from tenuto.errors import NotFound
from tenuto.operations.jsonable import jsonable


@click.group("audit", invoke_without_command=True)
@click.option("--target", metavar="MODULE:FACTORY", help="Audit what this function returns instead of a store.")
@click.option("--only", multiple=True, metavar="CODE", help="Only this rule, or those that begin so; may be repeated.")
@click.option("--skip", multiple=True, metavar="CODE", help="Not this rule, or those that begin so; may be repeated.")
@click.option(
    "--fail-on",
    type=click.Choice([*SEVERITIES, "none"]),
    default="medium",
    show_default=True,
    help="Exit 1 for findings at least this severe.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github", "html"]),
    default="text",
    show_default=True,
    help="Form of the report.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the report to this file.")
@click.option("--baseline", type=click.Path(path_type=Path), help="File with known findings, which do not fail.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Write the findings to a baseline; exit 0.")
@click.option("--for", "seconds", default=2.0, show_default=True, help="Seconds for each of the three levels of load.")
@store_options
@click.pass_context
@guarded
def command(  # noqa: PLR0913, PLR0917 - the command's options
    context: click.Context,
    target: str | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    fail_on: str,
    form: str,
    output: Path | None,
    baseline: Path | None,
    write_baseline: Path | None,
    seconds: float,
    url: str | None,
    tenant: str,
    *,
    as_json: bool,
) -> None:
    """Test whether the state of an agent survives production; exit 1 if there are findings.

    The checklist runs in processes of its own on a scratch store next to yours (same server, disk and settings), and
    the content of the store is read. With --target the same checklist runs on any object with get and set: it writes
    keys that begin with audit-, so use a test instance. Nothing is sent anywhere.
    """
    if context.invoked_subcommand is not None:
        return
    if not 0.1 <= seconds <= 600:
        raise click.UsageError("--for must be from 0.1 to 600 seconds.")
    report = _audited(target, url, tenant, {"only": only, "skip": skip, "seconds": seconds})
    if write_baseline is not None:
        count = written(report, write_baseline)
        click.echo(f"{count} findings are known from now on: {write_baseline}", err=True)
    elif baseline is not None:
        report = applied(report, baseline)
    text = _text(report, "json" if as_json else form, plain=output is not None)
    if output is not None:
        output.write_text(text + "\n")
    else:
        click.echo(text)
    sys.exit(FAILURE if write_baseline is None and report.is_above(fail_on) else 0)


def _text(report: Report, form: str, *, plain: bool) -> str:
    """Return a report in a form; `plain` without colours."""
    if form == "html":
        return page(report)
    if form == "github":
        return "\n".join(workflow_commands(report))
    if form in ("json", "sarif"):
        found: Any = shown(report) if form == "json" else sarif(report)
        return json.dumps(jsonable(found), ensure_ascii=False, indent=2 if plain or sys.stdout.isatty() else None)
    found = lines(report, click.style, min(width(), 110))
    return "\n".join(click.unstyle(line) if plain else line for line in found)


def _audited(target: str | None, url: str | None, tenant: str, options: dict[str, Any]) -> Report:
    with Progress("auditing") as progress:

        def step(at: int, total: int, _code: str) -> None:
            progress.at(at, total)

        if target is not None:
            return audit_target(target, step=step, **options)
        if not store_exists(url):
            raise NotFound("There is no store here. Name one with --url or $TENUTO_URL, or create it with: tenuto init")
        return audit_store(url, tenant=tenant, step=step, **options)


command.add_command(rendered("audit last"))
command.add_command(rendered("audit list"))
