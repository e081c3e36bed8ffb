"""`tenuto doctor`: what is wrong with the set-up, and what to do about it."""

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
    """Find what is wrong with the set-up, and say what to do about it; exit 1 if anything is. Nothing is changed.

    It looks at the versions and drivers, the folder, the disk, the store, its log, the clocks, and at runs with which
    nobody goes on. Whether all that is stored is as it was written is asked with: tenuto check
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
