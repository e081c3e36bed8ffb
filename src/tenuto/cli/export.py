"""`tenuto export`: write a tenant to a JSONL file."""

from __future__ import annotations

from pathlib import Path

import click

from tenuto.cli.progress import Progress
from tenuto.cli.shared import guarded, opened, show_json, store_options


@click.command("export")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@store_options
@guarded
def command(path: Path, url: str | None, tenant: str, *, as_json: bool) -> None:
    """Write everything of the tenant to the new file PATH, one JSON object a line, with types, versions and digests.

    An interrupted export continues when it is run again. `tenuto import PATH` reads it into any store.
    """
    with opened(url, tenant) as agent, Progress(f"exporting to {path.name}") as progress:
        done = agent.store.export(path, progress=progress.at)
    if as_json:
        show_json(done)
    else:
        again = f", {done.resumed:,} rows of them by an earlier call" if done.resumed else ""
        counts = f"{done.records:,} records and {done.entries:,} entries of {done.streams:,} streams"
        click.echo(f"{counts}{again}; digest {done.digest}")
