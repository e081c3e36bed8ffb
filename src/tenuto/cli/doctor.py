"""`tenuto doctor`: diagnose the setup and suggest fixes."""

from __future__ import annotations

import sys

import click

from tenuto.cli.examinations import examined
from tenuto.cli.shared import FAILURE, guarded, show_json, store_options

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@click.command("doctor")
@store_options
@guarded
def command(url: str | None, tenant: str, *, as_json: bool) -> None:
    """Diagnose the setup and suggest fixes; exit 1 if there is a problem. Nothing is changed.

    Examines versions and drivers, the folder, the disk, the store, its log, the clocks, and runs that no worker
    resumes. To verify the stored data, use: tenuto check
    """
    found = list(examined(url, tenant))
    if as_json:
        show_json(found)
    else:
        for one in found:
            mark, colour = _MARKS[one.status]
            click.echo(f"{click.style(mark, fg=colour)} {one.what}")
            if one.advice:
                click.echo(f"  {one.advice}")
    sys.exit(FAILURE if any(one.status != "ok" for one in found) else 0)
